"""The metrics of the benchmarks, as pure functions: what was predicted, what is gold, numbers.

TRAIL's published scores are recalls (a gold span found counts, however many wrong ones were named), so precision always stands beside them.
An empty gold set makes recall undefined; such a case is 1 when nothing was predicted and 0 otherwise.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hits:
    """How two sets meet."""

    recall: float
    precision: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One category over all traces: in how many it is gold, and how well it was named."""

    category: str
    gold: int
    named: int
    right: int

    @property
    def precision(self) -> float:
        """Right among the named."""
        return self.right / self.named if self.named else 0.0

    @property
    def recall(self) -> float:
        """Right among the gold."""
        return self.right / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        """The harmonic mean of the two."""
        both = self.precision + self.recall
        return 2 * self.precision * self.recall / both if both else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A mean with the standard deviation over repeats."""

    mean: float
    deviation: float
    repeats: int

    def __str__(self) -> str:
        return self.shown(2)

    def shown(self, digits: int) -> str:
        """With so many digits; the deviation only where there is more than one repeat."""
        mean = f"{self.mean:.{digits}f}"
        return mean if self.repeats < 2 else f"{mean} ± {self.deviation:.{digits}f}"


def overlap(predicted: Collection[Hashable], gold: Collection[Hashable]) -> Hits:
    """Recall and precision of one set against another."""
    named, wanted = set(predicted), set(gold)
    if not wanted:
        only = 0.0 if named else 1.0
        return Hits(recall=only, precision=only)
    right = len(named & wanted)
    return Hits(recall=right / len(wanted), precision=right / len(named) if named else 0.0)


def category_rows(traces: Sequence[tuple[Collection[str], Collection[str]]], categories: Sequence[str]) -> list[Row]:
    """Per category: in how many traces it was named, is gold, and both. `traces` are (predicted, gold) categories."""
    named, gold, right = Counter[str](), Counter[str](), Counter[str]()
    for predicted, wanted in traces:
        named.update(set(predicted))
        gold.update(set(wanted))
        right.update(set(predicted) & set(wanted))
    return [Row(category=each, gold=gold[each], named=named[each], right=right[each]) for each in categories]


def weighted_f1(rows: Sequence[Row]) -> float:
    """F1 over the categories, weighted by how often each is gold, as the benchmark's authors do."""
    total = sum(row.gold for row in rows)
    return sum(row.f1 * row.gold for row in rows) / total if total else 0.0


def spread(values: Sequence[float]) -> Spread:
    """Mean and standard deviation of the results of repeats."""
    if not values:
        return Spread(mean=0.0, deviation=0.0, repeats=0)
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return Spread(mean=statistics.fmean(values), deviation=deviation, repeats=len(values))


def mean_of(scores: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each metric over the cases that have it."""
    names = dict.fromkeys(name for score in scores for name in score)
    return {name: statistics.fmean(score[name] for score in scores if name in score) for name in names}


def headroom_gain(baseline: float, value: float) -> float:
    """How much of what the baseline left open was won: a baseline at 0.95 cannot be beaten by 0.10."""
    return (value - baseline) / (1 - baseline) if baseline < 1 else 0.0


def plain_name(name: str) -> str:
    """A category's name without the accidents of spelling: case, blanks, hyphens, a plural s at the end of a word."""
    words = re.sub(r"[^a-z0-9]+", " ", name.casefold()).split()
    return " ".join(word[:-1] if word.endswith("s") and not word.endswith("ss") else word for word in words)
