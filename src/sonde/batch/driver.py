"""The door to batches, and the driver behind it: gives items to a crew, writes down what comes back, and stops softly.

outcome = run_batch(read_manifest(path), folder, settings, BatchOptions(limits=SharedLimits(concurrency=16)))

Every state is on disk: the driver may be killed at any point and started again with the same manifest. It stops early on request, when
the limits are used up, when the model answers nobody, or when the disk is full; runs are then paused, not ended.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from sonde.api.settings import Settings
from sonde.api.trace_source import cache_folder
from sonde.batch.crew import Crew, Done, Halted, Happening, Left, Lost
from sonde.batch.folder import BatchFolder, DiskFull, ResultLines
from sonde.batch.item_runner import Job, Order, check_models
from sonde.batch.limits import Limiter, SharedLimits
from sonde.batch.local import LocalCrew
from sonde.batch.manifest import BrokenLine, Item, Manifest
from sonde.batch.progress import BatchPlan, BatchProgress, plan_batch
from sonde.batch.result import ItemResult, given_up
from sonde.core.deadline import Clock, SystemClock
from sonde.engines.whole_trace import READING_MAXIMA
from sonde.errors import ConfigError, SandboxUnavailable

LOCAL = "local"
RAY = "ray"
LOOK_S = 0.2  # how soon a stop is noticed
DEATHS = 5  # of workers, before an item is given up
ALONE_AFTER = 2  # deaths, before an item gets a worker to itself: which of its neighbours killed it?
OnProgress = Callable[[BatchProgress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOutcome:
    """A batch at rest: all results, what is left and why, and the lines that were not items."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """How a batch is run. `on` is local, ray (an existing cluster, or one started here) or ray://HOST:PORT.

    Items read below the folder of their manifest; `allowed` are further files and folders.
    """

    on: str = LOCAL
    limits: SharedLimits = field(default_factory=SharedLimits)
    writeback: bool = True
    retry_failed: bool = False
    allowed: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        if self.on not in (LOCAL, RAY) and not self.on.startswith("ray://"):
            raise ConfigError(f"--on {self.on} is no place for a batch; use local, ray or ray://HOST:PORT")


def run_batch(
    manifest: Manifest,
    folder: BatchFolder,
    settings: Settings,
    options: BatchOptions | None = None,
    *,
    cancel: threading.Event | None = None,
    on_progress: OnProgress | None = None,
) -> BatchOutcome:
    """Run what is not finished yet. Raises ConfigError before anything is spent."""
    chosen = options or BatchOptions()
    roots = () if manifest.folder is None else (manifest.folder, *chosen.allowed)
    if roots:  # else the items were made from the user's own words
        check_places(manifest.items, settings, roots)
    with folder.held():
        folder.write_manifest(manifest.items)
        plan = plan_batch(manifest.items, folder, retry_failed=chosen.retry_failed)
        if not plan.jobs:
            return BatchOutcome(
                folder=folder,
                results=tuple(plan.finished.values()),
                left=0,
                stopped=None,
                broken=manifest.broken,
                spent_usd=plan.spent_usd,
            )
        # Questions have no maximum; an investigation with a smaller one than this refuses by itself.
        settings.budget(maxima=None if any(job.item.engine == "ask" for job in plan.jobs) else READING_MAXIMA)
        kept = settings
        if cache_folder(settings.environ) is None:  # every item would build its own indexes of trace files
            kept = replace(settings, environ={**settings.environ, "XDG_CACHE_HOME": str(folder.path / "cache")})
        order = Order(settings=kept, folder=folder.path, writeback=chosen.writeback, roots=roots)
        if chosen.on == LOCAL:
            check_models(settings)
            crew: Crew = LocalCrew(order, Limiter(chosen.limits, spent_usd=plan.spent_usd))
        else:
            from sonde.batch.cluster import RayCrew  # noqa: PLC0415  # Ray takes seconds to import, and may not be there

            crew = RayCrew(order, chosen.limits, chosen.on, spent_usd=plan.spent_usd, cancel=cancel)
        outcome = drive(plan, folder, crew, cancel=cancel, on_progress=on_progress, broken=manifest.broken)
        return replace(outcome, spent_usd=plan_batch(manifest.items, folder).spent_usd)


def check_places(items: Sequence[Item], settings: Settings, roots: Sequence[Path]) -> dict[str, str]:
    """Why items are not started, by their keys: what they name is not for a manifest to choose. ConfigError if that goes for all."""
    order = Order(settings=settings, folder=roots[0], roots=tuple(roots))
    found = {item.key: f"the item {item.id!r} {why}" for item in items if (why := order.refusal(item)) is not None}
    if found and len(found) == len(items):
        raise ConfigError(next(iter(found.values())))
    return found


@dataclass(slots=True)
class Drive:
    """One start of a batch."""

    plan: BatchPlan
    folder: BatchFolder
    crew: Crew
    progress: BatchProgress
    cancel: threading.Event = field(default_factory=threading.Event)
    on_progress: OnProgress | None = None
    clock: Clock = field(default_factory=SystemClock)
    _queue: deque[Job] = field(default_factory=deque[Job])
    _running: dict[str, Job] = field(default_factory=dict[str, Job])
    _deaths: Counter[str] = field(default_factory=Counter[str])
    _results: dict[str, ItemResult] = field(default_factory=dict[str, ItemResult])
    _lines: ResultLines | None = None

    def run(self) -> BatchOutcome:
        """Work until everything is done or paused."""
        self._queue.extend(self.plan.jobs)
        self._lines = ResultLines(self.folder.results)
        started = self.clock.now()
        self.progress.begin(started)
        try:
            while self._running or (self._queue and not self.progress.stopping):
                self._hand_out()
                for happening in self.crew.wait(LOOK_S):
                    self._take(happening)
                closed = self.crew.closed()
                if closed is not None:
                    self._stop(closed)
                if self.cancel.is_set():
                    self._stop("asked to stop")
                self.progress.running = len(self._running)
                if self.on_progress is not None:
                    self.on_progress(self.progress)
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
            job = self._queue.popleft()
            self._running[job.item.key] = job
            self.crew.give(job, alone=alone)

    def _take(self, happening: Happening) -> None:
        match happening:
            case Done(job=job, result=result):
                self._running.pop(job.item.key, None)
                self._keep(job, result)
            case Left(job=job, reason=reason):
                self._put_back(job)
                self._stop(reason)
            case Halted(job=job, reason=reason, usage=usage):
                self._put_back(job)
                if usage:
                    raise SandboxUnavailable(reason)
                self._stop(reason)
            case Lost(jobs=jobs, how=how):
                self.progress.deaths += 1
                for job in jobs:
                    self._running.pop(job.item.key, None)
                    self._deaths[job.item.key] += 1
                    if self._deaths[job.item.key] >= DEATHS:
                        message = f"{DEATHS} workers died while they were at this item, the last by {how}"
                        self._keep(job, given_up(job.item, message))
                    else:
                        self._queue.appendleft(job)  # first in line, from its journal

    def _put_back(self, job: Job) -> None:
        self._running.pop(job.item.key, None)
        self._queue.append(job)

    def _keep(self, job: Job, result: ItemResult) -> None:
        assert self._lines is not None
        if result.status == "failed" and result.cost_usd == 0:  # given up: what it had paid for is in its journal
            used = self.folder.used(job.item, job.attempt)
            result = msgspec.structs.replace(
                result,
                cost_usd=used.cost,
                known_usd=used.cost_usd if used.unpriced else 0.0,
                unpriced=used.unpriced,
                attempt=job.attempt,
            )
        try:
            self._lines.append(result)
        except DiskFull as error:
            self._queue.append(job)  # its journal has the end: the next start only reads it
            self._stop(f"{error.message}; make room and start the batch again")
            return
        self._results[result.key] = result
        self.progress.cost_usd += result.paid_usd
        self.progress.add(result, self.clock.now())
        self.crew.spent(self.progress.cost_usd)

    def _stop(self, reason: str) -> None:
        if self.progress.stopping is None:
            self.progress.stopping = reason
            self.crew.pause()


def drive(
    plan: BatchPlan,
    folder: BatchFolder,
    crew: Crew,
    *,
    cancel: threading.Event | None = None,
    on_progress: OnProgress | None = None,
    broken: Sequence[BrokenLine] = (),
) -> BatchOutcome:
    """Run a plan to its end or to a soft stop; the crew is closed either way."""
    total = len(plan.finished) + len(plan.jobs)
    paid = sum(result.paid_usd for result in plan.finished.values())
    progress = BatchProgress(total=total, before=len(plan.finished), cost_usd=paid)
    progress.unpriced = any(not result.priced for result in plan.finished.values())
    try:
        outcome = Drive(plan, folder, crew, progress, cancel=cancel or threading.Event(), on_progress=on_progress).run()
    finally:
        crew.close()
    return replace(outcome, broken=tuple(broken))
