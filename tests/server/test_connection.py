"""A conversation line by line, without a process: what is answered, how often, and in which order."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from sonde.server.connection import EditorConnection
from sonde.server.messages import HOST, RUNTIME, Hello

from .double import Told

SAMPLE = "export function shorten() {\n  1\n  2\n  3\n  return `${text.slice(0, limit - 1)}…`;\n}\nend\n"


class Host:
    """The editor's side: keeps every line and can answer requests."""

    def __init__(self, timeout_s: float = 60.0, give_up_s: float = 60.0) -> None:
        self.queue: queue.Queue[dict[str, Any]] = queue.Queue()
        self.lines: list[bytes] = []
        self.connection = EditorConnection(
            Told(), self.take, hello=Hello(version="test"), timeout_s=timeout_s, give_up_s=give_up_s
        )

    def take(self, line: bytes) -> None:
        self.lines.append(line)
        self.queue.put(json.loads(line))

    def say(self, **message: Any) -> None:
        self.connection.feed(json.dumps(message).encode())

    def task(self, prompt: str, task_id: str = "t1") -> None:
        self.say(type="new_task", id=task_id, prompt=prompt, workspace="/w")

    def until(self, kind: str) -> dict[str, Any]:
        """The next message of a type."""
        while True:
            message = self.queue.get(timeout=60)
            if message["type"] == kind:
                return message


@pytest.fixture
def host() -> Iterator[Host]:
    host = Host()
    yield host
    assert host.connection.close()


def test_hello_is_the_first_line(host: Host) -> None:
    first = json.loads(host.lines[0])

    assert (first["type"], first["seq"], first["protocol"]) == ("hello", 1, "1.0")


@pytest.mark.requirement(50)
@pytest.mark.parametrize(
    "line",
    [b"not json", b"[1]", b'"text"', b"null", b"12", b"NaN", b"\xff\xfe", b"{", b'{"type": 1}', b"{}", b'{"type":"hello"}',
     b"[" * 100_000, b"9" * 5000, b'{"type":"hello","id":[1]}', b'{"type":"hello","id":true}', b'{"type":"hello","id":""}'],
)  # fmt: skip
def test_a_line_that_is_no_message_is_answered_by_one_recoverable_error(host: Host, line: bytes) -> None:
    before = len(host.lines)

    host.connection.feed(line)

    answers = [json.loads(answer) for answer in host.lines[before:]]
    assert [(a["type"], a["id"], a["recoverable"]) for a in answers] == [("error", None, True)]


@pytest.mark.requirement(60)
@pytest.mark.parametrize(
    ("line", "carried"),
    [
        (b'{"id":"x"}', "x"),
        (b'{"type":"completion","id":"x"}', "x"),
        (b'{"type":"cancel","id":"nobody"}', "nobody"),
        (b'{"type":"tool.result","id":"r","ok":true}', "r"),
        (b'{"type":"tool.result","id":"r","ok":"perhaps"}', "r"),
        (b'{"type":"hello","id":7}', "7"),
        (b'{"type":"hello","id":"\\ud800"}', "\\ud800"),
    ],
)
def test_an_error_about_a_line_with_an_id_carries_it(host: Host, line: bytes, carried: str) -> None:
    """Source document: error: { id, error, recoverable }."""
    before = len(host.lines)

    host.connection.feed(line)

    answers = [json.loads(answer) for answer in host.lines[before:]]
    assert [(a["type"], a["id"], a["recoverable"]) for a in answers] == [("error", carried, True)]


@pytest.mark.requirement(59)
@pytest.mark.parametrize(
    "fields",
    [{}, {"prompt": "x"}, {"prompt": "", "workspace": "/w"}, {"prompt": 3, "workspace": "/w"},
     {"prompt": "x", "workspace": "/w", "limits": {"maxDepth": -1}}, {"prompt": "x", "workspace": "/w", "limits": "none"}],
)  # fmt: skip
def test_a_malformed_task_with_an_id_gets_its_completion_and_may_be_sent_again(
    host: Host, fields: dict[str, Any]
) -> None:
    """Source document: completion: { id, status, summary, citations[] }; a host waits for it."""
    host.say(type="new_task", id="t", **fields)

    assert host.until("error")["id"] == "t"
    done = host.until("completion")
    assert (done["id"], done["status"], done["citations"]) == ("t", "failed", [])
    host.task("echo fine", "t")
    assert host.until("completion")["summary"] == "fine"


