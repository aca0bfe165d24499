"""A watchdog: ends a process whose code has used up its time. Time that the host takes does not count, sleeping does."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Generator
from typing import Self

from sonde.errors import RunError
from sonde.sandbox.base import OutOfTime, Watch

LOOK_S = 0.05
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows has only SIGTERM, which ends the process there


class Guard:
    """One turn's time. Kills from a thread of its own, because the turn's thread waits for the code."""

    def __init__(self, pid: int, wall_s: float, watch: Watch | None = None) -> None:
        self.wall_s = wall_s
        self._pid = pid
        self._asked = watch
        self._deadline = time.monotonic() + wall_s
        self._changed = threading.Condition()
        self._waiting_for_host = False
        self._done = False
        self.fired = False
        self.stopped: RunError | None = None
        self.host_s = 0.0
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._done = True
            self._changed.notify()
        self._thread.join()

    @contextlib.contextmanager
    def host(self) -> Generator[None]:
        """Stop the clock while the host works."""
        started = time.monotonic()
        with self._changed:
            self._waiting_for_host = True
        try:
            yield
        finally:
            with self._changed:
                spent = time.monotonic() - started
                self.host_s += spent
                self._deadline += spent
                self._waiting_for_host = False
                self._changed.notify()

    def sleep(self, seconds: float) -> None:
        """Sleep for the code, on its own time."""
        left = self._deadline - time.monotonic()
        if seconds >= left:
            raise OutOfTime
        time.sleep(max(0.0, seconds))

    def _watch(self) -> None:
        with self._changed:
            while not self._done:
                left = self._deadline - time.monotonic()
                if self._waiting_for_host:
                    self._changed.wait()
                    continue
                if left > 0 and self._asked is not None:
                    try:
                        self._asked()
                    except RunError as error:  # for the turn's thread to raise
                        self.stopped = error
                if left > 0 and self.stopped is None:
                    self._changed.wait(left if self._asked is None else min(left, LOOK_S))
                    continue
                self.fired = True
                with contextlib.suppress(OSError):  # it has ended by itself
                    os.kill(self._pid, KILL)
                return
