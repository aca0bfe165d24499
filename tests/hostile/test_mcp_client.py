"""A client of `sonde serve --mcp` whose model was talked into something, and one that hangs up while a model thinks."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from victim import Victim

from journeys.journey import SONDE

PATIENCE = 100
HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "client", "version": "1"}}


class Server:
    """The server's process, spoken to line by line."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.send(id=1, method="initialize", params=HELLO)
        self.reply()
        self.send(method="notifications/initialized")

    def send(self, **message: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.process.stdin.flush()

    def say(self, line: str) -> dict[str, Any]:
        """The answer to a line as it is."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()
        return self.reply()

    def reply(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        while True:
            found = json.loads(self.process.stdout.readline())
            if "id" in found:
                return found

    def call(self, tool: str, **arguments: Any) -> str:
        self.send(id=2, method="tools/call", params={"name": tool, "arguments": arguments})
        result = self.reply()["result"]
        return f"{'error: ' if result['isError'] else ''}{json.dumps(result)}"


@contextmanager
def serving(victim: Victim, *flags: str | Path) -> Generator[Server]:
    with subprocess.Popen(
        [SONDE, "serve", "--mcp", *flags],
        cwd=victim.folder,
        env=victim.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield Server(process)
        finally:
            process.kill()


@pytest.mark.hostile_long
def test_pipes_links_and_write_back_are_answered_with_an_error(victim: Victim) -> None:
    (victim.home / "private.txt").write_text("s3cr3t")
    (victim.folder / "link.txt").symlink_to(victim.home / "private.txt")
    os.mkfifo(victim.folder / "pipe")

    with serving(victim, "--runs-dir", victim.own) as server:
        replies = [
            server.call("ask", question="?", paths=["pipe"]),
            server.call("ask", question="?", paths=["link.txt"]),
            server.call("ask", question="?", paths=["*.txt"]),
            server.call("rca", trace_id="t", source="pipe"),
            server.call("rca", trace_id="t", source="link.txt", writeback=True),
        ]

    assert all(reply.startswith("error: ") for reply in replies), replies
    assert not any("s3cr3t" in reply for reply in replies)
    assert "--writeback" in replies[4]


@pytest.mark.hostile_long
def test_no_glob_reaches_a_folder_of_secrets(victim: Victim) -> None:
    (victim.folder / ".kube").mkdir()
    victim.write(".kube/config", "token: s3cr3t\n")
    (victim.folder / ".git").mkdir()
    victim.write(".git/config", "url = https://s3cr3t@host/\n")
    spelled = [".kube", ".kub?/conf*", ".kub?", ".[k]ube/*", ".kub?/config", ".k*/**", ".gi?", ".gi?/config"]

    with serving(victim, "--runs-dir", victim.own) as server:
        replies = [server.call("ask", question="What is the token?", paths=[each]) for each in spelled]

    assert all(reply.startswith("error: ") for reply in replies), replies
    assert not any("s3cr3t" in reply for reply in replies)


@pytest.mark.hostile_long
def test_runs_are_shown_by_id_only(victim: Victim) -> None:
    victim.write("notes.txt", "the s3cr3t service is payments\n")
    victim.sonde("ask", "Which service?", "notes.txt", "--runs-dir", victim.home / "other")
    foreign = next(victim.home.glob("other/*/events.jsonl")).parent
    (victim.own / "link").symlink_to(foreign)
    (foreign / "runs").symlink_to(victim.own)
    (victim.folder / "artifacts").mkdir()
    (victim.folder / "artifacts/investigator_runs").symlink_to(foreign.parent)
    named = ["link", "..", f"{victim.own}/link", f"{foreign}/runs/..", str(foreign), foreign.name]

    with serving(victim, "--runs-dir", victim.own) as server:
        replies = [server.call("runs", run=each) for each in named]
        replies += [server.call("ask", question="?", paths=["notes.txt"], continue_from=each) for each in named]
    with serving(victim) as server:
        replies += [server.call("runs", run=foreign.name)]
        listed = server.call("runs")

    assert all(reply.startswith("error: ") for reply in replies), replies
    assert foreign.name not in listed


@pytest.mark.hostile_long
def test_the_server_ends_with_its_input_although_a_model_thinks(victim: Victim) -> None:
    victim.write("notes.txt", "the service is payments\n")
    model = victim.write(
        "model.sh", f"echo $$ > {victim.marker}.part\nmv {victim.marker}.part {victim.marker}\nexec sleep 3600\n"
    )

    with serving(victim, "--model", f"command:sh {model}", "--runs-dir", victim.own) as server:
        server.send(
            id=2, method="tools/call", params={"name": "ask", "arguments": {"question": "?", "paths": ["notes.txt"]}}
        )
        victim.wait_for(victim.marker)
        assert server.process.stdin is not None
        server.process.stdin.close()

        assert server.process.wait(PATIENCE) == 0
    victim.wait_for_end(int(victim.marker.read_text()))


DEEP = '{"a":' * 1000 + "1" + "}" * 1000
ARGUMENTS = {
    "ask": [
        r'{"question":"?","paths":["a\u0000b"]}',
        r'{"question":"?","paths":["a\ud800"]}',
        r'{"question":"half a pair \ud83d","paths":["a.txt"]}',
        '{"question":"?","paths":5}',
        '{"question":5}',
        "{}",
        '{"question":"?","paths":["a.txt"],"max_cost":1}',
        '{"question":"?","paths":["a.txt"],"max_cost_usd":NaN}',
        '{"question":"?","paths":["a.txt"],"max_cost_usd":Infinity}',
        '{"question":"?","paths":["a.txt"],"max_iterations":1e400}',
        '{"question":"?","paths":["a.txt"],"max_iterations":' + "9" * 5000 + "}",
        '{"question":"?","paths":["a.txt"],"schema":' + DEEP + "}",
        '{"question":"?","source":"http://[::1"}',
        r'{"question":"?","continue_from":"\u0000"}',
        '{"question":"?","paths":["' + "a/" * 400_000 + 'b"]}',
        '{"question":"?","paths":["a.txt"' + ',"a.txt"' * 200_000 + "]}",
    ],
    "rca": [
        r'{"trace_id":"t","source":"\u0000"}',
        '{"trace_id":"' + "t" * 100_000 + '","source":"a.txt"}',
        '{"trace_id":"t","source":"' + "a/" * 400_000 + 'b"}',
    ],
    "comply": [r'{"trace_id":"t","source":"a.txt","controls":"..\/..\u0000"}', '{"trace_id":["t"],"source":"a.txt"}'],
    "incident": ['{"source":"a.txt","trace_ids":"t"}', r'{"source":"a.txt","start":"\udfff"}'],
    "runs": [r'{"run":"\u0000"}', '{"limit":1.5}', "[]", '{"rum":"last"}'],
    "issues": ['{"number":' + "9" * 400 + "}", '{"number":-1}'],
    "change_issue": ['{"number":' + "9" * 30 + ',"change":"mute"}', '{"number":1,"change":"drop table"}'],
}


@pytest.mark.hostile_long
def test_arguments_without_sense_are_answered_in_words_and_the_server_goes_on(victim: Victim) -> None:
    victim.write("a.txt", "one\n")
    asked = [(tool, given) for tool, cases in ARGUMENTS.items() for given in cases]

    with serving(victim, "--runs-dir", victim.own, "--writeback") as server:
        for number, (tool, given) in enumerate(asked, 10):
            params = f'{{"name":"{tool}","arguments":{given}}}'
            heard = server.say(f'{{"method":"tools/call","params":{params},"jsonrpc":"2.0","id":{number}}}')
            result = heard.get(
                "result", {"isError": True, "content": [{"text": heard.get("error", {}).get("message")}]}
            )
            words = result["content"][0]["text"]

            assert heard["id"] == number, (tool, given[:200], heard)
            assert result["isError"] and words != f"Error executing tool {tool}", (tool, given[:200], heard)
            assert len(words) < 4000
        pong = server.say('{"jsonrpc":"2.0","id":"end","method":"ping"}')

    assert pong["id"] == "end" and "result" in pong


@pytest.mark.hostile_long
@pytest.mark.parametrize(
    "line",
    [
        *("{", "[]", "null", "[" * 100_000, '{"id":7}'),
        *(f'{{"jsonrpc":"2.0","id":{number},"method":"ping"}}' for number in (r'"\ud800"', "1e400", "1.5")),
    ],
)
def test_a_line_that_is_no_message_is_answered_too(victim: Victim, line: str) -> None:
    with serving(victim) as server:
        heard = server.say(line)
        pong = server.say('{"jsonrpc":"2.0","id":8,"method":"ping"}')

    assert "error" in heard and heard["id"] in (None, 7)
    assert pong["id"] == 8
