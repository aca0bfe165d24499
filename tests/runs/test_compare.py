"""Two runs side by side: equal but for ids and times, or the first difference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from runs.streams import Teller, TickingClock, story, told, write_story
from sonde.core.events import (
    AnyEvent,
    CodeRan,
    HostReturned,
    ModelAsked,
    ModelFailed,
    RunEnded,
    RunResumed,
    SubcallStarted,
    TurnStarted,
)
from sonde.runs.compare import compare
from sonde.runs.recorder import Recorder


def changed(events: list[AnyEvent], kind: type[Any], place: int = 0, **fields: Any) -> list[AnyEvent]:
    target = [event for event in events if isinstance(event, kind)][place]
    return [msgspec.structs.replace(event, **fields) if event is target else event for event in events]


@pytest.mark.requirement(124)
def test_runs_that_did_the_same_are_equal_whatever_their_ids_and_times() -> None:
    slow = Teller(Recorder(TickingClock(3.7)))
    story(slow, "another-id")

    found = compare(told(), slow.events)  # pyright: ignore[reportArgumentType]  # every event of a story is one of the union

    assert found.equal and found.first_difference is None and found.same_answer
    assert (found.left, found.right) == ("run-1", "another-id")


def test_the_first_difference_is_shown_with_both_sides() -> None:
    other = changed(told(), CodeRan, 1, stdout="something else")
    other = changed(other, RunEnded, output="another answer")

    found = compare(told(), other)

    assert found.first_difference is not None
    difference = found.first_difference
    assert (difference.session, difference.what, difference.field) == ("root", "code_ran turn 2 block 0", "stdout")
    assert difference.right == "something else" and "RETRIES" in str(difference.left)
    assert not found.same_answer and "+another answer" in found.answer_diff


def test_the_order_in_which_parallel_children_finish_is_no_difference() -> None:
    events = told()
    batch = [event for event in events if event.session.startswith("root/3.1.")]
    start = events.index(batch[0])
    rest = [event for event in events if event not in batch]

    assert compare(events, [*rest[:start], *reversed_sessions(batch), *rest[start:]]).equal


def reversed_sessions(events: list[AnyEvent]) -> list[AnyEvent]:
    sessions = sorted({event.session for event in events}, reverse=True)
    return [event for session in sessions for event in events if event.session == session]


def test_retries_and_resumes_are_no_difference() -> None:
    quiet: list[AnyEvent] = [event for event in told() if not isinstance(event, ModelFailed)]

    assert compare(told(), [*quiet, RunResumed(elapsed_s=3.0, replayed=2)]).equal


def test_the_time_left_in_a_prompt_or_a_budget_is_no_difference() -> None:
    def with_time(seconds: str) -> list[AnyEvent]:
        prompt = [{"role": "user", "content": f"You have {seconds} left. Started 2026-01-01T00:00:{seconds[:2]}Z"}]
        events = changed(told(), ModelAsked, 0, messages=prompt, request_hash=seconds)
        events = changed(events, TurnStarted, 0, left={"tokens": 5, "seconds": float(seconds[:2])})
        result = {"tokens": 5, "seconds": float(seconds[:2])}
        return changed(events, HostReturned, 0, name="budget", result=result, response_hash=seconds)

    assert compare(with_time("10 s"), with_time("20 s")).equal


def test_a_prompt_that_says_something_else_is_a_difference() -> None:
    other = changed(told(), ModelAsked, 1, messages=[{"role": "user", "content": "Be brief."}])

    difference = compare(told(), other).first_difference

    assert difference is not None and difference.what.startswith("model_asked") and difference.field == "messages"


def test_a_child_that_only_one_run_had_is_a_difference() -> None:
    without = [event for event in told() if event.session != "root/3.2"]

    one, other = compare(told(), without), compare(without, told())

    assert one.first_difference is not None and one.first_difference.right is None
    assert other.first_difference is not None and other.first_difference.left is None
    assert one.first_difference.session == "root/3.2"
    assert one.first_difference.what.startswith("subcall_started")


def test_a_run_that_was_cut_off_differs_where_it_ends() -> None:
    difference = compare(told(), told()[:-1]).first_difference

    assert difference is not None and difference.what == "run_ended"


def test_cost_tokens_tools_and_evidence_are_compared() -> None:
    teller = Teller(Recorder(TickingClock()))
    story(teller)
    teller.call(9, 1, "read_file", {}, "")
    fewer = [event for event in told() if not isinstance(event, SubcallStarted)]

    found = compare(teller.events, fewer)  # pyright: ignore[reportArgumentType]  # every event of a story is one of the union
    numbers = {pair.name: (pair.left, pair.right) for pair in found.numbers}
    tools = {pair.name: (pair.left, pair.right) for pair in found.tools}

    assert numbers["llm_subcalls"] == (4, 0)
    read, again = numbers["tokens_in"]
    assert read is not None and read > 0 and read == again
    assert tools["read_file"] == (3, 2)
    assert found.evidence.both == 2 and found.citations.both == 2


def test_evidence_of_one_side_only_is_listed() -> None:
    excerpt = {"kind": "FILE", "ref": "README.md:1-2", "hash": "h"}

    found = compare(changed(told(), HostReturned, 0, excerpts=[excerpt]), told())

    assert found.evidence.only_left == ["README.md:1-2"] and not found.evidence.only_right


def test_run_folders_are_compared(tmp_path: Path) -> None:
    found = compare(write_story(tmp_path, "a").events(), write_story(tmp_path, "b").events())

    assert found.equal
    assert found.as_dict()["numbers"][0]["name"] == "iterations"
