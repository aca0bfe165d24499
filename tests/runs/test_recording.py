"""The recording of a run: recorded answers by place, the first difference when the path is another one, and the time of then."""

from __future__ import annotations

import pytest

from runs.streams import told
from sonde.core.events import (
    AnyEvent,
    CodeRan,
    CodeStarted,
    HostReturned,
    ModelFailed,
    ModelReplied,
    Noted,
    RunEnded,
    RunResumed,
    StatusChanged,
    SubcallEnded,
    SubcallStarted,
    TurnStarted,
)
from sonde.runs.recording import Diverged, RecordedClock, Recording, before_turn
from sonde.testing import FrozenClock

RECORDED: list[AnyEvent] = [
    StatusChanged(seq=1, at=0.0, status="running"),
    TurnStarted(seq=2, at=10.0, turn=1, elapsed_s=10.0),
    TurnStarted(seq=3, at=20.0, session="root/1.1", turn=1, elapsed_s=0.0),
    TurnStarted(seq=4, at=50.0, turn=2, elapsed_s=50.0),
]


def test_answers_are_found_by_session_turn_and_number() -> None:
    recording = Recording(told())

    reply = recording.at(ModelReplied, "root", 2, 0)
    host = recording.at(HostReturned, "root", 2, 1)
    code = recording.at(CodeStarted, "root/3.2", 1, 0)
    ended = recording.at(SubcallEnded, "root/3.2")

    assert reply is not None and "fetch module" in reply.text
    assert host is not None and host.name == "read_file"
    assert code is not None and code.clock == 1001.0
    assert ended is not None and ended.summary == "It doubles."


def test_failed_attempts_are_found_with_their_reply() -> None:
    recording = Recording(told())

    assert [failed.message for failed in recording.failures("root", 3, 0)] == ["429"]
    assert not recording.failures("root", 1, 0)


def test_the_attempt_after_which_a_model_was_given_up_is_known() -> None:
    again, last = (
        ModelFailed(turn=9, ordinal=0, attempt=n, request_hash="r", message=f"{n}", retryable=True, wait_s=wait)
        for n, wait in ((1, 0.5), (2, None))
    )
    events = [*told(), again, last]

    assert Recording(events).given_up("root", 9, 0) == last
    assert Recording(events).given_up("root", 3, 0) is None, "a reply followed"


def test_a_branch_is_running_and_has_not_ended() -> None:
    taken = before_turn(told(), 3)

    assert [event.status for event in taken if isinstance(event, StatusChanged)] == ["running"]
    assert not any(isinstance(event, RunEnded) for event in taken)


def test_an_empty_recording_has_nothing_and_resume_goes_on_live() -> None:
    recording = Recording()

    assert recording.expect(ModelReplied, "root", 1, 0, request_hash="hash") is None
    assert recording.expect(HostReturned, "root", 1, 1) is None
    assert recording.expect(TurnStarted, "root", 1) is None


def test_a_strict_recording_refuses_what_was_not_recorded() -> None:
    with pytest.raises(Diverged) as caught:
        Recording(told(), strict=True).expect(ModelReplied, "root", 99, 0, request_hash="hash")

    assert "99" in caught.value.where


@pytest.mark.parametrize("strict", [True, False])
def test_another_request_than_the_recorded_one_is_shown_with_both_sides(strict: bool) -> None:
    recording = Recording(told(), strict=strict)
    recorded = recording.at(ModelReplied, "root", 2, 0)
    assert recorded is not None

    with pytest.raises(Diverged) as caught:
        recording.expect(ModelReplied, "root", 2, 0, request_hash="another hash")

    assert caught.value.recorded == recorded.request_hash
    assert caught.value.now == "another hash"


def test_other_arguments_or_output_than_recorded_diverge() -> None:
    recording = Recording(told())

    with pytest.raises(Diverged, match="read_file"):
        recording.expect(HostReturned, "root", 2, 1, args_hash="other arguments")
    with pytest.raises(Diverged, match="function"):
        recording.expect(HostReturned, "root", 2, 1, name="grep")
    with pytest.raises(Diverged, match="output"):
        recording.expect(CodeRan, "root", 2, 0, output_hash="other output")


def test_words_only_feeds_by_position_and_lists_the_differences() -> None:
    recording = Recording(told(), strict=True, words_only=True)

    reply = recording.expect(ModelReplied, "root", 1, 0, request_hash="our prompt has changed")

    assert isinstance(reply, ModelReplied)
    assert recording.expect(HostReturned, "root", 2, 1, args_hash="other arguments") is None, "tools are live"
    assert [difference.now for difference in recording.differences] == ["our prompt has changed"]


def test_the_last_event_of_a_place_counts() -> None:
    events = told()
    second = HostReturned(turn=2, ordinal=1, name="read_file", args={}, args_hash="", ok=True, result="newer")

    found = Recording([*events, second]).at(HostReturned, "root", 2, 1)

    assert found is not None and found.result == "newer"


def test_a_branch_takes_along_what_came_before_its_turn() -> None:
    events = before_turn(told(), 3)

    turns = {event.turn for event in events if isinstance(event, CodeStarted)}
    assert turns == {1, 2}
    assert not any(isinstance(event, SubcallStarted) for event in events)
    assert Recording(events).end_of("root") is None


def test_a_branch_after_the_children_takes_them_along() -> None:
    events = before_turn(told(), 4)

    assert Recording(events).at(SubcallEnded, "root/3.2") is not None
    assert Recording(events).at(ModelReplied, "root", 4, 0) is None


def test_while_a_recording_is_played_its_time_is_shown_however_long_that_takes() -> None:
    machine = FrozenClock()
    time = RecordedClock(machine, RECORDED)
    shown = [time.now()]
    for event in RECORDED[:3]:
        machine.advance(1000)
        time.hear(event)
        shown.append(time.now())

    assert shown == [0, 0, 10, 20]
    assert time.used == 50


def test_after_the_last_recorded_event_time_goes_on_from_what_was_used() -> None:
    machine = FrozenClock()
    time = RecordedClock(machine, RECORDED)
    for event in RECORDED:
        machine.advance(1000)
        time.hear(event)
    machine.advance(3)

    assert time.now() == 53


def test_the_first_new_event_ends_the_recorded_time_and_remarks_do_not() -> None:
    machine = FrozenClock()
    time = RecordedClock(machine, RECORDED)
    time.hear(RECORDED[0])
    time.hear(RunResumed(seq=5, at=9000.0, elapsed_s=50.0, replayed=4))
    time.hear(Noted(seq=6, at=9000.0, text="a listener failed"))
    assert time.now() == 0

    time.hear(TurnStarted(seq=7, at=9001.0, turn=3, elapsed_s=51.0))
    machine.advance(3)

    assert time.now() == 53
