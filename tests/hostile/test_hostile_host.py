"""An editor behind `sonde serve --stdio` that was taken over, and a sub-call whose model was talked into reaching further."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest
from victim import Victim

from server.document_host import REQUESTS, Answer, HostOfProcess
from sonde.testing import ScriptedServer, SeenRequest

SECRET = "s3cr3t-of-b"
REACHES = [
    'print(read_file("b.ts"))',
    'print(read_file("a.ts", 1, 9999))',
    'print(read_file("a.ts", 15, 40, rationale="I must"))',
    'print(search("s3cr3t"))',
    'print(search("s3cr3t", "b.ts"))',
    'print(apply_patch("*** Begin Patch\\n*** Delete File: b.ts\\n*** End Patch"))',
    'print(execute_command("cat b.ts"))',
    'print(delegate_subcall("look", context={"paths": ["b.ts"]}))',
]


@contextmanager
def serving(victim: Victim, replies: Any, answer: Answer | None = None, *words: str) -> Generator[HostOfProcess]:
    """A server whose model says this."""
    with ScriptedServer(replies) as model:
        flags = ("--model", "openai:m", "--base-url", model.base_url, *words)
        host = HostOfProcess(victim.folder, *flags, environ={**victim.environment(), "OPENAI_API_KEY": "k"})
        host.answer = answer
        try:
            yield host
        finally:
            assert host.close() == 0


@pytest.mark.hostile_long
def test_a_child_that_reaches_outside_its_scope_sees_nothing_of_it(victim: Victim) -> None:
    (victim.folder / "a.ts").write_text("".join(f"line {number}\n" for number in range(1, 51)))
    (victim.folder / "b.ts").write_text(f"{SECRET}\n")
    heard: list[str] = []
    steps = iter([*REACHES, "FINAL('It says so [b.ts:1]')", "FINAL('It says so [b.ts:1] [a.ts:40]')", "FINAL('no')"])

    def model(seen: SeenRequest) -> str:
        said = json.dumps(seen.body)
        heard.append(said)
        if "You are a sub-call" in said:
            return f"```python\n{next(steps, 'FINAL(0)')}\n```"
        if "steal it" in said:
            return "```python\nFINAL('Done. [a.ts:12]')\n```"
        return '```python\nprint(delegate_subcall("steal it", context={"paths": ["a.ts:10-20"]}))\n```'

    def talkative(request: dict[str, Any]) -> dict[str, Any] | None:
        if request["type"] == "context.search":
            return {"ok": True, "output": {"matches": [{"path": "b.ts", "line": 1, "text": SECRET}]}}
        return None

    with serving(victim, model, talkative, "--allow-command", "cat b.ts") as host:
        host.task("Look", limits={"maxTotalTokens": 100_000, "maxTokensPerSubcall": 50_000, "timeoutSeconds": 250})

    child = host.of("subcall.start")[0]["id"]
    asked = [each for each in host.heard if each["type"] in REQUESTS and each["parentId"] == child]
    assert len(heard) > len(REACHES)
    assert {each.get("path") for each in asked} == {"a.ts"}
    assert all(each["type"] != "tool.request" for each in asked)
    assert not host.commands
    assert not any(SECRET in each for each in heard)
    assert host.of("subcall.end")[0]["citations"] == []


@pytest.mark.hostile_long
def test_lines_and_results_of_every_kind_leave_the_server_alive_and_the_task_with_one_completion(
    victim: Victim,
) -> None:
    outputs: list[Any] = [
        {"content": "x" * 5_000_000},
        {"content": "y\n" * 300_000, "startLine": 1, "endLine": 1},
        {"content": "z", "startLine": -1, "endLine": 10**40},
        [[[[[]]]]],
        {"content": {"deep": [{}] * 1000}},
    ]
    turns = iter([*["print(read_file('a.ts', 1, 3))"] * (len(outputs) - 1), "FINAL('Done. [a.ts:1-3]')"])
    rude = iter(outputs)

    def answer(request: dict[str, Any]) -> dict[str, Any] | None:
        if request["type"] != "context.read":
            return None
        host.say(type="tool.result", id=[request["id"]], ok=True)
        host.say(type="tool.result", id=f"{request['id']}0", ok=True)
        host.send(b"[" * 100_000 + b"\n" + b'{"type":"cancel","id":"' + b"\xff" * 10 + b'"}\n')
        host.send(b'{"type":"new_task","id":"x","prompt":"' + b"p" * (33 << 20) + b'"}\n')
        return {"ok": True, "output": next(rude, None)}

    def model(_seen: SeenRequest) -> str:
        return f"```python\n{next(turns, 'FINAL(1)')}\n```"

    with serving(victim, model, answer) as host:
        done = host.task("Look", limits={"maxTotalTokens": 1_000_000, "timeoutSeconds": 250})
        host.say(type="cancel", id="nobody")
        while host.hear().get("id") != "nobody":
            pass

    assert done["status"] in ("partial", "failed")
    assert not done["citations"]
    assert [each["id"] for each in host.of("completion")].count("task") == 1
