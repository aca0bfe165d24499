"""A run that is resumed lives in its recorded time: what was in time then is in time again, and attempts are counted on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recorded_runs import FINISH, asked, one_fact

from sonde.api.rerun import replay, resume
from sonde.api.settings import Settings
from sonde.core.cancellation import Stop
from sonde.core.events import ModelReplied
from sonde.core.status import RunStatus
from sonde.errors import ModelCallFailed
from sonde.models.base import ModelRequest
from sonde.runs.rundir import JOURNAL, RECORD, SUMMARY, RunDir
from sonde.testing import FrozenClock, ScriptedModel

LOOK = "print(read_file('a.txt'))"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return one_fact(tmp_path)


def cut(run_dir: Path, kept: int) -> None:
    """The folder as a kill after so many events leaves it."""
    lines = (run_dir / JOURNAL).read_bytes().splitlines(keepends=True)
    (run_dir / JOURNAL).write_bytes(b"".join(lines[:kept]))
    for name in (RECORD, SUMMARY):
        (run_dir / name).unlink(missing_ok=True)


def slow_on(clock: FrozenClock, seconds: float) -> Callable[[str], str]:
    def slow(line: str) -> str:
        """Look for a long time."""
        clock.advance(seconds)
        return line

    return slow


def test_an_answer_that_came_in_time_is_not_lost_when_the_run_is_resumed_after_its_time(data: Path) -> None:
    clock = FrozenClock()
    slow = slow_on(clock, 70)
    script = [f"{LOOK}\nprint(slow('a'))", f"slow('b')\n{FINISH}"]
    answer, run_dir = asked(data, script, tools=[slow], clock=clock, max_wall_time_sec=100)
    assert answer.status is RunStatus.SUCCEEDED
    lines = (run_dir / JOURNAL).read_bytes().splitlines()
    ran = max(at for at, line in enumerate(lines) if b'"code_ran"' in line)

    for kept in (len(lines), len(lines) - 1, ran + 1):
        cut(run_dir, kept)
        silent = ScriptedModel([])
        finished = resume(run_dir, model=silent, tools=[slow], settings=Settings(), clock=clock)

        assert finished.status is RunStatus.SUCCEEDED
        assert finished.record.metrics.total_latency_s == pytest.approx(140)
        assert not silent.requests


def test_a_block_that_ran_long_has_its_time_again_when_the_run_is_resumed_near_its_end(data: Path) -> None:
    clock = FrozenClock()

    def late(request: ModelRequest) -> str:
        if len(request.messages) == 2:
            return "for _ in range(3_000_000): pass\nprint('counted')"
        clock.advance(89.97)  # 0.03 s are left for code that needs more
        return LOOK if len(request.messages) == 4 else FINISH

    _, run_dir = asked(data, ScriptedModel(late), clock=clock, max_wall_time_sec=90.0)
    lines = (run_dir / JOURNAL).read_bytes().splitlines()
    cut(run_dir, next(at for at, line in enumerate(lines) if b'"turn":2' in line and b'"model_replied"' in line) + 1)

    finished = resume(run_dir, model=ScriptedModel([FINISH]), settings=Settings(), clock=clock)

    assert finished.record.runtime_ref.repl_trajectory[0].output.strip() == "counted"


def test_a_child_has_the_rest_of_its_own_time_after_a_kill(data: Path) -> None:
    def scripted(clock: FrozenClock) -> Callable[[ModelRequest], str]:
        def reply(request: ModelRequest) -> str:
            if "look closer" in request.messages[1].content:
                clock.advance(30)  # of 90
                return LOOK
            return "print(sub_rlm('look closer'))" if len(request.messages) == 2 else FINISH

        return reply

    clock = FrozenClock()
    answer, run_dir = asked(data, ScriptedModel(scripted(clock)), clock=clock, max_wall_time_sec=100)
    lines = (run_dir / JOURNAL).read_bytes().splitlines()
    cut(run_dir, max(at for at, line in enumerate(lines) if b'"turn":2' in line and b'"root/1.1"' in line) + 1)

    again = FrozenClock()
    finished = resume(run_dir, model=ScriptedModel(scripted(again)), settings=Settings(), clock=again)

    assert finished.record.runtime_ref.usage == answer.record.runtime_ref.usage
    assert finished.record.runtime_ref.subcall_metadata[0].status == "terminated_budget"


def busy(times: int) -> list[Any]:
    return [ModelCallFailed("busy", retryable=True, retry_after=0.0, tokens_in=9) for _ in range(times)]


def replied(run_dir: Path) -> list[int]:
    return [event.attempts for event in RunDir(run_dir).events() if isinstance(event, ModelReplied)]


@pytest.mark.parametrize("made", [1, 2, 3])
def test_attempts_before_a_kill_count_among_those_of_the_reply(data: Path, made: int) -> None:
    before, run_dir = asked(data, [LOOK, *busy(3), FINISH])
    counts = replied(run_dir)
    assert counts == [1, 4]
    lines = (run_dir / JOURNAL).read_bytes().splitlines()
    failures = [at for at, line in enumerate(lines) if b'"model_failed"' in line]
    cut(run_dir, failures[made - 1] + 1)

    finished = resume(run_dir, model=ScriptedModel([*busy(3 - made), FINISH]), settings=Settings())

    assert replied(run_dir) == counts
    assert finished.record.metrics.model_failures == before.record.metrics.model_failures == 3
    assert replay(run_dir, settings=Settings()).equal


def test_a_model_that_stays_busy_is_given_up_after_as_many_attempts_as_without_a_kill(data: Path) -> None:
    before, run_dir = asked(data, [LOOK, *busy(4)])
    lines = (run_dir / JOURNAL).read_bytes().splitlines()
    cut(run_dir, next(at for at, line in enumerate(lines) if b'"model_failed"' in line) + 1)

    finished = resume(run_dir, model=ScriptedModel([*busy(3), FINISH]), settings=Settings())

    assert finished.record.error == before.record.error
    assert finished.record.metrics.model_failures == 4


def test_a_wait_that_a_kill_has_broken_off_is_waited_to_its_end(data: Path) -> None:
    waits: list[float | None] = []

    class Noting(Stop):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            return super().wait(0)

    clock = FrozenClock()
    later = ModelCallFailed("busy", retryable=True, retry_after=40.0)
    _, run_dir = asked(data, [LOOK, later, FINISH], clock=clock, cancel=Noting())
    lines = (run_dir / JOURNAL).read_bytes().splitlines()
    cut(run_dir, next(at for at, line in enumerate(lines) if b'"model_failed"' in line) + 1)
    waits.clear()
    clock.advance(15)  # while the laptop was closed

    resume(run_dir, model=ScriptedModel([FINISH]), settings=Settings(), clock=clock, cancel=Noting())

    assert waits == [pytest.approx(25)]
