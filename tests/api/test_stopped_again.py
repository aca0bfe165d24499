"""A run that was stopped from outside replays, whatever it was doing at that moment."""

from __future__ import annotations

from pathlib import Path

import pytest

from sonde.api.ask_run import ask
from sonde.api.rerun import replay
from sonde.api.result import Answer
from sonde.api.settings import Settings
from sonde.core.cancellation import Stop
from sonde.core.events import Event
from sonde.core.status import RunStatus
from sonde.errors import ErrorCode
from sonde.models.base import ModelRequest
from sonde.testing import FrozenClock, ScriptedModel

STEPS = (
    "print(read_file('a.txt')); print(llm_batch([f'ask {i}' for i in range(4)]))",
    "add_citation('a.txt', 1, 1); print(llm_query('ask 9'))",
    "print(sub_rlm('ask it'))",
    "FINAL('42 [a.txt:1]')",
)


def stepping(request: ModelRequest) -> str:
    asked = request.messages[-1].content.startswith("ask")
    return "yes" if asked else STEPS[len(request.messages) // 2 - 1]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("beta is 42\n")
    return tmp_path / "data"


def stopped_at(kind: str, nth: int, data: Path) -> Answer:
    """A run that is cancelled by the nth event of a kind."""
    stop, seen = Stop(), list[Event]()

    def watch(event: Event) -> None:
        if type(event).__struct_config__.tag == kind:
            seen.append(event)
        if len(seen) == nth:
            stop.set()

    return ask(
        "?",
        data,
        model=ScriptedModel(stepping),
        cancel=stop,
        on_event=watch,
        settings=Settings(),
        runs_dir=data.parent / "runs",
    )


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize(
    "kind",
    [
        "state_changed",
        "turn_started",
        "model_replied",
        "code_started",
        "host_returned",
        "code_ran",
        "subcall_ended",
        "cited",
    ],
)
def test_a_cancel_at_any_step_replays(data: Path, kind: str, nth: int) -> None:
    answer = stopped_at(kind, nth, data)
    assert answer.run_dir is not None
    assert answer.record.error is not None and answer.record.error.message == "cancelled by the user"

    again = replay(answer.run_dir, settings=Settings())

    assert again.equal, again.differences


def test_time_that_ran_out_in_the_middle_of_a_block_replays(data: Path) -> None:
    clock = FrozenClock()

    def slow(line: str) -> str:
        """Look for a long time."""
        clock.advance(70)
        return line

    look = "print(read_file('a.txt'))\nfor line in 'abc':\n    print(slow(line))"
    answer = ask(
        "?",
        data,
        model=ScriptedModel([look]),
        tools=[slow],
        clock=clock,
        max_wall_time_sec=100,
        settings=Settings(),
        runs_dir=data.parent / "runs",
    )
    assert answer.record.error is not None
    assert answer.record.error.code is ErrorCode.WALL_TIME_LIMIT_REACHED
    assert answer.run_dir is not None

    again = replay(answer.run_dir, settings=Settings(), tools=[slow])

    assert again.equal, again.differences


def test_a_cancelled_run_whose_past_was_another_does_not_pass_for_replayed(data: Path) -> None:
    answer = stopped_at("turn_started", 3, data)
    assert answer.status is RunStatus.PARTIAL
    assert answer.run_dir is not None
    (data / "a.txt").write_text("beta is 43\n")

    assert not replay(answer.run_dir, settings=Settings()).equal
