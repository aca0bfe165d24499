"""The protocol as a process: who owns descriptor 1, what ends it, and that its schemas are fresh."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DOUBLE = [sys.executable, str(Path(__file__).parent / "double.py")]


class Served:
    """The double as a child process."""

    def __init__(self) -> None:
        self.child = subprocess.Popen(DOUBLE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def write(self, data: bytes) -> None:
        assert self.child.stdin
        self.child.stdin.write(data)
        self.child.stdin.flush()

    def say(self, **message: Any) -> None:
        self.write(json.dumps(message).encode() + b"\n")

    def task(self, prompt: str, task_id: str = "t1") -> None:
        self.say(type="new_task", id=task_id, prompt=prompt, workspace="/w")

    def hear(self) -> dict[str, Any]:
        assert self.child.stdout
        return json.loads(self.child.stdout.readline())

    def until(self, kind: str) -> dict[str, Any]:
        while (message := self.hear())["type"] != kind:
            pass
        return message


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    assert served.hear()["type"] == "hello"
    yield served
    served.child.kill()
    served.child.wait()
    for pipe in (served.child.stdin, served.child.stdout, served.child.stderr):
        if pipe:
            pipe.close()


@pytest.mark.long
def test_a_stray_print_goes_to_standard_error(served: Served) -> None:
    served.task("print")

    assert served.hear()["type"] == "completion"
    assert served.child.stderr
    assert served.child.stderr.readline() == b"stray output\n"


def test_the_end_of_input_ends_the_process_and_its_tasks(served: Served) -> None:
    served.task("wait")
    assert served.child.stdin
    served.child.stdin.close()

    assert served.hear()["status"] == "cancelled"
    assert served.child.wait(60) == 0


def test_a_task_that_does_not_stop_does_not_keep_the_process(served: Served) -> None:
    served.task("deaf")
    assert served.child.stdin
    served.child.stdin.close()

    assert served.hear()["status"] == "cancelled"
    assert served.child.wait(60) == 1


@pytest.mark.requirement("O17")
def test_sigterm_ends_the_process_and_its_tasks_in_order(served: Served) -> None:
    served.task("wait")
    served.task("echo first", "t2")
    served.until("completion")
    served.child.terminate()

    assert served.hear()["status"] == "cancelled"
    assert served.child.wait(60) == 0


def test_a_line_that_is_too_long_is_passed_over(served: Served) -> None:
    served.write(b'{"type":"cancel","id":"' + b"x" * (33 * 1024 * 1024) + b'"}\n')
    assert served.hear()["code"] == "LINE_TOO_LONG"

    served.task("echo still here")
    assert served.until("completion")["summary"] == "still here"


@pytest.mark.long
def test_empty_lines_and_two_messages_in_one_write_are_fine(served: Served) -> None:
    served.write(b'\n\r\n{"type":"cancel","id":"a"}\n{"type":"cancel","id":"b"}\n')

    assert [served.hear()["code"], served.hear()["code"]] == ["UNKNOWN_TASK", "UNKNOWN_TASK"]


@pytest.mark.long
def test_a_message_split_over_two_writes_is_one_message(served: Served) -> None:
    served.write(b'{"type":"can')
    served.write(b'cel","id":"a"}\n')

    assert served.hear()["code"] == "UNKNOWN_TASK"


def test_a_large_result_arrives_whole(served: Served) -> None:
    served.task("long 900000")

    assert len(served.until("completion")["summary"]) == 900_000


@pytest.mark.requirement("O17")
def test_a_dead_parent_ends_the_process_even_if_the_pipe_stays_open(tmp_path: Path) -> None:
    keep_r, keep_w = os.pipe()  # we hold the writing end, so the child never sees the end of its input
    script = (
        "import subprocess, sys, os\n"
        f"child = subprocess.Popen({DOUBLE!r}, stdin={keep_r}, stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    parent = subprocess.run(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        pass_fds=(keep_r,),
        stderr=subprocess.DEVNULL,
        check=False,
    )
    pid = int(parent.stdout)
    assert parent.returncode == -signal.SIGKILL

    assert _gone(pid, within_s=60)
    os.close(keep_r)
    os.close(keep_w)


def _gone(pid: int, within_s: float) -> bool:
    descriptor = os.pidfd_open(pid) if Path(f"/proc/{pid}").exists() else None
    if descriptor is None:
        return True
    ready, _, _ = select.select([descriptor], [], [], within_s)
    os.close(descriptor)
    return bool(ready)


@pytest.mark.long
def test_of_ten_thousand_events_none_is_lost_in_the_pipe(served: Served) -> None:
    served.task("flood 10000")
    numbers = [served.hear()["seq"] for _ in range(10_001)]

    assert numbers == list(range(2, 10_003))


def test_schemas_and_typescript_types_are_fresh() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/schemas.py"), "--check"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
