"""Time as a value: a clock that tests can freeze and a deadline that every blocking call takes.

A deadline can give waiting time back (`add`): waiting for a person behind a command model does not count as the run's time. It carries
the run's stop, because code that must respect the deadline must respect the stop too. A stop does not expire the deadline.
"""

from __future__ import annotations

import ctypes
import math
import threading
import time
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from types import TracebackType
from typing import Protocol

from sonde.core.cancellation import Stop
from sonde.errors import ToolFault

GRACE_S = 2.0
"""What reading and masking together may take although their run is over: the last citations are read again at the end."""
LATE_S = 10.0
"""What guarded work of a run that is over may take in all; then it is ended from outside."""
TICK_S = 0.25


class Clock(Protocol):
    """Where time comes from."""

    def now(self) -> float:
        """Seconds that only go forward."""
        ...

    def utc(self) -> datetime:
        """The time of day, aware, in UTC."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        """Seconds that only go forward."""
        return time.monotonic()

    def utc(self) -> datetime:
        """The time of day in UTC."""
        return datetime.now(UTC)


class Stopwatch:
    """Counts the time inside `running`; stretches that overlap count once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counted = 0.0
        self._running = 0
        self._since = 0.0

    def inside(self) -> float:
        """Seconds inside so far."""
        with self._lock:
            return self._counted + (self._clock.now() - self._since if self._running else 0.0)

    def outside(self) -> float:
        """The clock less the time inside: it stands still there."""
        with self._lock:
            return (self._since if self._running else self._clock.now()) - self._counted

    @contextmanager
    def running(self) -> Generator[None]:
        """What is inside counts."""
        with self._lock:
            if not self._running:
                self._since = self._clock.now()
            self._running += 1
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1
                if not self._running:
                    self._counted += self._clock.now() - self._since


class PatientClock:
    """Another clock, less the time spent waiting for a person: that is not the run's time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waits = Stopwatch(clock)
        self.waiting = self._waits.running

    def now(self) -> float:
        """Seconds that only go forward, and stand still inside `waiting`."""
        return self._waits.outside()

    def utc(self) -> datetime:
        """The time of day, which never stands still."""
        return self._clock.utc()


class RepeatTime:
    """How long recorded code may run again, in all. Only the time inside `running` counts."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.seconds = seconds
        self._runs = Stopwatch(clock)
        self.running = self._runs.running

    def left(self) -> float:
        """Seconds that remain; zero or less when they are used up."""
        return self.seconds - self._runs.inside()


class Deadline:
    """A point in time that a run, a session or a call must not pass. `seconds=None` never expires. `stop` is the run's."""

    def __init__(
        self, clock: Clock, seconds: float | None, *, stop: Stop | None = None, started: float | None = None
    ) -> None:
        self.clock = clock
        self.stop = stop or Stop()
        self.started = clock.now() if started is None else started
        self.seconds = math.inf if seconds is None else seconds
        self.overtime = 0.0
        """Seconds for which documents were read and texts masked although the run was over."""
        self.late = 0.0
        """Seconds for which guarded work went on although the run was over."""
        self._given_back = 0.0
        self._waits: list[tuple[float, float]] = []
        self._lock = threading.Lock()

    def elapsed(self) -> float:
        """Seconds counted so far, without the time given back."""
        return self.clock.now() - self.started - self._given_back

    def remaining(self) -> float:
        """Seconds left, never below zero; infinity without a limit."""
        return max(0.0, self.seconds - self.elapsed())

    def expired(self) -> bool:
        """True when nothing is left."""
        return self.remaining() <= 0.0

    def is_over(self) -> bool:
        """True when nothing is left, or the run was told to stop."""
        return self.expired() or self.stop.is_set()

    def check(self, since: float, work: str) -> float:
        """For long work between two of its parts; `since` is when the last one began. Returns the time now. ToolFault if the run is
        over and has also used up its grace; `work` says what was still going on.
        """
        now = self.clock.now()
        if self.is_over():
            self.overtime += now - since
            if self.overtime > GRACE_S:
                raise ToolFault(f"{work} when the run had to end")
        return now

    def add(self, seconds: float) -> None:
        """Give the last `seconds` back: they were waiting. Waits that overlap, in parallel calls, count once."""
        with self._lock:
            end = self.clock.now()
            start = end - max(0.0, seconds)
            while self._waits and self._waits[-1][1] > start:
                start = min(start, self._waits.pop()[0])
            self._waits.append((start, end))
            self._given_back = math.fsum(until - since for since, until in self._waits)

    @contextmanager
    def in_force(self) -> Generator[None]:
        """Inside this block it is the deadline that `deadline_in_force` returns, in this thread and those that copy its context."""
        token = _in_force.set(self)
        try:
            yield
        finally:
            _in_force.reset(token)

    def sub(self, seconds: float | None) -> Deadline:
        """A separate deadline, at most as far away as this one."""
        mine = self.remaining()
        wanted = mine if seconds is None else min(seconds, mine)
        return Deadline(self.clock, None if math.isinf(wanted) else wanted, stop=self.stop)


