"""A request to stop that also reaches code that is waiting.

Whatever blocks for long on behalf of a run (a socket, a process) registers how to interrupt it: `stop.cutting(cut)`. Setting the stop
calls these, in the thread that sets it. A caller may pass a plain `threading.Event` instead; `heeding` watches it.
It does not promise that what was cut has ended when `set` returns, only that it no longer waits.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

LOOK_S = 0.02  # how often a caller's own event is checked
WAIT_S = 0.5  # a signal may set the stop after its thread looked and before it waits: nothing wakes it then


class Stop(threading.Event):
    """An event that is set once, by any thread or by a signal handler."""

    def __init__(self) -> None:
        super().__init__()
        # The event's own lock, made re-entrant: a signal handler may set it while its thread begins to wait.
        self._cond = threading.Condition(threading.RLock())
        self._cuts: dict[object, Callable[[], object]] = {}
        self._guard = threading.RLock()  # re-entered when a signal arrives while it is held

    def set(self) -> None:
        """Stop now, and interrupt whatever waits."""
        super().set()
        with self._guard:  # held on purpose: nobody leaves `cutting`, and reuses what it cut, in the middle of a cut
            for cut in tuple(self._cuts.values()):
                cut()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, looking again every `WAIT_S`."""
        end = math.inf if timeout is None else time.monotonic() + timeout
        while not self.is_set() and (left := end - time.monotonic()) > 0:
            super().wait(min(left, WAIT_S))
        return self.is_set()

    @contextmanager
    def cutting(self, cut: Callable[[], object]) -> Generator[None]:
        """Inside this block a stop calls `cut`, maybe twice; at once if the stop is already set. `cut` must be quick and not raise."""
        key = object()
        with self._guard:
            self._cuts[key] = cut
        try:
            if self.is_set():
                cut()
            yield
        finally:
            with self._guard:
                del self._cuts[key]


@contextmanager
def heeding(event: threading.Event) -> Generator[Stop]:
    """A stop that is set as soon as the event is; a `Stop` is returned as it is. Setting the stop does not set the event."""
    if isinstance(event, Stop):
        yield event
        return
    stop, over = Stop(), threading.Event()

    def watch() -> None:
        while not over.is_set():
            if event.wait(LOOK_S):
                stop.set()
                return

    watcher = threading.Thread(target=watch, name="sonde-cancel", daemon=True)
    watcher.start()
    try:
        yield stop
    finally:
        over.set()
        watcher.join()
