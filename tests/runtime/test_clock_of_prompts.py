"""Issue 20, "Every engine: the clock": what the model hears about time is true when it hears it, and its last turn comes in time."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sonde import ask
from sonde.api.rerun import branch, replay, resume
from sonde.api.settings import Settings
from sonde.core.events import ModelAsked, TurnStarted
from sonde.core.status import RunStatus
from sonde.models.base import ModelReply, ModelRequest, estimate_usage
from sonde.runs.journal import Journal
from sonde.runs.rundir import JOURNAL, RECORD, SUMMARY, RunDir
from sonde.testing import FrozenClock, ScriptedModel, run_in_memory

LOOK = "print(read_file('a.txt'))"
FINISH = "FINAL('The port is 80. [a.txt:1-1]')"
LOOK_ACTION = json.dumps({"type": "tool_call", "tool_name": "read_file", "args": {"path": "a.txt"}})
FINISH_ACTION = json.dumps({"type": "finalize", "output": {"answer": "The port is 80. [a.txt:1-1]"}})


def slow(clock: FrozenClock, looks: Sequence[str], finish: str, seconds: float = 6) -> Callable[[ModelRequest], str]:
    """A model that takes its time for each reply, looks around, and finishes when it is told that this is its last turn."""
    left = iter(looks)

    def reply(request: ModelRequest) -> str:
        clock.advance(seconds)
        return finish if "this is your last turn" in request.messages[-1].content else next(left)

    return reply


def heard(model: ScriptedModel) -> list[int]:
    """The seconds left, as each request says it last."""
    texts = ["\n".join(message.content for message in request.messages) for request in model.requests]
    return [int(re.findall(r"(\d+) s of running time", text)[-1]) for text in texts]


@pytest.mark.requirement(97)
@pytest.mark.requirement(123)
@pytest.mark.parametrize(("mode", "look", "finish"), [("code", LOOK, FINISH), ("actions", LOOK_ACTION, FINISH_ACTION)])
def test_with_six_seconds_a_call_and_twenty_in_all_each_turn_hears_the_true_time(
    mode: str, look: str, finish: str
) -> None:
    """ "with 6 s a call and 20 s in all, turn 2 heard 0, turn 3 heard 7 ... Tell the true time." """
    clock = FrozenClock()
    model = ScriptedModel(slow(clock, [look, look], finish))

    answer = run_in_memory(model, "Which port?", {"a.txt": "port 80\n"}, clock=clock, max_wall_time_sec=20, mode=mode)

    assert heard(model) == [20, 14, 8]
    assert answer.status is RunStatus.SUCCEEDED
    assert clock.now() == 18


@pytest.mark.requirement(97)
def test_the_last_turn_comes_earlier_where_another_call_would_not_fit() -> None:
    """ "or earlier where one call of the length seen so far would no longer fit" """
    clock = FrozenClock()
    model = ScriptedModel(slow(clock, [LOOK] * 9, FINISH))
    events: list[Any] = []

    run_in_memory(
        model, "Which port?", {"a.txt": "port 80\n"}, clock=clock, max_wall_time_sec=20, on_event=events.append
    )

    turns = [event for event in events if isinstance(event, TurnStarted)]
    assert [(turn.elapsed_s, turn.call_s, turn.forced) for turn in turns] == [
        (0.0, 0.0, None),
        (6.0, 6.0, None),
        (12.0, 6.0, "last_call"),
    ]
    assert "8 s are left and a reply takes you about 6 s: finish now with" in model.requests[-1].messages[-1].content


def test_one_slow_reply_among_quick_ones_does_not_end_a_run_early() -> None:
    clock = FrozenClock()
    seconds = iter([1, 1, 40, 1, 1, 1])

    def reply(request: ModelRequest) -> str:
        clock.advance(next(seconds))
        return FINISH if len(request.messages) == 12 else LOOK

    answer = run_in_memory(ScriptedModel(reply), "?", {"a.txt": "port 80\n"}, clock=clock, max_wall_time_sec=130)

    assert answer.status is RunStatus.SUCCEEDED
    assert answer.usage.iterations == 6


def test_waiting_for_a_person_does_not_count_as_the_length_of_a_call() -> None:
    clock = FrozenClock()
    script = iter([LOOK, LOOK, FINISH])

    def reply(request: ModelRequest) -> ModelReply:
        clock.advance(50)
        text = next(script)
        return ModelReply(text=text, usage=estimate_usage(request, text), model="m", latency_s=50, waited_s=49)

    model = ScriptedModel(reply)
    answer = run_in_memory(model, "?", {"a.txt": "port 80\n"}, clock=clock, max_wall_time_sec=20)

    assert answer.status is RunStatus.SUCCEEDED
    assert heard(model) == [20, 19, 18]


def test_a_child_hears_the_time_that_it_has_itself() -> None:
    clock = FrozenClock()

    def reply(request: ModelRequest) -> str:
        clock.advance(10)
        if "look closer" in request.messages[1].content:
            return LOOK if len(request.messages) == 2 else "FINAL('80')"
        return "print(sub_rlm('look closer'))" if len(request.messages) == 2 else FINISH

    model = ScriptedModel(reply)
    run_in_memory(model, "?", {"a.txt": "port 80\n"}, clock=clock, max_wall_time_sec=100)

    assert heard(model) == [100, 81, 71, 70]  # the child has 90 % of what was left when it began


@pytest.fixture
def recorded(tmp_path: Path) -> tuple[Path, ScriptedModel]:
    (tmp_path / "a.txt").write_text("port 80\n")
    clock = FrozenClock()
    model = ScriptedModel(slow(clock, [LOOK] * 9, FINISH))
    answer = ask(
        "Which port?",
        tmp_path / "a.txt",
        model=model,
        clock=clock,
        max_wall_time_sec=20,
        runs_dir=tmp_path / "runs",
        settings=Settings(),
    )
    assert answer.run_dir is not None
    return answer.run_dir, model


def asked(run_dir: Path) -> list[str]:
    return [event.request_hash for event in RunDir(run_dir).events() if isinstance(event, ModelAsked)]


def test_the_times_that_a_run_was_told_replay_to_the_bit(recorded: tuple[Path, ScriptedModel]) -> None:
    run_dir, _ = recorded

    assert replay(run_dir, settings=Settings()).equal


@pytest.mark.parametrize("turn", [1, 2, 3])
def test_a_resumed_run_tells_the_same_times_and_has_the_same_last_turn(
    recorded: tuple[Path, ScriptedModel], turn: int
) -> None:
    run_dir, _ = recorded
    before = asked(run_dir)
    lines = (run_dir / JOURNAL).read_bytes().splitlines(keepends=True)
    cut = next(at for at, line in enumerate(lines) if b'"code_ran"' in line and b'"turn":%d' % turn in line)
    (run_dir / JOURNAL).write_bytes(b"".join(lines[: cut + (turn < 3)]))
    for name in (RECORD, SUMMARY):
        (run_dir / name).unlink(missing_ok=True)

    clock = FrozenClock()
    again = ScriptedModel(slow(clock, [LOOK] * 9, FINISH))
    finished = resume(run_dir, model=again, settings=Settings(), clock=clock)

    assert finished.status is RunStatus.SUCCEEDED
    assert list(dict.fromkeys(asked(run_dir))) == before


def test_a_branch_tells_the_time_that_it_has_itself(recorded: tuple[Path, ScriptedModel]) -> None:
    run_dir, _ = recorded
    again = ScriptedModel([FINISH])

    branched = branch(run_dir, 3, model=again, settings=Settings())

    assert branched.run_dir is not None
    first, second, third = (each for each in RunDir(branched.run_dir).events() if isinstance(each, TurnStarted))
    assert (first.elapsed_s, second.elapsed_s, third.call_s) == (0.0, 6.0, 6.0)
    assert heard(again) == [round(20 - third.elapsed_s)]


def test_a_run_of_an_older_version_replays_with_the_times_that_it_was_told(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("port 80\n")
    clock, script = FrozenClock(), iter([LOOK, LOOK, FINISH])

    def reply(_request: ModelRequest) -> str:
        clock.advance(6)
        return next(script)

    options: dict[str, Any] = {"clock": clock, "runs_dir": tmp_path / "runs", "settings": Settings()}
    run_dir = ask("Which port?", tmp_path / "a.txt", model=ScriptedModel(reply), **options).run_dir
    assert run_dir is not None
    events = RunDir(run_dir).events()
    (run_dir / JOURNAL).unlink()
    journal = Journal(run_dir / JOURNAL)
    for event in events:  # the same words about time, as a version wrote them that told the time of the turn before
        told = {"call_s": None, "elapsed_s": event.elapsed_s + 6} if isinstance(event, TurnStarted) else {}
        journal.append(msgspec.structs.replace(event, **told))
    journal.close()

    assert replay(run_dir, settings=Settings()).equal