def test_a_malformed_task_with_the_id_of_a_running_one_does_not_end_that(host: Host) -> None:
    host.task("wait", "t")
    host.say(type="new_task", id="t", prompt="x")
    host.say(type="new_task", id="t", prompt="x", workspace="/w")
    assert [host.until("error")["code"], host.until("error")["code"]] == ["BAD_FIELD", "REFUSED_TASK"]

    host.say(type="cancel", id="t")

    assert host.until("completion")["status"] == "cancelled"
    assert [json.loads(line)["type"] for line in host.lines].count("completion") == 1


@pytest.mark.requirement(51)
@pytest.mark.parametrize(
    "fields", [{}, {"id": ""}, {"id": 3}, {"id": "t"}, {"id": "t", "prompt": "x"}, {"id": "t", "prompt": "", "workspace": "/w"},
               {"id": "t", "prompt": "\ud800", "workspace": "/w"},
               {"id": "t", "prompt": "x", "workspace": "/w", "limits": {"maxDepth": -1}}],
)  # fmt: skip
def test_a_task_with_bad_fields_is_answered_by_one_recoverable_error(host: Host, fields: dict[str, Any]) -> None:
    host.say(type="new_task", **fields)

    assert host.until("error")["recoverable"] is True


@settings(max_examples=60, deadline=None)
@given(lines=st.lists(st.one_of(st.binary(max_size=40), st.text(max_size=40).map(str.encode)), max_size=20))
def test_random_lines_never_break_the_conversation(lines: list[bytes]) -> None:
    host = Host()
    for line in lines:
        host.connection.feed(line)
    host.task("echo fine")

    assert host.until("completion")["summary"] == "fine"
    assert sum(json.loads(line)["type"] == "error" for line in host.lines) == len(lines)


def answer(host: Host, request: dict[str, Any], **output: Any) -> None:
    host.say(type="tool.result", id=request["id"], ok=True, output=output)


def play_demo(host: Host, applied: bool = True) -> dict[str, Any]:
    """Answer every request of the demo as an editor would; the completion."""
    while True:
        message = host.queue.get(timeout=60)
        match message["type"], message.get("name"):
            case "context.read", _:
                start = message.get("startLine") or 1
                answer(
                    host,
                    message,
                    content="normalizeWhitespace",
                    startLine=start,
                    endLine=message.get("endLine") or start,
                )
            case "context.search", _:
                answer(host, message, matches=[{"path": "sample.test.ts", "line": 1, "text": "describe"}])
            case "tool.request", "list_files":
                answer(host, message, files=["sample.ts", "sample.test.ts"])
            case "tool.request", "read_file":
                text = (
                    'import { shorten } from "./sample";\ndescribe("shorten", () => {\n'
                    if "test" in message["params"]["path"]
                    else SAMPLE
                )
                answer(host, message, content=text, startLine=1, endLine=7)
            case "tool.request", _:
                answer(
                    host, message, applied=applied, summary="done" if applied else "the user rejected this change: no"
                )
            case "completion", _:
                return message
            case _:
                pass


@pytest.mark.requirement(48)
@pytest.mark.requirement(61)
def test_the_demo_tells_everything_it_does_in_order(host: Host) -> None:
    host.task("demo")

    done = play_demo(host)

    assert done["status"] == "succeeded"
    assert done["citations"] == [{"path": "sample.ts", "startLine": 1, "endLine": 7}]
    told = [json.loads(line) for line in host.lines[1:]]
    assert [m["seq"] for m in told] == list(range(2, len(told) + 2))
    assert {m["taskId"] for m in told} == {"t1"}
    kinds = [m.get("name") or m["type"] for m in told if m["type"] != "progress"]
    assert kinds == [
        "list_files", "context.read", "context.search", "subcall.start", "assistant.message", "assistant.message", "subcall.end",
        "read_file", "read_file", "apply_patch", "context.read", "completion",
    ]  # fmt: skip
    requests = [m["id"] for m in told if m["type"] in ("context.read", "context.search", "tool.request")]
    assert len(set(requests)) == len(requests)


@pytest.mark.requirement(54)
@pytest.mark.requirement(55)
@pytest.mark.requirement(61)
def test_subcalls_form_a_tree_by_parent_id(host: Host) -> None:
    host.task("demo")
    play_demo(host)

    told = [json.loads(line) for line in host.lines[1:]]
    known = {"t1"} | {m["id"] for m in told if m["type"] == "subcall.start"}
    assert all(m["parentId"] in known for m in told if m["type"] != "completion")
    assert next(m for m in told if m["type"] == "subcall.start")["parentId"] == "t1"
    assert next(m for m in told if m["type"] == "assistant.message")["parentId"] == "t1.s1"


