"""The clock and the randomness that code can see, both from the supervisor, so that a run can be replayed.

Promises that `time`, `datetime` and `random` (and `os.urandom`, `uuid4`, `secrets` that stand on it) repeat when the same seed
and clock are given. Does not promise it for code that reads the clock by raw system call, nor for libraries in C that have
dice or clocks of their own (sqlite3, ssl, `numpy.datetime64("now")`).
"""

from __future__ import annotations

import datetime as dt
import os
import random
import sys
import time
from typing import Any

real_datetime, real_date = dt.datetime, dt.date
"""The classes as they are before a settable clock replaces them."""


class SettableClock:
    """Starts at `start` seconds since 1970 and moves by `step` at every reading; zero stands still."""

    def __init__(self, start: float, step: float) -> None:
        self.set(start, step)
        self._origin = self._now

    def set(self, start: float, step: float) -> None:
        self._now = round(start * 1e9)
        self._step = round(step * 1e9)

    def time_ns(self) -> int:
        self._now += self._step
        return self._now

    def time(self) -> float:
        return self.time_ns() / 1e9

    def monotonic_ns(self) -> int:
        return self.time_ns() - self._origin

    def monotonic(self) -> float:
        return self.monotonic_ns() / 1e9

    def sleep(self, seconds: float) -> None:
        """Time passes; nobody waits."""
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        self._now += round(seconds * 1e9)


def install(clock: SettableClock) -> None:
    """Put the clock where generated code looks for one."""
    for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time"):
        reading = clock.time if name == "time" else clock.monotonic
        setattr(time, name, reading)
        setattr(time, f"{name}_ns", clock.time_ns if name == "time" else clock.monotonic_ns)
    time.sleep = clock.sleep
    for name in ("localtime", "gmtime", "ctime"):
        setattr(time, name, _with_default(getattr(time, name), clock))
    plain_asctime, plain_strftime = time.asctime, time.strftime

    def asctime(moment: Any = None, /) -> str:
        return plain_asctime(time.localtime(clock.time()) if moment is None else moment)

    def strftime(form: str, moment: Any = None, /) -> str:
        return plain_strftime(form, time.localtime(clock.time()) if moment is None else moment)

    time.asctime, time.strftime = asctime, strftime
    time.clock_gettime = lambda clk_id: clock.time() if clk_id == time.CLOCK_REALTIME else clock.monotonic()
    time.clock_gettime_ns = lambda clk_id: clock.time_ns() if clk_id == time.CLOCK_REALTIME else clock.monotonic_ns()
    _install_dates(clock)
    pandas: Any = sys.modules.get("pandas")
    if pandas is not None:

        def now(cls: Any, tz: Any = None) -> Any:
            return cls.fromtimestamp(clock.time(), tz)

        def utcnow(cls: Any) -> Any:
            return cls.fromtimestamp(clock.time(), "UTC")

        pandas.Timestamp.now = pandas.Timestamp.today = classmethod(now)
        pandas.Timestamp.utcnow = classmethod(utcnow)


def _with_default(convert: Any, clock: SettableClock) -> Any:
    def reading(seconds: float | None = None) -> Any:
        return convert(clock.time() if seconds is None else seconds)

    return reading


def _install_dates(clock: SettableClock) -> None:
    class Kind(type):
        """Instances that C code made are instances of the replacement too."""

        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, cls.__mro__[1])

    class ClockDate(real_date, metaclass=Kind):
        @classmethod
        def today(cls) -> Any:
            return cls.fromtimestamp(clock.time())

    class ClockDatetime(real_datetime, metaclass=Kind):
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> Any:
            return cls.fromtimestamp(clock.time(), tz)

        @classmethod
        def today(cls) -> Any:
            return cls.fromtimestamp(clock.time())

        @classmethod
        def utcnow(cls) -> Any:
            return cls.fromtimestamp(clock.time(), dt.UTC).replace(tzinfo=None)

    for kind, name in ((ClockDate, "date"), (ClockDatetime, "datetime")):
        kind.__name__ = kind.__qualname__ = name
        kind.__module__ = "datetime"
        setattr(dt, name, kind)


def seed_everything(seed: int) -> None:
    """Seed `random`, and give everything that asks the kernel for randomness the same seeded source."""
    source = random.Random(seed ^ 0x50DE)  # noqa: S311 - repeatable on purpose
    plain_seed = random.Random.seed

    def seeded(self: random.Random, a: Any = None, version: int = 2) -> None:
        plain_seed(self, source.getrandbits(256) if a is None else a, version)

    os.urandom = source.randbytes
    os.getrandom = lambda size, flags=0: source.randbytes(size)  # noqa: ARG005 - as os has it
    random.Random.seed = seeded  # pyright: ignore[reportAttributeAccessIssue] - replaced on purpose
    for name in ("random", "uuid", "secrets"):
        loaded = sys.modules.get(name)
        if loaded is not None and hasattr(loaded, "_urandom"):
            setattr(loaded, "_urandom", source.randbytes)  # noqa: B010 - the attribute is not in typeshed
    random.seed(seed)
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed(seed % 2**32)  # `default_rng()` asks `secrets`
