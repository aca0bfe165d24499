"""A stop reaches those who wait, and nobody else."""

from __future__ import annotations

import signal
import threading

import pytest

from sonde.core.cancellation import Stop, heeding
from sonde.core.deadline import Deadline, SystemClock


def test_setting_it_cuts_what_waits_and_what_comes_later() -> None:
    stop, cut = Stop(), list[str]()
    with stop.cutting(lambda: cut.append("before")):
        stop.set()
    with stop.cutting(lambda: cut.append("after")):
        pass

    assert cut == ["before", "after"]


def test_what_has_ended_is_not_cut() -> None:
    stop, cut = Stop(), list[str]()
    with stop.cutting(lambda: cut.append("gone")):
        pass
    stop.set()

    assert cut == []


def test_nobody_leaves_while_being_cut() -> None:
    stop, cutting, left = Stop(), threading.Event(), list[bool]()

    def cut() -> None:
        cutting.set()
        left.append(ended.wait(0.2))  # it cannot end before this returns

    ended = threading.Event()

    def wait() -> None:
        with stop.cutting(cut):
            began.set()
            cutting.wait(60)
        ended.set()

    began = threading.Event()
    waiting = threading.Thread(target=wait)
    waiting.start()
    began.wait(60)
    stop.set()
    waiting.join(60)

    assert left == [False]
    assert ended.is_set()


def test_a_callers_own_event_is_heeded_and_not_set() -> None:
    event, heard = threading.Event(), threading.Event()
    with heeding(event) as stop, stop.cutting(heard.set):
        event.set()
        assert heard.wait(60)
    with heeding(untouched := threading.Event()) as stop:
        stop.set()

    assert not untouched.is_set()


def test_a_stop_is_its_own_and_the_watcher_of_an_event_ends() -> None:
    before = set(threading.enumerate())
    with heeding(mine := Stop()) as stop:
        assert stop is mine
    with heeding(threading.Event()):
        assert set(threading.enumerate()) > before

    assert set(threading.enumerate()) <= before


def test_a_deadline_hands_its_stop_on_and_is_not_expired_by_it() -> None:
    deadline = Deadline(SystemClock(), 60)
    below = deadline.sub(30)
    deadline.stop.set()

    assert below.stop.is_set()
    assert not below.expired()


def test_a_signal_that_comes_while_its_thread_begins_to_wait_sets_it() -> None:
    stop = Stop()

    class Begins:
        """The first thing that `wait` does in its lock is to look whether the event is set: there the signal comes."""

        def __bool__(self) -> bool:
            signal.raise_signal(signal.SIGUSR1)
            return True

    def handler(number: int, frame: object) -> None:
        del number, frame
        stop.set()

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        stop.__dict__["_flag"] = Begins()

        assert stop.wait(60)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert stop.is_set()


def test_a_signal_between_the_look_and_the_wait_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = Stop()

    def slept_through(timeout: float | None = None) -> bool:
        """What a thread does that begins to wait after the signal: it hears of nothing until its time is over."""
        assert timeout is not None and timeout <= 1
        stop.set()
        return False

    monkeypatch.setattr(stop._cond, "wait", slept_through)

    assert stop.wait(600)