@pytest.mark.requirement(51, 52, 53, 54, 55, 56, 57, 58, 59, 60)
@pytest.mark.parametrize("number", range(51, 61))
def test_each_event_type_of_the_document_is_in_the_union(number: int) -> None:
    samples: dict[int, dict[str, Any]] = {
        51: {"type": "new_task", "id": "1", "prompt": "p", "workspace": "/w"},
        52: {"type": "context.read", "id": "1", "path": "a", "startLine": 1, "endLine": 2},
        53: {"type": "context.search", "id": "1", "query": "q", "path": "a"},
        54: {"type": "subcall.start", "id": "1", "parentId": "0", "intent": "i", "scope": "s"},
        55: {"type": "subcall.end", "id": "1", "parentId": "0", "summary": "s", "citations": []},
        56: {"type": "tool.request", "id": "1", "name": "apply_patch", "params": {"patch": ""}},
        57: {"type": "tool.result", "id": "1", "ok": False, "output": None, "error": {"code": "X", "message": "m"}},
        58: {"type": "assistant.message", "id": "1", "content": "c", "partial": True},
        59: {"type": "completion", "id": "1", "status": "succeeded", "summary": "s", "citations": []},
        60: {"type": "error", "id": "1", "error": "e", "recoverable": False},
    }
    union = HOST if number in (51, 57) else RUNTIME

    assert union.validate_python(samples[number]).type == samples[number]["type"]


def test_a_rejected_patch_ends_partial_with_the_reason(host: Host) -> None:
    host.task("demo")

    done = play_demo(host, applied=False)

    assert done["status"] == "partial"
    assert "no" in done["summary"]


def test_a_failing_task_is_told_once_as_error_and_once_as_completion(host: Host) -> None:
    host.task("fail the tool broke")

    assert host.until("error") | {"seq": 0} == {
        "type": "error", "id": "t1", "taskId": "t1", "parentId": "t1", "error": "the tool broke", "recoverable": False,
        "code": "TOOL_CALL_FAILED", "seq": 0,
    }  # fmt: skip
    assert host.until("completion")["status"] == "failed"


@pytest.mark.requirement(61)
def test_success_without_citations_does_not_count(host: Host) -> None:
    host.task("silent")

    assert host.until("completion")["status"] == "partial"


def test_cancel_ends_a_task_with_one_completion_and_answers_its_open_request(host: Host) -> None:
    host.task("demo")
    request = host.until("tool.request")

    host.say(type="cancel", id="t1")

    assert host.until("completion")["status"] == "cancelled"
    before = len(host.lines)
    answer(host, request, files=[])  # late, and no news
    host.say(type="cancel", id="t1")
    assert len(host.lines) == before


def test_a_cancelled_task_that_does_not_stop_is_given_up_with_one_completion() -> None:
    host = Host(give_up_s=0.05)
    host.task("deaf")
    host.say(type="cancel", id="t1")

    assert host.until("completion")["status"] == "cancelled"
    host.task("echo next", "t2")
    assert host.until("completion")["summary"] == "next"


@pytest.mark.requirement(61)
def test_a_second_answer_to_one_request_changes_nothing(host: Host) -> None:
    host.task("demo")
    request = host.until("tool.request")

    answer(host, request, files=["sample.ts"])
    answer(host, request, files=["other.ts"])

    assert play_demo(host)["status"] == "succeeded"
    assert not any(json.loads(line)["type"] == "error" for line in host.lines)


def test_an_editor_that_does_not_answer_is_a_failed_tool_not_a_hang() -> None:
    host = Host(timeout_s=0.05)
    host.task("demo")

    assert "did not answer" in host.until("error")["error"]
    assert host.until("completion")["status"] == "failed"


@pytest.mark.requirement(57)
@pytest.mark.parametrize(
    ("fields", "heard"),
    [
        ({"ok": False, "error": "disk on fire"}, "disk on fire"),
        ({"ok": False, "output": None, "error": {"message": "disk on fire"}}, "disk on fire"),
        ({"ok": False, "error": {"code": "EIO"}}, "EIO"),
        ({"ok": False, "error": {"reason": "on fire", "at": 3}}, "on fire"),
        ({"ok": False, "error": 17}, "17"),
        ({"ok": False}, "without a reason"),
        ({"ok": "perhaps"}, "not understood"),
        ({"output": {"files": []}}, "not understood"),
        ({"ok": True, "output": {"files": "a"}}, "no list"),
        ({"ok": True}, "no list"),
    ],
)
def test_a_failed_or_odd_result_is_understood_at_once(host: Host, fields: dict[str, Any], heard: str) -> None:
    """Source document: tool.result: { id, ok, output, error? }; "Silent failures: tool.result must include structured error"."""
    host.task("demo")
    request = host.until("tool.request")

    host.say(type="tool.result", id=request["id"], **fields)

    done = host.until("completion")
    assert done["status"] == "failed"
    assert heard in done["summary"]


