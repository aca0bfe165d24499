"""The results of a benchmark summed up: metrics as mean and spread over repeats, cost and time, and a page of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from sonde.bench.metrics import Spread, headroom_gain, mean_of, spread
from sonde.bench.suite import METHODS, BenchCase, Suite, Trial

COUNTS = frozenset({"findings", "majority"})  # metrics that are not better when they are higher


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One method: metrics, cost and time per case, as mean and spread over repeats; tables of the first repeat."""

    method: str
    cases: int
    left_out: int
    failed: int
    metrics: dict[str, Spread]
    seconds: Spread
    tokens: Spread
    cost_usd: Spread
    cached: float
    """The share of all tokens that a provider had in its cache."""
    tables: str


def summarise(suite: Suite, results: Iterable[Trial]) -> list[Summary]:
    """One summary per method, over the cases that it was tried on."""
    known = {case.key: case for case in suite.cases()}
    summaries: list[Summary] = []
    for method, found in per_method(results).items():
        tried = [each for each in found if each.fits]
        repeats = sorted({each.repeat for each in tried})
        rounds = [[each for each in tried if each.repeat == repeat] for repeat in repeats]
        by_repeat = [_metrics(suite, each, known) for each in rounds]
        names = dict.fromkeys(name for metrics in by_repeat for name in metrics)
        summaries.append(
            Summary(
                method=method,
                cases=len({each.case for each in tried}),
                left_out=len({each.case for each in found if not each.fits}),
                failed=sum(each.predicted is None for each in tried),
                metrics={name: spread([metrics[name] for metrics in by_repeat if name in metrics]) for name in names},
                seconds=spread([fmean(each.seconds for each in trials) for trials in rounds]),
                tokens=spread([fmean(each.tokens for each in trials) for trials in rounds]),
                cost_usd=spread([fmean(each.cost_usd for each in trials) for trials in rounds]),
                cached=sum(each.cached for each in tried) / max(1, sum(each.tokens for each in tried)),
                tables=suite.tables(_predictions(suite, rounds[0], known)) if rounds else "",
            )
        )
    return summaries


def per_method(results: Iterable[Trial]) -> dict[str, list[Trial]]:
    """The results of each method that has some, in the order of METHODS."""
    listed = list(results)
    found = {method: [each for each in listed if each.method == method] for method in METHODS}
    return {method: each for method, each in found.items() if each}


def _metrics(suite: Suite, results: list[Trial], known: dict[str, BenchCase]) -> dict[str, float]:
    predictions = _predictions(suite, results, known)
    return {**mean_of([suite.score(case, predicted) for case, predicted in predictions]), **suite.overall(predictions)}


def _predictions(suite: Suite, results: list[Trial], known: dict[str, BenchCase]) -> list[tuple[BenchCase, Any]]:
    """Each case with its prediction; an empty one where there was none, because a failed run is wrong, not absent."""
    return [
        (known[each.case], suite.predicted({}) if each.predicted is None else each.predicted)
        for each in results
        if each.case in known
    ]


def markdown(suite: Suite, summaries: Sequence[Summary]) -> str:
    """All summaries as a page."""
    names = list(dict.fromkeys(name for summary in summaries for name in summary.metrics))
    head = heads(names)
    lines = [f"# {suite.name}", "", _row(head), _row(["---"] * len(head))]
    lines += [_row(cells(each, names)) for each in summaries]
    for each in summaries:
        lines += ["", f"## {each.method}", "", each.tables]
    return "\n".join(lines) + "\n"


def compared(suite: Suite, results: Iterable[Trial]) -> str:
    """Sonde beside each baseline on the cases that both were tried on, with the share it won of what the baseline left open."""
    tried = {method: [r for r in found if r.fits] for method, found in per_method(results).items()}
    known = {case.key: case for case in suite.cases()}
    ours = tried.pop("sonde", [])
    text = ""
    for method, theirs in tried.items():
        both = {each.case for each in theirs} & {each.case for each in ours}
        if not both:
            continue
        base, value = (_metrics(suite, [r for r in found if r.case in both], known) for found in (theirs, ours))
        head = ["metric", method, "sonde", "won of what was open"]
        rows = [
            [name, f"{base[name]:.2f}", f"{value[name]:.2f}", f"{headroom_gain(base[name], value[name]):+.2f}"]
            for name in value
            if name in base and name not in COUNTS and base[name] < 1
        ]
        text += f"\n## sonde beside {method} on the {len(both)} cases of both\n\n"
        text += "\n".join(map(_row, [head, ["---"] * len(head), *rows])) + "\n"
    return text


def heads(names: Sequence[str]) -> list[str]:
    """The column heads of a table of summaries with these metrics."""
    return ["method", "cases", "does not fit", "failed", *names, "s/case", "tokens/case", "cached", "USD/case"]


def cells(summary: Summary, names: Sequence[str]) -> list[str]:
    """One summary as a row of that table."""
    measured = [str(summary.metrics[name]) if name in summary.metrics else "" for name in names]
    counts = [summary.method, str(summary.cases), str(summary.left_out), str(summary.failed)]
    used = [summary.seconds.shown(1), summary.tokens.shown(0), f"{summary.cached:.0%}", summary.cost_usd.shown(4)]
    return [*counts, *measured, *used]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
