"""How far a batch is: where each item stands before the work begins, and the counts while it runs. Prints nothing.

An item is finished when results.jsonl says so, interrupted when its folder holds a journal, and untouched otherwise. If a journal ended
without its line in results.jsonl (the driver died in between), the worker that opens it notices.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from sonde.batch.folder import BatchFolder, ended_of
from sonde.batch.item_runner import Job
from sonde.batch.manifest import Item
from sonde.batch.result import ItemResult
from sonde.core.canonical import plural, shown_cost
from sonde.runs.journal import JournalUnreadable

WINDOW_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """`finished` by key; `jobs` in the order of the manifest, interrupted ones first: they are paid for in part."""

    finished: dict[str, ItemResult]
    jobs: tuple[Job, ...]
    interrupted: int
    spent_usd: float


def plan_batch(items: Sequence[Item], folder: BatchFolder, *, retry_failed: bool = False) -> BatchPlan:
    """What is left to do. A refused item is tried again; a failed one only on request, in a folder of its own."""
    lines, touched = folder.all_results(), folder.touched()
    known = {result.key: result for result in lines}
    finished: dict[str, ItemResult] = {}
    begun: list[Job] = []
    fresh: list[Job] = []
    for item in items:
        result = known.get(item.key)
        if result is not None and not (result.status == "refused" or (retry_failed and result.failed)):
            finished[item.key] = result
            continue
        attempt = 1 if result is None else result.attempt
        if result is not None:  # a run that ended and failed is tried again in the next folder
            run_dir = folder.run_dir(item, attempt)
            with suppress(JournalUnreadable):  # refused again, with the reason
                attempt += run_dir.journal_path.is_file() and ended_of(run_dir.read().events) is not None
        job = Job(item=item, attempt=attempt)
        name = folder.run_dir(item, job.attempt).run_id
        (begun if name in touched else fresh).append(job)
    paid = {(result.key, result.attempt): result.paid_usd for result in lines}
    paid |= {(job.item.key, job.attempt): folder.used(job.item, job.attempt).cost_usd for job in begun}
    return BatchPlan(finished=finished, jobs=(*begun, *fresh), interrupted=len(begun), spent_usd=sum(paid.values()))


@dataclass(slots=True)
class BatchProgress:
    """The counts of one start of a batch. `before` were finished by earlier starts."""

    total: int
    before: int = 0
    done: int = 0
    running: int = 0
    cost_usd: float = 0.0
    unpriced: bool = False
    statuses: Counter[str] = field(default_factory=Counter[str])
    codes: Counter[str] = field(default_factory=Counter[str])
    deaths: int = 0
    stopping: str | None = None
    _recent: deque[float] = field(default_factory=deque[float])
    _since: float = 0.0

    def begin(self, now: float) -> None:
        """The work starts."""
        self._since = now

    def add(self, result: ItemResult, now: float) -> None:
        """One more is done."""
        self.done += 1
        self.statuses[result.status] += 1
        if result.failed:
            self.codes[result.code or result.status] += 1
        self.unpriced |= not result.priced
        self._recent.append(now)

    def rate(self, now: float) -> float:
        """Items per second over the last minute."""
        while self._recent and self._recent[0] < now - WINDOW_S:
            self._recent.popleft()
        return len(self._recent) / max(1e-3, min(WINDOW_S, now - self._since))

    def left_s(self, now: float) -> float | None:
        """Seconds to the end at this rate; None while it cannot be known."""
        rate = self.rate(now)
        return (self.total - self.before - self.done) / rate if rate > 0 else None

    def line(self, now: float) -> str:
        """All of it on one line."""
        left = self.left_s(now)
        parts = [
            f"{self.before + self.done:,}/{self.total:,}",
            f"{self.rate(now):.1f}/s",
            shown_cost(None if self.unpriced else self.cost_usd),
        ]
        if self.codes:
            parts.append("failed: " + ", ".join(f"{code} {count}" for code, count in self.codes.most_common(3)))
        if self.deaths:
            parts.append(f"{plural(self.deaths, 'worker')} replaced")
        if self.stopping:
            parts.append(f"stopping: {self.stopping}; {self.running} in flight")
        elif left is not None:
            parts.append(f"{duration(left)} left")
        return " · ".join(parts)


def duration(seconds: float) -> str:
    """`42 s`, `3 min 10 s`, `2 h 05 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
