"""The time of a run that is done again: what it had used at each of its events, and a clock that shows that.

While the recording is played, every question about time gets the answer of then, however long playing takes: what was in time is in time
again, and what came too late comes too late. After the recorded events time goes on from what the run has used. Parallel sessions are
played in any order; of their times the latest is shown.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from sonde.core.deadline import Clock
from sonde.core.events import (
    ROOT,
    AnyEvent,
    Event,
    ModelFailed,
    ModelReplied,
    Noted,
    RunResumed,
    RunStarted,
    TurnStarted,
)


def used_seconds(events: Sequence[AnyEvent]) -> float:
    """The wall time that a run has used, its pauses between processes and its waiting for people left out."""
    return max(_used_at(events), default=0.0)


def _used_at(events: Sequence[AnyEvent]) -> Iterator[float]:
    """The wall time used at each event. The first event, a turn of the root and a resume say it themselves."""
    marked = since = waited = 0.0
    for event in events:
        if isinstance(event, Noted):
            yield marked  # also said before the first turn, about what took no time of the run
            continue
        if isinstance(event, RunStarted | RunResumed) or (isinstance(event, TurnStarted) and event.session == ROOT):
            marked, since, waited = getattr(event, "elapsed_s", 0.0), event.at, 0.0
        elif isinstance(event, ModelReplied | ModelFailed):
            waited += event.waited_s
        yield marked + max(0.0, event.at - since - waited)


class RecordedTime:
    """A clock for a run over its own recording; it must hear every event of the run."""

    def __init__(self, clock: Clock, events: Sequence[AnyEvent]) -> None:
        self.used = used_seconds(events)
        self._clock = clock
        self._times = {each.identity: used for each, used in zip(events, _used_at(events), strict=True)}
        self._to_come: set[tuple[Any, ...] | None] = {e.identity for e in events if not isinstance(e, Noted)} - {None}
        self._last = max((event.seq for event in events), default=-1)
        self._shown = 0.0
        self._live_since: float | None = None
        self._lock = threading.Lock()

    def now(self) -> float:
        """Seconds that only go forward, from zero when the run began."""
        with self._lock:
            if self._live_since is None:
                return self._shown
            return self.used + self._clock.now() - self._live_since

    def utc(self) -> datetime:
        """The time of day in UTC: that of now."""
        return self._clock.utc()

    def hear(self, event: Event) -> None:
        """Go to the time of a recorded event; go on from the end with the last of them, or with the first that is new."""
        if isinstance(event, RunResumed | Noted):
            return  # told by whoever does the run again
        with self._lock:
            self._shown = max(self._shown, self._times.get(event.identity, 0.0))
            self._to_come.discard(event.identity)
            if self._live_since is None and (event.seq > self._last or not self._to_come):
                self._live_since = self._clock.now()
