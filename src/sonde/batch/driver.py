"""The driver of a batch: gives items to a crew, writes down what comes back, and stops softly.

Every state is on disk: the driver may be killed at any point and started again with the same manifest. It stops before the end when
asked to, when the limits are used up, when the model answers nobody, or when the disk is full; runs are then paused, not ended.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from sonde.batch.folder import BatchFolder, DiskFull, ResultLines
from sonde.batch.item_runner import Errand
from sonde.batch.manifest import BrokenLine
from sonde.batch.plan import Plan
from sonde.batch.progress import Progress
from sonde.batch.result import ItemResult, given_up
from sonde.batch.workers import Crew, Done, Halted, Happening, Left, Lost
from sonde.core.deadline import Clock, SystemClock
from sonde.errors import SandboxUnavailable

LOOK_S = 0.2  # how soon a stop is noticed
DEATHS = 5  # of workers, before an item is given up
ALONE_AFTER = 2  # deaths, before an item gets a worker to itself: which of its neighbours killed it?
OnProgress = Callable[[Progress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOutcome:
    """A batch that came to rest: all results, what is left and why, and the lines that were no items."""

    folder: BatchFolder
    results: tuple[ItemResult, ...]
    left: int
    stopped: str | None
    broken: tuple[BrokenLine, ...] = ()
    deaths: int = 0
    elapsed_s: float = 0.0
    fresh: int = 0
    spent_usd: float = 0.0

    @property
    def complete(self) -> bool:
        """Whether every item has a result and none of them failed."""
        return not self.left and not self.broken and not any(result.failed for result in self.results)


@dataclass(slots=True)
class Drive:
    """One start of a batch."""

    plan: Plan
    folder: BatchFolder
    crew: Crew
    progress: Progress
    cancel: threading.Event = field(default_factory=threading.Event)
    on_progress: OnProgress | None = None
    clock: Clock = field(default_factory=SystemClock)
    _queue: deque[Errand] = field(default_factory=deque[Errand])
    _running: dict[str, Errand] = field(default_factory=dict[str, Errand])
    _deaths: Counter[str] = field(default_factory=Counter[str])
    _results: dict[str, ItemResult] = field(default_factory=dict[str, ItemResult])
    _lines: ResultLines | None = None

    def run(self) -> BatchOutcome:
        """Work until everything is done or has come to rest."""
        self._queue.extend(self.plan.errands)
        self._lines = ResultLines(self.folder.results)
        started = self.clock.now()
        self.progress.begin(started)
        try:
            while self._running or (self._queue and not self.progress.stopping):
                self._hand_out()
                for happening in self.crew.wait(LOOK_S):
                    self._take(happening)
                self._look_around()
        finally:
            self._lines.close()
        return BatchOutcome(
            folder=self.folder,
            results=(*self.plan.finished.values(), *self._results.values()),
            left=len(self._queue),
            stopped=self.progress.stopping,
            deaths=self.progress.deaths,
            elapsed_s=self.clock.now() - started,
            fresh=len(self._results),
        )

    def _hand_out(self) -> None:
        while self._queue and not self.progress.stopping:
            alone = self._deaths[self._queue[0].item.key] >= ALONE_AFTER
            if not self.crew.room(alone=alone):
                return
            errand = self._queue.popleft()
            self._running[errand.item.key] = errand
            self.crew.give(errand, alone=alone)

    def _take(self, happening: Happening) -> None:
        match happening:
            case Done(errand=errand, result=result):
                self._running.pop(errand.item.key, None)
                self._keep(errand, result)
            case Left(errand=errand, reason=reason):
                self._put_back(errand)
                self._stop(reason)
            case Halted(errand=errand, reason=reason, usage=usage):
                self._put_back(errand)
                if usage:
                    raise SandboxUnavailable(reason)
                self._stop(reason)
            case Lost(errands=errands, how=how):
                self.progress.deaths += 1
                for errand in errands:
                    self._bury(errand, how)

    def _put_back(self, errand: Errand) -> None:
        self._running.pop(errand.item.key, None)
        self._queue.append(errand)

    def _bury(self, errand: Errand, how: str) -> None:
        """An item that lost its worker starts again from its journal, first in line; one that kills them all is given up."""
        self._running.pop(errand.item.key, None)
        self._deaths[errand.item.key] += 1
        if self._deaths[errand.item.key] >= DEATHS:
            message = f"{DEATHS} workers died while they were at this item, the last by {how}"
            self._keep(errand, given_up(errand.item, message))
        else:
            self._queue.appendleft(errand)

    def _keep(self, errand: Errand, result: ItemResult) -> None:
        assert self._lines is not None
        if result.status == "failed" and not result.cost_usd:  # given up: what it had paid for is in its journal
            spent = self.folder.spent(errand.item, errand.attempt)
            result = msgspec.structs.replace(result, cost_usd=spent, attempt=errand.attempt)
        try:
            self._lines.append(result)
        except DiskFull as error:
            self._queue.append(errand)  # its journal has the end: the next start only reads it
            self._stop(f"{error.message}; make room and start the batch again")
            return
        self._results[result.key] = result
        self.progress.cost_usd += result.cost_usd
        self.progress.add(result, self.clock.now())
        self.crew.spent(self.progress.cost_usd)

    def _look_around(self) -> None:
        closed = self.crew.closed()
        if closed is not None:
            self._stop(closed)
        if self.cancel.is_set():
            self._stop("asked to stop")
        self.progress.running = len(self._running)
        if self.on_progress is not None:
            self.on_progress(self.progress)

    def _stop(self, reason: str) -> None:
        if self.progress.stopping is None:
            self.progress.stopping = reason
            self.crew.pause()


def drive(
    plan: Plan,
    folder: BatchFolder,
    crew: Crew,
    *,
    cancel: threading.Event | None = None,
    on_progress: OnProgress | None = None,
    broken: Sequence[BrokenLine] = (),
) -> BatchOutcome:
    """Run a plan to its end or to a soft stop; the crew is closed either way."""
    total = len(plan.finished) + len(plan.errands)
    paid = sum(result.cost_usd for result in plan.finished.values())
    progress = Progress(total=total, before=len(plan.finished), cost_usd=paid)
    try:
        outcome = Drive(plan, folder, crew, progress, cancel=cancel or threading.Event(), on_progress=on_progress).run()
    finally:
        crew.close()
    return replace(outcome, broken=tuple(broken))
