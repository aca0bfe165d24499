"""What came of a benchmark: metrics as mean and spread over repeats, cost and time, and a page of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sonde.bench.results import Result
from sonde.bench.scoring import Spread, mean_of, spread
from sonde.bench.suite import METHODS, Case, Suite


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What came of one method: each metric as mean and spread over repeats, cost and time a case, tables of the first repeat."""

    method: str
    cases: int
    left_out: int
    failed: int
    metrics: dict[str, Spread]
    seconds: float
    tokens: float
    cost_usd: float
    tables: str


def summarise(suite: Suite, results: Iterable[Result]) -> list[Summary]:
    """One summary a method, over the cases that it was tried on."""
    listed = list(results)
    known = {case.key: case for case in suite.cases()}
    methods = [method for method in METHODS if any(result.method == method for result in listed)]
    return [_summary(suite, method, [each for each in listed if each.method == method], known) for method in methods]


def _summary(suite: Suite, method: str, results: list[Result], known: dict[str, Case]) -> Summary:
    tried = [each for each in results if each.fits]
    repeats = sorted({each.repeat for each in tried})
    by_repeat = [_metrics(suite, [each for each in tried if each.repeat == repeat], known) for repeat in repeats]
    names = dict.fromkeys(name for metrics in by_repeat for name in metrics)
    first = [each for each in tried if each.repeat == (repeats[0] if repeats else 0)]
    count = max(len(tried), 1)
    return Summary(
        method=method,
        cases=len({each.case for each in tried}),
        left_out=len({each.case for each in results if not each.fits}),
        failed=sum(each.predicted is None for each in tried),
        metrics={name: spread([metrics[name] for metrics in by_repeat if name in metrics]) for name in names},
        seconds=sum(each.seconds for each in tried) / count,
        tokens=sum(each.tokens for each in tried) / count,
        cost_usd=sum(each.cost_usd for each in tried) / count,
        tables=suite.tables(_predictions(suite, first, known)) if first else "",
    )


def _metrics(suite: Suite, results: list[Result], known: dict[str, Case]) -> dict[str, float]:
    predictions = _predictions(suite, results, known)
    return {**mean_of([suite.score(case, predicted) for case, predicted in predictions]), **suite.overall(predictions)}


def _predictions(suite: Suite, results: list[Result], known: dict[str, Case]) -> list[tuple[Case, Any]]:
    """With an empty prediction where there was none: a failed run is wrong, not absent."""
    return [
        (known[each.case], suite.predicted({}) if each.predicted is None else each.predicted)
        for each in results
        if each.case in known
    ]


def markdown(suite: Suite, summaries: Sequence[Summary]) -> str:
    """All summaries as a page."""
    names = dict.fromkeys(name for summary in summaries for name in summary.metrics)
    head = ["method", "cases", "does not fit", "failed", *names, "s/case", "tokens/case", "USD/case"]
    lines = [f"# {suite.name}", "", _row(head), _row(["---"] * len(head))]
    for each in summaries:
        measured = [str(each.metrics[name]) if name in each.metrics else "" for name in names]
        counts = [each.method, str(each.cases), str(each.left_out), str(each.failed)]
        lines.append(_row([*counts, *measured, f"{each.seconds:.0f}", f"{each.tokens:.0f}", f"{each.cost_usd:.4f}"]))
    for each in summaries:
        lines += ["", f"## {each.method}", "", each.tables]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