class Overrun(ToolFault):
    """Guarded work went on long after its run was over."""


class _Ended(BaseException):  # no `except Exception` of the guarded work may hold it up
    """Raised from outside, by `_Guards`, in a thread whose run is over."""


class _Guards:
    """All guarded work of this process, and the thread that watches it while there is any."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.held: set[ReadingGuard] = set()
        self._some = threading.Event()
        self._thread: threading.Thread | None = None

    def hold(self, guard: ReadingGuard) -> None:
        with self.lock:
            self.held.add(guard)
            self._some.set()
            if self._thread is None or not self._thread.is_alive():  # a fork has none of its parent's threads
                self._thread = threading.Thread(target=self._watch, name="sonde-guards", daemon=True)
                self._thread.start()

    def _watch(self) -> None:
        while True:
            self._some.wait()
            time.sleep(TICK_S)
            with self.lock:
                for deadline in {guard.deadline for guard in self.held if guard.deadline.is_over()}:
                    deadline.late += TICK_S
                for guard in self.held:
                    if guard.deadline.late > LATE_S and not guard.struck and guard.deadline.is_over():
                        guard.struck = True
                        _raise_in(guard.thread, _Ended)
                if not self.held:
                    self._some.clear()


_guards = _Guards()


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    """Let this be raised in another thread between two of its steps; None takes back what was not raised yet."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), error and ctypes.py_object(error))


class ReadingGuard:
    """Ends the work inside, with an Overrun, if it goes on long after its run is over: for work on a stranger's data, in case that it
    does not look at the deadline often enough. Such work only reads; what writes must not be broken off anywhere.
    """

    def __init__(self, deadline: Deadline, work: str) -> None:
        self.deadline = deadline
        self.thread = threading.get_ident()
        self.struck = False
        self._overrun = Overrun(f"{work} was ended: it went on long after the run's time was up")

    def __enter__(self) -> None:
        if self.deadline.late > LATE_S and self.deadline.is_over():
            raise self._overrun
        _guards.hold(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(_Ended):  # which may come as late as here
            self._release()
        self._release()
        if kind is _Ended:
            raise self._overrun from None

    def _release(self) -> None:
        with _guards.lock:
            _guards.held.discard(self)
            if self.struck:
                _raise_in(self.thread, None)


def guarded(work: str) -> AbstractContextManager[None]:
    """A guard by the deadline in force; without one, nothing is watched."""
    run = deadline_in_force()
    return nullcontext() if run is None else ReadingGuard(run, work)


_in_force: ContextVar[Deadline | None] = ContextVar("sonde_deadline", default=None)


def deadline_in_force() -> Deadline | None:
    """The deadline of the run that this code works for: for what is far below the run and may take long."""
    return _in_force.get()


def rfc3339(moment: datetime) -> str:
    """UTC with seconds and a Z, as every record writes it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
