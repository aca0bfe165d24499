"""Many calls at once on a bounded number of threads, results in order.

A cancel interrupts the model calls among them, and the threads end. Unlike the standard library's pool, this one can be left: calls that
do not hear of a cancel (a model or a tool of the user) stay behind after a short grace, on daemon threads that end at their next step.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

R = TypeVar("R")

LOOK_S = 0.2  # how often the waiting caller looks at `cancel`
GRACE_S = 1.0  # for calls in flight to end and be counted after a cancel


class _CallBatch:
    """The calls of one batch and what came of them; the first exception ends it."""

    def __init__(self, one: Callable[[int], Any], count: int, cancel: threading.Event) -> None:
        self.one = one
        self.cancel = cancel
        self.results: list[Any] = [None] * count
        self.error: BaseException | None = None
        self.ended = threading.Event()
        self._next = 0
        self._open = count
        self._lock = threading.Lock()

    def work(self) -> None:
        """One thread's share: the next call that nobody has taken, until none is left."""
        while True:
            with self._lock:
                if self._next >= len(self.results) or self.ended.is_set() or self.cancel.is_set():
                    return
                index = self._next
                self._next += 1
            try:
                self.results[index] = self.one(index)
            except BaseException as error:  # noqa: BLE001  # the top of a worker: the caller raises it again
                self.error = self.error or error
                self.ended.set()
                return
            with self._lock:
                self._open -= 1
                if self._open == 0:
                    self.ended.set()


def in_parallel(one: Callable[[int], R], count: int, at_once: int, cancel: threading.Event) -> list[R]:
    """`one(0)`, `one(1)`, ... with at most `at_once` running; their results, or the first exception. On cancel some may be missing."""
    if count == 0:
        return []
    batch = _CallBatch(one, count, cancel)
    threads = [
        threading.Thread(target=contextvars.copy_context().run, args=(batch.work,), daemon=True)
        for _ in range(min(count, at_once))
    ]
    for thread in threads:
        thread.start()
    while not batch.ended.wait(LOOK_S) and not cancel.is_set():
        pass
    if batch.error is not None:
        cancel.set()  # a violation, say: the others have nothing left to work for
    if cancel.is_set():
        until = time.monotonic() + GRACE_S
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
    if batch.error is not None:
        raise batch.error
    return cast("list[R]", batch.results)
