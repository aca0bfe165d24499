"""How far a batch is, as a fold of results: rate, cost, failures by code, time left. Prints nothing."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from sonde.batch.result import ItemResult
from sonde.core.plurals import plural

WINDOW_S = 60.0


@dataclass(slots=True)
class Progress:
    """The counts of one start of a batch. `before` were finished by earlier starts."""

    total: int
    before: int = 0
    done: int = 0
    running: int = 0
    cost_usd: float = 0.0
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
        self._recent.append(now)

    def rate(self, now: float) -> float:
        """Items a second over the last minute."""
        while self._recent and self._recent[0] < now - WINDOW_S:
            self._recent.popleft()
        return len(self._recent) / max(1e-3, min(WINDOW_S, now - self._since))

    def left_s(self, now: float) -> float | None:
        """Seconds to the end at this rate; None while nobody can know."""
        rate = self.rate(now)
        return (self.total - self.before - self.done) / rate if rate > 0 else None

    def line(self, now: float) -> str:
        """All of it on one line."""
        left = self.left_s(now)
        parts = [f"{self.before + self.done:,}/{self.total:,}", f"{self.rate(now):.1f}/s", f"${self.cost_usd:.4f}"]
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
