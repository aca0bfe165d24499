"""What a call leaves behind: files, exit codes and events, on success, failure and interruption."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rlms_loop import CITED, Called, Loop, has_ended

from sonde.rlms.wrapper import invoke

pytestmark = pytest.mark.long


STATUS_FIELDS = {
    "generated_at",
    "status",
    "reason",
    "mode",
    "should_run",
    "error",
    "result_file",
    "summary_file",
    "metadata_file",
    "metrics",
}


@pytest.fixture
def loop(tmp_path: Path) -> Loop:
    return Loop(tmp_path, standalone="true")


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def events(loop: Loop) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (loop.tmp / "loops" / "demo" / "events.jsonl").read_text().splitlines()]


@pytest.mark.requirement(41)
@pytest.mark.requirement(44)
@pytest.mark.requirement("O15")
def test_a_good_call_leaves_the_whole_layout(loop: Loop) -> None:
    called = loop.shell(loop.replies("root", [CITED]), json="true")

    root = loop.tmp / "loops" / "demo" / "rlms"
    assert called.code == 0
    assert json.loads(called.stdout) == called.result
    assert called.result["ok"] is True
    assert {each.name for each in loop.output.iterdir()} == {
        "context-files.txt",
        "metadata.json",
        "result.json",
        "summary.md",
        "status.json",
        "worker-stderr.log",
        "runs",
    }
    status = read(loop.output / "status.json")
    assert set(status) == STATUS_FIELDS
    assert (status["status"], status["should_run"], status["error"]) == ("ok", True, None)
    assert status["metrics"]["file_count"] == 2
    assert read(root / "latest" / "planner.json") == called.result
    assert read(root / "latest" / "planner.status.json") == status
    assert (root / "latest" / "planner.md").read_text() == (loop.output / "summary.md").read_text()
    assert [(entry["role"], entry["iteration"], entry["status"]) for entry in read(root / "index.json")["entries"]] == [
        ("planner", 1, "ok")
    ]
    assert [(event["event"], event["status"]) for event in events(loop)] == [
        ("rlms_start", "started"),
        ("rlms_end", "ok"),
    ]


@pytest.mark.requirement(41)
def test_the_summary_has_head_highlights_and_citations(loop: Loop) -> None:
    loop.call(loop.replies("root", [f'append_highlight("first\\nsecond")\n{CITED}']))

    lines = (loop.output / "summary.md").read_text().splitlines()
    assert lines[0].startswith("# ")
    assert [line.partition(":")[0] for line in lines[2:7]] == ["- Generated", "- Loop", "- Role", "- Iteration", "- OK"]
    assert lines[7:] == [
        "",
        "## Highlights",
        "- first second",
        "",
        "## Citations",
        "- `src/a.py:1` [retry]: def pay(n): return retry(n)",
        "",
        "## Final",
        "pay retries",
    ]


def test_a_second_call_replaces_the_entry_of_its_role_and_iteration_only(loop: Loop) -> None:
    loop.call(loop.program("bad", "exit 3"))
    loop.call(loop.replies("root", [CITED]))
    loop.call(loop.replies("other", [CITED]), role="tester", output_dir=loop.output.parent / "tester")

    entries = read(loop.output.parent.parent / "index.json")["entries"]
    assert [(entry["role"], entry["status"]) for entry in entries] == [("planner", "ok"), ("tester", "ok")]


@pytest.mark.parametrize(
    ("flags", "error_code"),
    [
        ({"root_command_json": None}, "missing_root_command"),
        ({"root_command_json": "codex"}, "invalid_config"),
        ({"max_steps": "many"}, "invalid_config"),
        ({"max_depth": None}, "invalid_config"),
        ({"repo": "/no/such/folder"}, "invalid_config"),
        ({"context_file_list": "/no/such/list"}, "invalid_config"),
    ],
)
@pytest.mark.requirement(42)
def test_refused_flags_leave_the_files_of_a_failure_and_exit_with_2(
    loop: Loop, flags: dict[str, Any], error_code: str
) -> None:
    given: dict[str, Any] = {"root_command_json": '["true"]', **flags}

    called = loop.call(None, **given)

    assert called.code == 2
    assert called.result["error_code"] == error_code
    assert read(loop.output / "status.json")["status"] == "failed"
    assert error_code in (loop.output / "summary.md").read_text()
    assert read(loop.output.parent.parent / "latest" / "planner.json")["ok"] is False


def test_an_output_folder_outside_the_layout_holds_everything_itself(loop: Loop) -> None:
    output = loop.tmp / "out"

    loop.call(loop.replies("root", [CITED]), output_dir=output)

    assert {"latest", "index.json", "events.jsonl", "result.json"} <= {each.name for each in output.iterdir()}
    assert not (loop.tmp / "loops").exists()


def test_an_output_folder_that_cannot_be_made_is_a_wrong_configuration(loop: Loop) -> None:
    called = loop.shell(loop.replies("root", [CITED]), output_dir="/proc/no", json="true")

    assert called.code == 2
    assert json.loads(called.stdout)["error_code"] == "invalid_config"


def test_files_that_cannot_be_written_are_a_failure_with_words(loop: Loop) -> None:
    (loop.output / "result.json").mkdir(parents=True)

    called = loop.shell(loop.replies("root", [CITED]), json="true")

    assert called.code == 1
    assert json.loads(called.stdout)["error_code"] == "worker_failure"


def test_a_call_that_cannot_publish_its_result_says_so_in_every_file_it_leaves(loop: Loop) -> None:
    loop.output.parent.mkdir(parents=True)
    (loop.output.parent.parent / "latest").write_text("in the way")

    called = loop.call(loop.replies("root", [CITED]))

    assert called.code == 1
    assert called.result["error_code"] == "worker_failure"
    assert read(loop.output / "status.json")["status"] == "failed"


def test_a_missing_python_and_a_worker_that_says_nothing_have_their_own_classes(loop: Loop) -> None:
    flags = loop.flags(loop.replies("root", [CITED]))

    missing = invoke(flags, loop.environment(), python="/no/such/python")
    silent = invoke(flags, loop.environment(), python="/bin/true")

    assert missing["error_code"] == "missing_python"
    assert silent["error_code"] == "invalid_worker_output"
    assert read(loop.output / "result.json")["error_code"] == "invalid_worker_output"


@pytest.mark.parametrize("said", ["[]", '{"ok": true}', '{"ok": false, "error": "", "error_code": ""}', "[" * 100_000])
def test_what_a_worker_says_is_a_result_only_if_it_has_the_shape_of_one(loop: Loop, said: str) -> None:
    (loop.tmp / "said").write_text(said)
    python = loop.tmp / "python"
    python.write_text('#!/bin/sh\ncat "${0%/*}/said"\n')
    python.chmod(0o755)

    result = invoke(loop.flags(loop.replies("root", [CITED])), loop.environment(), str(python))

    assert result["error_code"] == "invalid_worker_output"


def test_a_worker_that_does_not_stop_by_itself_is_ended_from_outside(loop: Loop) -> None:
    stuck = loop.tmp / "python"
    stuck.write_text('#!/bin/sh\nsleep 600 &\necho $! > "$0.pid"\nwait\n')
    stuck.chmod(0o755)
    result = invoke(loop.flags(loop.replies("root", [CITED]), timeout_seconds=5), loop.environment(), str(stuck))

    assert result["error_code"] == "limit_exceeded"
    assert read(loop.output / "status.json")["error"] == "limit_exceeded"
    assert read(loop.output / "result.json")["stats"]["elapsed_seconds"] >= 5
    assert has_ended(Path(f"{stuck}.pid").read_text())


def start(loop: Loop) -> tuple[subprocess.Popen[bytes], str, str]:
    """A call whose root program hangs; the call, and the ids of that program and of the worker above it."""
    ready = loop.tmp / "ready"
    os.mkfifo(ready)
    root = loop.program("root", f'echo $$ $PPID > "{ready}"; sleep 600')
    call = subprocess.Popen(
        [sys.executable, "-m", "sonde", "rlms", *loop.words(root)], env=loop.environment(), stdout=-3, stderr=-3
    )
    program, launcher = ready.read_text().split()  # waits until the root program runs
    worker = Path(f"/proc/{launcher}/stat").read_text().rpartition(")")[2].split()[1]
    return call, program, worker


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_loop_that_stops_the_call_finds_the_files_and_no_process_left(loop: Loop, number: signal.Signals) -> None:
    call, program, _ = start(loop)

    call.send_signal(number)

    assert call.wait(60) == 1
    assert read(loop.output / "result.json")["error_code"] == "worker_failure"
    assert has_ended(program)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_worker_that_is_killed_leaves_the_files_of_a_failure_and_no_program(
    loop: Loop, number: signal.Signals
) -> None:
    call, program, worker = start(loop)

    os.kill(int(worker), number)

    assert call.wait(60) == 1
    assert read(loop.output / "result.json")["error_code"] in ("worker_failure", "invalid_worker_output")
    assert has_ended(program)


def test_a_call_that_is_killed_leaves_no_process_and_no_result_of_an_earlier_one(loop: Loop) -> None:
    loop.call(loop.replies("good", [CITED]))
    call, program, worker = start(loop)

    call.kill()

    assert has_ended(program)
    assert has_ended(worker)
    assert not any((loop.output / name).exists() for name in ("result.json", "summary.md", "status.json"))
    assert loop.sonde("rlms", "gate", "--output-dir", str(loop.output)).code == 1


@pytest.mark.requirement(39)
def test_a_process_that_a_program_detached_ends_with_a_call_that_ran_out_of_time(loop: Loop) -> None:
    pid = loop.tmp / "pid"
    detached = f'setsid sh -c "echo \\$\\$ > {pid}; sleep 600" > /dev/null 2>&1 &'
    root = loop.program("root", f"( {detached} )\nsleep 600\n")

    called = loop.shell(root, timeout_seconds=20)

    assert (called.code, called.result["error_code"]) == (2, "limit_exceeded")
    assert has_ended(pid.read_text())


def test_a_program_that_removes_the_output_folder_does_not_take_the_files_of_the_failure(loop: Loop) -> None:
    called = loop.call(loop.program("root", f'rm -rf "{loop.tmp}/loops"; echo "set_final(1)"'))

    assert called.code == 1
    assert called.result["error_code"] == "worker_failure"
    assert read(loop.output / "status.json")["status"] == "failed"


def test_a_program_that_removes_the_output_folder_does_not_take_the_result_of_a_loop(loop: Loop) -> None:
    called = loop.call(loop.program("root", f'rm -rf "{loop.tmp}/loops"; cat <<"E"\n{CITED}\nE\n'), standalone="false")

    assert called.code == 0
    assert called.result["final"] == "pay retries"


@pytest.mark.requirement(35)
def test_the_list_may_be_a_pipe(loop: Loop) -> None:
    pipe = loop.tmp / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["sh", "-c", f'exec cat "{loop.files}" > "{pipe}"']):
        fd = os.open(pipe, os.O_RDONLY)
        called = loop.call(loop.replies("root", [CITED]), context_file_list=f"/dev/fd/{fd}")
    os.close(fd)

    assert called.code == 0
    assert (loop.output / "context-files.txt").read_bytes() == loop.files.read_bytes()


def test_a_call_that_is_stopped_while_it_waits_for_its_list_leaves_the_files_of_a_failure(loop: Loop) -> None:
    reading, writing = os.pipe()
    words = loop.words(loop.replies("root", [CITED]), context_file_list=f"/dev/fd/{reading}")
    call = subprocess.Popen(
        [sys.executable, "-m", "sonde", "rlms", *words],
        env=loop.environment(),
        pass_fds=[reading],
        stdout=-3,
        stderr=-3,
    )
    os.close(reading)
    os.write(
        writing, b"\n" * 100_000
    )  # more than a pipe holds: done when the list is being read, which then waits for its end

    call.send_signal(signal.SIGTERM)
    call.wait(60)
    os.close(writing)

    assert call.returncode == 1
    assert read(loop.output / "status.json")["error"] == "worker_failure"
    assert "interrupted" in read(loop.output / "result.json")["error"]


def test_a_pipe_that_nobody_writes_to_is_an_empty_list(loop: Loop) -> None:
    pipe = loop.tmp / "pipe"
    os.mkfifo(pipe)

    called = loop.call(loop.replies("root", [CITED]), context_file_list=pipe)

    assert called.result["error_code"] == "invalid_config"


@pytest.mark.parametrize("metrics", ["5", "[1]", "null"])
def test_a_decision_that_makes_no_sense_does_not_harm_the_status(loop: Loop, metrics: str) -> None:
    metadata = loop.tmp / "metadata.json"
    metadata.write_text(f'{{"decision": {{"should_run": true, "metrics": {metrics}}}}}')

    called = loop.call(loop.program("root", "exit 3"), metadata_file=metadata)

    assert called.result["error_code"] == "model_invocation_failed"
    assert read(loop.output / "status.json")["metrics"]["step_count"] == 1


@pytest.mark.requirement(43)
@pytest.mark.parametrize(("mode", "code"), [("warn_and_continue", 0), ("fail_role", 1)])
def test_the_fail_mode_says_what_a_failure_means_for_the_role(loop: Loop, mode: str, code: int) -> None:
    called = loop.shell(loop.program("root", "exit 3"), fail_mode=mode)

    assert called.code == code
    assert called.result["error_code"] == "model_invocation_failed"
    assert "model_invocation_failed" in called.stderr


def test_left_out_files_are_in_the_workers_log(loop: Loop) -> None:
    loop.list("src/a.py", "gone.py")

    loop.call(loop.replies("root", [CITED]))

    assert "gone.py" in (loop.output / "worker-stderr.log").read_text()


def ask(loop: Loop, replies: list[str], sub: list[str]) -> Any:
    """`sonde ask --profile strict` with programs that give the same replies by position."""
    root, child = loop.replies("ask_root", replies), loop.replies("ask_sub", sub)
    asked: Called = loop.sonde(
        *(
            "ask",
            "What matters?",
            str(loop.repo),
            "--profile",
            "strict",
            "--json",
            "--runs-dir",
            str(loop.tmp / "asked"),
        ),
        *("--model", f"command:sh {root.path}", "--sub-model", f"command:sh {child.path}"),
    )
    assert asked.code == 0, asked.stderr
    (run,) = (loop.tmp / "asked").iterdir()
    return read(run / "result.json")


@pytest.mark.parametrize(
    "replies",
    [
        [CITED],
        ["import os", "x = 1 / 0", "print(list_files())", CITED],
        ["set_final('no citation yet')", f"```python\n{CITED}\n```"],
        [f"print('unseen')\n{CITED}"],
        ["add_citation('b.txt', 2, 2, 'unread')\nset_final({'answer': 'b', 'n': [1, None, 0.5]})"],
        ["said = sub_rlm('what?')\nadd_citation('b.txt', 1, 1)\nset_final({'said': said})"],
        ["set_final({'citations': [{'path': 'b.txt', 'start_line': 9, 'end_line': 9}], 'answer': 'x'})"],
    ],
)
def test_value_and_citations_are_those_of_ask_with_the_same_replies(loop: Loop, replies: list[str]) -> None:
    sub = ["two files"]  # prose is the answer of a child session too

    mine = loop.work(loop.replies("root", replies), subcall_command_json=loop.replies("sub", sub).command, max_steps=60)
    theirs = ask(loop, replies, sub)

    proved = [row for row in mine["citations"] if row["signal"] != "file_reference"]
    assert mine["final"] == theirs["output"]["value"]
    assert proved == [{name: row[name] for name in mine["citations"][0]} for row in theirs["citations"]]