def test_a_result_that_is_too_long_to_be_read_fails_its_request_at_once(host: Host) -> None:
    host.task("demo")
    request = host.until("tool.request")

    host.connection.refuse_long(f'{{"type":"tool.result","id":"{request["id"]}","ok":true,"output":"x'.encode(), 99)

    assert host.until("error")["id"] == request["id"]
    assert "longer than 99 bytes" in host.until("completion")["summary"]


@pytest.mark.parametrize("start", [b"", b"{", b'{"type":"new_task","id":"', b'{"output":{"id":"t1.r1"}', b"\xff" * 50])
def test_a_line_that_is_too_long_and_does_not_begin_with_its_id_is_about_nobody(host: Host, start: bytes) -> None:
    host.connection.refuse_long(start, 99)

    assert host.until("error")["id"] is None


def test_a_task_that_is_too_long_to_be_read_gets_its_completion(host: Host) -> None:
    host.connection.refuse_long(b'{"type": "new_task", "id": "t9", "prompt": "', 99)

    assert host.until("completion")["id"] == "t9"


def test_an_answer_nobody_asked_for_is_an_error(host: Host) -> None:
    host.say(type="tool.result", id="x", ok=True)

    assert host.until("error")["code"] == "UNKNOWN_REQUEST"


def test_cancelling_an_unknown_task_is_an_error(host: Host) -> None:
    host.say(type="cancel", id="nope")

    assert host.until("error")["code"] == "UNKNOWN_TASK"


def test_two_tasks_in_a_row_and_an_id_used_twice(host: Host) -> None:
    host.task("echo one", "a")
    assert host.until("completion")["summary"] == "one"
    host.task("echo two", "b")
    assert host.until("completion")["summary"] == "two"
    host.task("echo three", "a")
    assert host.until("error")["code"] == "REFUSED_TASK"
    assert host.until("completion")["status"] == "failed"


def test_a_fifth_task_at_once_is_refused(host: Host) -> None:
    for number in range(5):
        host.task("wait", f"t{number}")

    assert host.until("error")["code"] == "REFUSED_TASK"
    done = host.until("completion")
    assert (done["id"], done["status"]) == ("t4", "failed")


def test_of_ten_thousand_events_none_is_lost(host: Host) -> None:
    host.task("flood 10000")
    host.until("completion")

    assert [json.loads(line)["seq"] for line in host.lines] == list(range(1, 10_003))


def test_the_first_event_does_not_wait_for_the_work(host: Host) -> None:
    host.task("demo")

    assert host.until("progress")["id"] == "t1"
    assert "completion" not in [json.loads(line)["type"] for line in host.lines]
    host.say(type="cancel", id="t1")


@pytest.mark.requirement(61)
def test_a_request_longer_than_a_line_may_be_fails_instead_of_waiting_for_ever(host: Host) -> None:
    host.task("command 33554432")

    assert "longer than a line" in host.until("error")["error"]
    assert host.until("completion")["status"] == "failed"
    assert max(map(len, host.lines)) <= 33_554_432


def test_the_longest_id_of_a_task_is_good_for_all_that_happens_in_it(host: Host) -> None:
    host.task("demo", "t" * 200)
    assert play_demo(host)["status"] == "succeeded"

    host.task("demo", "t" * 201)
    assert host.until("error")["code"] == "BAD_FIELD"


def test_an_error_of_a_tool_that_is_nested_too_deeply_is_refused_and_the_next_line_is_read(host: Host) -> None:
    line = '{"type": "tool.result", "id": "t1.r1", "ok": false, "error": {"a": DEEP}}'
    for depth in range(900, 1000, 5):  # where Python gives up depends on its version and on who calls
        host.connection.feed(line.replace("DEEP", "[" * depth + "]" * depth).encode())

    host.task("echo fine", "t")
    assert host.until("completion")["summary"] == "fine"
    assert [json.loads(line)["type"] for line in host.lines].count("error") == len(range(900, 1000, 5))


@pytest.mark.requirement(61)
def test_at_the_end_tasks_that_do_not_stop_get_their_completions_too() -> None:
    host = Host()
    for number in range(4):
        host.task("deaf", f"t{number}")

    assert not host.connection.close(0.1)

    told = [json.loads(line) for line in host.lines]
    assert sorted((m["id"], m["status"]) for m in told if m["type"] == "completion") == [
        (f"t{number}", "cancelled") for number in range(4)
    ]
