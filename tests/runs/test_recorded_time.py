"""The clock of a run that is done again: the recorded time while it is played, then on from there."""

from __future__ import annotations

from sonde.core.events import AnyEvent, Noted, RunResumed, StatusChanged, TurnStarted
from sonde.runs.recorded_time import RecordedTime
from sonde.testing import FrozenClock

RECORDED: list[AnyEvent] = [
    StatusChanged(seq=1, at=0.0, status="running"),
    TurnStarted(seq=2, at=10.0, turn=1, elapsed_s=10.0),
    TurnStarted(seq=3, at=20.0, session="root/1.1", turn=1, elapsed_s=0.0),
    TurnStarted(seq=4, at=50.0, turn=2, elapsed_s=50.0),
]


def test_while_a_recording_is_played_its_time_is_shown_however_long_that_takes() -> None:
    machine = FrozenClock()
    time = RecordedTime(machine, RECORDED)
    shown = [time.now()]
    for event in RECORDED[:3]:
        machine.advance(1000)
        time.hear(event)
        shown.append(time.now())

    assert shown == [0, 0, 10, 20]
    assert time.used == 50


def test_after_the_last_recorded_event_time_goes_on_from_what_was_used() -> None:
    machine = FrozenClock()
    time = RecordedTime(machine, RECORDED)
    for event in RECORDED:
        machine.advance(1000)
        time.hear(event)
    machine.advance(3)

    assert time.now() == 53


def test_the_first_new_event_ends_the_recorded_time_and_remarks_do_not() -> None:
    machine = FrozenClock()
    time = RecordedTime(machine, RECORDED)
    time.hear(RECORDED[0])
    time.hear(RunResumed(seq=5, at=9000.0, elapsed_s=50.0, replayed=4))
    time.hear(Noted(seq=6, at=9000.0, text="a listener failed"))
    assert time.now() == 0

    time.hear(TurnStarted(seq=7, at=9001.0, turn=3, elapsed_s=51.0))
    machine.advance(3)

    assert time.now() == 53
