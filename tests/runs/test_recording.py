"""The tape: recorded answers by place, and the first difference when the path is another one."""

from __future__ import annotations

import pytest

from runs.streams import told
from sonde.core.events import (
    CodeStarted,
    HostReturned,
    ModelFailed,
    ModelReplied,
    RunEnded,
    StatusChanged,
    SubcallStarted,
)
from sonde.runs.recording import Diverged, Tape, before_turn


def test_answers_are_found_by_session_turn_and_number() -> None:
    tape = Tape(told())

    reply = tape.reply("root", 2, 0)
    host = tape.host("root", 2, 1)
    code = tape.code_started("root/3.2", 1, 0)
    ended = tape.subcall("root/3.2")

    assert reply is not None and "fetch module" in reply.text
    assert host is not None and host.name == "read_file"
    assert code is not None and code.clock == 1001.0
    assert ended is not None and ended.summary == "It doubles."


def test_failed_attempts_are_found_with_their_reply() -> None:
    tape = Tape(told())

    assert [failed.message for failed in tape.failures("root", 3, 0)] == ["429"]
    assert not tape.failures("root", 1, 0)


def test_a_replay_fails_again_where_the_last_attempt_failed_and_a_resume_asks_again() -> None:
    again, last = (
        ModelFailed(turn=9, ordinal=0, attempt=n, request_hash="r", message=f"{n}", retryable=True, wait_s=wait)
        for n, wait in ((1, 0.5), (2, None))
    )
    events = [*told(), again, last]

    assert Tape(events, strict=True).failure("root", 9, 0) == last
    assert Tape(events, strict=True).failure("root", 3, 0) is None, "a reply followed"
    assert Tape(events).failure("root", 9, 0) is None


def test_a_branch_is_running_and_has_not_ended() -> None:
    taken = before_turn(told(), 3)

    assert [event.status for event in taken if isinstance(event, StatusChanged)] == ["running"]
    assert not any(isinstance(event, RunEnded) for event in taken)


def test_an_empty_tape_has_nothing_and_resume_goes_on_live() -> None:
    tape = Tape()

    assert tape.reply("root", 1, 0, "hash") is None
    assert tape.host("root", 1, 1) is None
    assert tape.turn("root", 1) is None


def test_a_strict_tape_refuses_what_was_not_recorded() -> None:
    with pytest.raises(Diverged) as caught:
        Tape(told(), strict=True).reply("root", 99, 0, "hash")

    assert "99" in caught.value.where


@pytest.mark.parametrize("strict", [True, False])
def test_another_request_than_the_recorded_one_is_shown_with_both_sides(strict: bool) -> None:
    tape = Tape(told(), strict=strict)
    recorded = tape.reply("root", 2, 0)
    assert recorded is not None

    with pytest.raises(Diverged) as caught:
        tape.reply("root", 2, 0, "another hash")

    assert caught.value.recorded == recorded.request_hash
    assert caught.value.now == "another hash"


def test_other_arguments_or_output_than_recorded_diverge() -> None:
    tape = Tape(told())

    with pytest.raises(Diverged, match="read_file"):
        tape.host("root", 2, 1, "other arguments")
    with pytest.raises(Diverged, match="output"):
        tape.code_ran("root", 2, 0, "other output")


def test_words_only_feeds_by_position_and_lists_the_differences() -> None:
    tape = Tape(told(), strict=True, words_only=True)

    reply = tape.reply("root", 1, 0, "our prompt has changed")

    assert isinstance(reply, ModelReplied)
    assert [difference.now for difference in tape.differences] == ["our prompt has changed"]


def test_the_last_event_of_a_place_counts() -> None:
    events = told()
    second = HostReturned(turn=2, ordinal=1, name="read_file", args={}, args_hash="", ok=True, result="newer")

    found = Tape([*events, second]).host("root", 2, 1)

    assert found is not None and found.result == "newer"


def test_a_branch_takes_along_what_came_before_its_turn() -> None:
    events = before_turn(told(), 3)

    turns = {event.turn for event in events if isinstance(event, CodeStarted)}
    assert turns == {1, 2}
    assert not any(isinstance(event, SubcallStarted) for event in events)
    assert Tape(events).ended() is None


def test_a_branch_after_the_children_takes_them_along() -> None:
    events = before_turn(told(), 4)

    assert Tape(events).subcall("root/3.2") is not None
    assert Tape(events).reply("root", 4, 0) is None
