"""The source document sentence by sentence, as its author would try it: a host that knows only the document's own message fields."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import sonde
from sonde.api.settings import Settings
from sonde.contexts.workspace import accept
from sonde.core.canonical import sha256_text
from sonde.errors import ConfigError
from sonde.models.base import Secret
from sonde.testing import ScriptedServer, SeenRequest

from .document_host import REQUESTS, HostInProcess, HostOfProcess

ROOT = Path(__file__).parents[2]
DEMO = "Add a function that normalizes whitespace in sample.ts and update its test."
NUMBERS = "".join(f"const value{number} = {number};\n" for number in range(1, 101))
CHANGE = '''print(apply_patch("""*** Begin Patch
*** Update File: a.ts
@@
-const value12 = 12;
+const value12 = 13;
*** End Patch"""))'''
LOOK = 'print(read_file("a.ts", 10, 14)["content"])'
DONE = 'FINAL("value12 is 13 now. [a.ts:12]")'

Start = Callable[..., HostInProcess]


class Script:
    """What the model says: the root by its turn, a sub-call by a piece of its task."""

    def __init__(self, root: Sequence[str], children: Mapping[str, Sequence[str]] | None = None) -> None:
        self.root = root
        self.children = children or {}
        self.heard: list[str] = []

    def __call__(self, seen: SeenRequest) -> str:
        messages = seen.body["messages"]
        self.heard.append("\n".join(message["content"] for message in messages))
        task = next(message["content"] for message in messages if message["role"] == "user")
        said = sum(message["role"] == "assistant" for message in messages)
        child = next((replies for key, replies in self.children.items() if key in task), None)
        if child is not None:
            return child[min(said, len(child) - 1)]
        return f"```python\n{self.root[min(said, len(self.root) - 1)]}\n```"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """A host whose runtime has this script for a model."""
    open_servers: list[ScriptedServer] = []

    def started(script: Script, files: Mapping[str, str] | None = None, **more: Any) -> HostInProcess:
        server = ScriptedServer(script).start()
        open_servers.append(server)
        folder = tmp_path / "work"
        folder.mkdir()
        for name, text in (files or {"a.ts": NUMBERS}).items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)
        settings = Settings(
            model="openai:scripted", base_url=server.base_url, api_key=Secret("k"), runs_dir=tmp_path / "runs"
        )
        return HostInProcess(folder, settings, **more)

    yield started
    for server in open_servers:
        server.close()


def assert_proved(host: HostInProcess, citations: Sequence[Mapping[str, Any]]) -> None:
    """Every citation has the hash of the lines as they are in the file now."""
    assert citations
    for each in citations:
        lines = (host.folder / each["path"]).read_text().splitlines()[each["startLine"] - 1 : each["endLine"]]
        assert each["hash"] == sha256_text("\n".join(lines))


@pytest.mark.long
@pytest.mark.requirement(71, 72)
def test_the_demo_task_succeeds_at_its_default_limits_with_the_required_trace(tmp_path: Path) -> None:
    """ "Required trace: read_file for sample.ts, subcall with change plan, tool.request apply_patch, read_file verify changes,
    completion with summary + citations"; "Patch applies cleanly"; "Final file state matches expected change".
    """
    folder = shutil.copytree(ROOT / "examples/demo-workspace", tmp_path / "demo")
    model = f"command:{sys.executable} {ROOT / 'tests/server/scripted_model.py'}"
    environ = {**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}
    host = HostOfProcess(folder, "--model", model, environ=environ)

    done = host.task(DEMO)

    assert host.close() == 0
    assert done["status"] == "succeeded"
    assert "normalizeWhitespace" in (folder / "sample.ts").read_text()
    assert "normalizeWhitespace" in (folder / "sample.test.ts").read_text()
    kinds = [each.get("name") or each["type"] for each in host.heard if each["type"] not in ("progress", "hello")]
    read, planned, patched = (kinds.index(kind) for kind in ("context.read", "subcall.start", "apply_patch"))
    assert read < planned < patched < kinds.index("context.read", patched) < kinds.index("completion") == len(kinds) - 1
    assert {each["path"] for each in done["citations"]} == {"sample.ts", "sample.test.ts"}


@pytest.mark.requirement(54, 55, 61)
def test_recursion_is_a_tree_of_depth_two_with_scopes_and_citations(start: Start) -> None:
    """ "For each sub-question: Read minimal context chunk. Subcall the model on that chunk. Extract claims + citations";
    "subcall events MUST form a tree via parentId"; "maxDepth: 2".
    """
    root = [
        'part = delegate_subcall("What is value12?", context={"paths": ["a.ts:10-20"]})\nprint(part["summary"])',
        'FINAL("value12 is twelve. [a.ts:12]")',
    ]
    child = ['```python\nprint(llm_query("spell 12"))\n```', "It is twelve [a.ts:12]"]
    script = Script(root, {"What is value12?": child, "spell 12": ["twelve"]})
    host = start(script)

    done = host.task("What is value12? Change nothing.".replace("?", ","))

    outer, inner = host.of("subcall.start")
    assert (outer["parentId"], inner["parentId"]) == ("task", outer["id"])
    assert (outer["scope"], inner["scope"]) == ("a.ts:10-20", "its prompt only")
    reads = [(each["parentId"], each["startLine"], each["endLine"]) for each in host.of("context.read")]
    assert reads[0] == (outer["id"], 10, 20)
    ends = {each["id"]: each for each in host.of("subcall.end")}
    assert [(c["path"], c["startLine"], c["endLine"]) for c in ends[outer["id"]]["citations"]] == [("a.ts", 12, 12)]
    assert_proved(host, ends[outer["id"]]["citations"])
    assert done["status"] == "succeeded"
    assert "12 const value12 = 12;" in script.heard[1]


@pytest.mark.requirement(68)
def test_a_long_file_at_the_default_limits_is_partial_with_citations_and_the_limit_and_succeeds_with_larger_ones(
    start: Start,
) -> None:
    """ "maxTotalTokens: 6000"; "completion MUST include citations for any final claims"."""
    text = "".join(Path(argparse.__file__).read_text().splitlines(keepends=True)[:775])
    line = text.splitlines().index("SUPPRESS = '==SUPPRESS=='") + 1
    reads = 'for start in range({0}, {0} + 200, 100):\n    print(read_file("options.py", start, start + 99)["content"])'
    change = CHANGE.replace("a.ts", "options.py").replace("const value12 = 12;", "SUPPRESS = '==SUPPRESS=='")
    change = change.replace("const value12 = 13;", "SUPPRESS = '==HIDDEN=='")
    script = Script(
        [reads.format(1), reads.format(201), reads.format(401), change,
         f'print(read_file("options.py", {line}, {line})["content"])', f'FINAL("It is hidden. [options.py:{line}]")']
    )  # fmt: skip
    host = start(script, {"options.py": text})

    small = host.task("Hide suppressed options under ==HIDDEN==")
    assert_proved(host, small["citations"])
    host.say(type="new_task", id="large", prompt="Hide", workspace="", limits={"maxTotalTokens": 100_000})
    large = host.serve("large")

    assert small["status"] == "partial"
    assert "max_tokens_total" in small["summary"]
    assert large["status"] == "succeeded"
    assert "SUPPRESS = '==HIDDEN=='" in (host.folder / "options.py").read_text()


@pytest.mark.requirement(68)
def test_a_long_file_is_changed_at_the_default_limits_by_small_reads_and_a_sub_call(start: Start) -> None:
    """ "RLM runtime performs subcall(s) on small slices"."""
    text = "".join(Path(argparse.__file__).read_text().splitlines(keepends=True)[:775])
    line = text.splitlines().index("SUPPRESS = '==SUPPRESS=='") + 1
    change = CHANGE.replace("a.ts", "options.py").replace("const value12 = 12;", "SUPPRESS = '==SUPPRESS=='")
    change = change.replace("const value12 = 13;", "SUPPRESS = '==HIDDEN=='")
    places = f'{{"paths": ["options.py:{line - 5}-{line + 20}"]}}'
    script = Script(
        ['hits = search("==SUPPRESS==", "options.py")\nprint(hits)',
         f'print(delegate_subcall("Is SUPPRESS set once?", context={places})["summary"])', change,
         f'print(read_file("options.py", {line}, {line})["content"])', f'FINAL("It is hidden. [options.py:{line}]")'],
        {"Is SUPPRESS set once?": [f"Yes [options.py:{line}]"]},
    )  # fmt: skip

    done = start(script, {"options.py": text}).task("Hide suppressed options under ==HIDDEN==")

    assert done["status"] == "succeeded"
    assert [(each["startLine"], each["endLine"]) for each in done["citations"]] == [(line, line)]


@pytest.mark.requirement(68)
def test_a_child_gets_as_many_lines_as_leave_room_for_an_answer(start: Start) -> None:
    """ "maxTokensPerSubcall: 1000"."""
    ask = 'print(delegate_subcall("Where is value3?", context={"paths": ["a.ts:1-190"]})["summary"])'
    script = Script([ask, 'FINAL("In line 3. [a.ts:3]")'], {"Where is value3?": ["In line 3 [a.ts:3]"]})
    text = "".join(f"const value{number} = {number}; // some words to make it longer\n" for number in range(1, 401))

    done = start(script, {"a.ts": text}).task("Where is value3, in a.ts")

    assert done["status"] == "succeeded"
    assert "-190 do not fit in the budget of this sub-call" in script.heard[1]
    assert len(script.heard[1]) < 4000


@pytest.mark.requirement(68)
def test_a_child_that_a_limit_ended_does_not_spoil_a_task_that_is_proved_otherwise(start: Start) -> None:
    """ "Unbounded recursion: enforce guardrails and fail fast"."""
    ask = 'r = delegate_subcall("Talk")\nprint(r["status"])'
    script = Script(
        [ask, LOOK, 'FINAL("value12 is there. [a.ts:12]")'], {"Talk": ["```python\nprint('x' * 3000)\n```"]}
    )

    done = start(script).task("Look")

    assert "terminated_budget" in script.heard[-1]
    assert done["status"] == "succeeded"


@pytest.mark.requirement(61)
def test_every_request_and_every_message_comes_once_and_reads_after_the_end_do_not_repeat(start: Start) -> None:
    """ "Every tool.request MUST yield exactly one tool.result"; "Every context access MUST be recorded as an event"."""
    host = start(Script([LOOK, CHANGE, LOOK, 'FINAL("value12 is 13 now. [a.ts:12] [a.ts:11-13]")']))

    done = host.task("Make value12 thirteen")

    assert done["status"] == "succeeded"
    asked = [each["id"] for each in host.heard if each["type"] in REQUESTS]
    assert len(set(asked)) == len(asked)
    said = [each["content"] for each in host.of("assistant.message")]
    assert len(set(said)) == len(said) - 1  # the script itself looks twice in the same words
    last = max(number for number, each in enumerate(host.heard) if each["type"] == "assistant.message")
    after = [each["path"] for each in host.heard[last:] if each["type"] == "context.read"]
    assert after == ["a.ts"]


@pytest.mark.requirement(57)
@pytest.mark.parametrize("error", ["EIO: disk on fire", {"message": "disk on fire"}, {"why": "disk on fire"}])
def test_a_failed_result_reaches_the_model_at_once_and_the_task_goes_on(start: Start, error: Any) -> None:
    """ "Silent failures: tool.result must include structured error"."""

    def broken(request: dict[str, Any]) -> dict[str, Any] | None:
        return {"ok": False, "output": None, "error": error} if request.get("path") == "b.ts" else None

    script = Script(['print(read_file("b.ts"))', LOOK, 'FINAL("b.ts is broken. [a.ts:12]")'])

    done = start(script, answer=broken).task("Look at b.ts")

    assert done["status"] == "succeeded"
    assert "disk on fire" in script.heard[1]


@pytest.mark.requirement(64)
def test_a_new_file_can_be_added_through_a_host_that_has_no_error_codes(start: Start) -> None:
    add = 'print(apply_patch("""*** Begin Patch\n*** Add File: b.ts\n+const b = 1;\n*** End Patch"""))'
    host = start(Script([LOOK, add, 'print(read_file("b.ts")["content"])', 'FINAL("b.ts is there. [b.ts:1]")']))

    assert host.task("Add b.ts")["status"] == "succeeded"
    assert (host.folder / "b.ts").read_text() == "const b = 1;\n"


@pytest.mark.long
@pytest.mark.requirement(65)
@pytest.mark.parametrize("command", ["rm -rf .", "npm testing", "npm test; rm a.ts", "sh -c 'rm a.ts'", "git push"])
def test_a_command_that_is_not_allowed_is_refused_before_anybody_is_asked(start: Start, command: str) -> None:
    """ "Tools are capability-guarded and return structured results"."""
    script = Script([f"print(execute_command({command!r}))", LOOK, 'FINAL("no. [a.ts:12]")'])
    host = start(script, commands=["npm test", "git status"])

    host.task("Clean up")

    assert "is not an allowed command" in script.heard[1]
    assert not [each for each in host.of("tool.request") if each["name"] == "execute_command"]


@pytest.mark.requirement(65)
def test_an_allowed_command_goes_to_the_host_and_runs_in_the_root_only(start: Start) -> None:
    calls = 'print(execute_command("npm test -- a"))\nprint(execute_command("npm test", "sub"))'
    script = Script([calls, LOOK, 'FINAL("ran. [a.ts:12]")'])
    host = start(script, commands=["npm test"])

    host.task("Run the tests")

    assert host.commands == ["npm test -- a"]
    assert "commands run in the root" in script.heard[1]


@pytest.mark.requirement(64)
def test_a_task_whose_patches_were_all_rejected_is_partial_with_the_reason(start: Start) -> None:
    def never(request: dict[str, Any]) -> dict[str, Any] | None:
        no = {"applied": False, "summary": "the tabs are wrong"}
        return {"ok": True, "output": no} if request.get("name") == "apply_patch" else None

    script = Script([LOOK, CHANGE, 'FINAL("All done. [a.ts:12]")'])
    host = start(script, answer=never)

    done = host.task("Make value12 thirteen")

    assert done["status"] == "partial"
    assert "no proposed change was applied: the tabs are wrong" in done["summary"]
    assert_proved(host, done["citations"])
    assert len(script.heard) == 3  # the user has spoken, so the model is not asked again


@pytest.mark.requirement(64)
def test_a_task_whose_patches_did_not_fit_is_partial_unless_one_does(start: Start) -> None:
    wrong = CHANGE.replace("value12 = 12", "value12 = 99")

    done = start(Script([LOOK, wrong, 'FINAL("All done. [a.ts:12]")'])).task("Make value12 thirteen")

    assert done["status"] == "partial"
    assert "no proposed change was applied: patch refused" in done["summary"]


@pytest.mark.parametrize("patch", ["", CHANGE.replace("= 13", "= 12")], ids=["no patch", "nothing to change"])
def test_a_task_that_needs_no_change_may_succeed(start: Start, patch: str) -> None:
    script = Script([LOOK, patch or LOOK, 'FINAL("value12 is twelve already. [a.ts:12]")'])

    assert start(script).task("Make value12 twelve")["status"] == "succeeded"


@pytest.mark.requirement(61, 68)
def test_what_was_read_before_a_limit_and_has_changed_since_is_not_cited(start: Start) -> None:
    host = start(Script([LOOK, CHANGE, "print('x' * 9000)", "print('x' * 9000)", "print('x' * 9000)", DONE]))

    done = host.task("Make value12 thirteen", limits={"maxTotalTokens": 6000})

    assert done["status"] == "partial"
    assert "Changed so far: a.ts" in done["summary"]
    assert done["citations"] == []


@pytest.mark.long
@pytest.mark.requirement("O17")
@pytest.mark.parametrize(
    ("code", "asked"),
    [
        ('print(read_file("b.ts")["content"])', 0),
        ('print(read_file("a.ts", 1, 30)["content"])', 0),
        ('print(read_file("a.ts", 21, 21)["content"])', 0),
        ('print(read_file("sub/../b.ts")["content"])', 0),
        ('print(search("secret", "b.ts"))', 0),
        ('print(search("secret"))', 1),
        ("print(list_files())", 1),
        ('print(apply_patch("*** Begin Patch\\n*** Delete File: a.ts\\n*** End Patch"))', 0),
        ('print(execute_command("npm test"))', 0),
        ('print(delegate_subcall("x", context={"paths": ["b.ts"]}))', 0),
    ],
)
def test_a_child_that_reaches_outside_its_scope_gets_nothing_and_nobody_is_asked(
    start: Start, code: str, asked: int
) -> None:
    """ "All access is explicit"; "Recursion is bounded and budgeted"; `scope` is enforced, not only told."""
    root = [
        'print(delegate_subcall("steal it", context={"paths": ["a.ts:10-20"]})["summary"])',
        LOOK,
        'FINAL("x. [a.ts:12]")',
    ]
    script = Script(root, {"steal it": [f"```python\n{code}\n```", "Nothing [b.ts:1]", "Nothing"]})
    host = start(script, {"a.ts": NUMBERS, "b.ts": "a secret\n"}, commands=["npm test"])

    done = host.task("Look")

    child = host.of("subcall.start")[0]["id"]
    requests = [each for each in host.heard if each["type"] in REQUESTS and each.get("parentId") == child]
    assert [each.get("path") for each in requests[:1]] == ["a.ts"]  # the lines that it was given
    assert len([each for each in requests[1:] if each["type"] != "context.read" or each["path"] != "a.ts"]) == asked
    assert not any("a secret" in heard for heard in script.heard)
    assert done["citations"] and {each["path"] for each in done["citations"]} == {"a.ts"}
    assert host.of("subcall.end")[0]["citations"] == []


@pytest.mark.requirement("O17")
def test_what_a_host_sends_beyond_the_scope_of_a_child_is_dropped(start: Start) -> None:
    def talkative(request: dict[str, Any]) -> dict[str, Any] | None:
        if request["type"] == "context.read":
            return {"ok": True, "output": {"content": "a secret\n" * 9 + NUMBERS, "startLine": 1, "endLine": 109}}
        matches = [{"path": path, "line": line, "text": "a secret"} for path in ("a.ts", "b.ts") for line in (1, 99)]
        return {"ok": True, "output": {"matches": matches}} if request["type"] == "context.search" else None

    child = ['```python\nprint(search("value"), read_file("a.ts", 10, 12))\n```', "It is [a.ts:12]"]
    root = ['print(delegate_subcall("look", context={"paths": ["a.ts:10-20"]})["summary"])', 'FINAL("x. [a.ts:12]")']
    script = Script(root, {"look": child})

    start(script, answer=talkative).task("Do")

    assert not any("a secret" in heard for heard in script.heard)


@pytest.mark.long
@pytest.mark.requirement("O17")
@pytest.mark.parametrize(
    "output",
    [
        {"content": "x" * 2_000_000, "startLine": 1, "endLine": 1},
        {"content": "line\n" * 100_000, "startLine": 1, "endLine": 1},
        {"content": "x", "startLine": -5, "endLine": 10**30},
        {"content": "x", "startLine": True, "endLine": "7"},
        {"content": "\ud800", "startLine": 1, "endLine": 1},
        {"content": ["x"], "startLine": 1, "endLine": 1},
        {"content": None},
        {},
        "only a text",
        [1, 2],
        17,
    ],
    ids=["long", "many", "numbers", "kinds", "half", "list", "null", "empty", "text", "rows", "number"],
)
def test_a_hostile_result_ends_in_one_completion_and_proves_no_lines_that_it_did_not_hold(
    start: Start, output: Any
) -> None:
    def hostile(request: dict[str, Any]) -> dict[str, Any] | None:
        return {"ok": True, "output": output} if request["type"] == "context.read" else None

    host = start(Script([LOOK, 'FINAL("x. [a.ts:12]")']), answer=hostile)

    done = host.task("Look")

    assert done["status"] in ("partial", "failed")
    assert not done["citations"]


def test_what_an_editor_wrote_is_taken_back_in_its_folder(start: Start) -> None:
    host = start(Script([LOOK, CHANGE, LOOK, DONE]))
    assert host.task("Make value12 13")["status"] == "succeeded"
    assert "value12 = 13" in (host.folder / "a.ts").read_text()

    done = sonde.undo("last", host.folder, approve=accept, runs_dir=host.folder.parent / "runs")

    assert done.applied and (host.folder / "a.ts").read_text() == NUMBERS


def test_an_edit_that_an_editor_refused_is_none_to_take_back(start: Start) -> None:
    def no(request: dict[str, Any]) -> dict[str, Any] | None:
        refused = {"ok": True, "output": {"applied": False, "summary": "not now"}}
        return refused if request.get("name") == "apply_patch" else None

    host = start(Script([LOOK, CHANGE, LOOK, DONE, DONE]), answer=no)
    host.task("Make value12 13")

    with pytest.raises(ConfigError, match="is left to take back"):
        sonde.undo("last", host.folder, approve=accept, runs_dir=host.folder.parent / "runs")
