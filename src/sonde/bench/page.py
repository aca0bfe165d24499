"""The results of a benchmark as one HTML page with its plots inside. The page fetches nothing and runs nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from sonde.bench import plots
from sonde.bench.metrics import mean_of
from sonde.bench.suite import Suite, Trial
from sonde.bench.summary import Summary, cells, heads, per_method

STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse}td,th{border:1px solid #ddd;padding:.3rem .6rem;text-align:right}"
    "td:first-child,th:first-child{text-align:left}h2{margin-top:2rem}svg{max-width:100%;height:auto}"
)


def page(suite: Suite, summaries: Sequence[Summary], results: Iterable[Trial], title: str) -> str:
    """The whole page."""
    names = list(dict.fromkeys(name for summary in summaries for name in summary.metrics))
    head = "".join(f"<th>{escape(cell)}</th>" for cell in heads(names))
    rows = ["".join(f"<td>{escape(cell)}</td>" for cell in cells(each, names)) for each in summaries]
    table = f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"
    parts = [f"<h1>{escape(title)}</h1>", table]
    for name in names:
        values = {each.method: each.metrics[name] for each in summaries if name in each.metrics}
        parts += [f"<h2>{escape(name)}</h2>", plots.bars(values)]
    parts += _over_size(suite, list(results))
    # What the score costs: in money where any was spent, in tokens otherwise.
    paid = any(each.cost_usd.mean for each in summaries)
    across = "USD per case" if paid else "tokens per case"
    points = {
        each.method: (each.cost_usd.mean if paid else each.tokens.mean, next(iter(each.metrics.values())).mean)
        for each in summaries
        if each.metrics
    }
    if points:
        parts += [f"<h2>Score over {across}</h2>", plots.dots(points, across, "score")]
    body = "\n".join(parts)
    return f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>{body}</html>\n'


def _over_size(suite: Suite, results: list[Trial]) -> list[str]:
    """How the score falls with the size of the context, where sizes are known and differ."""
    known = {case.key: case for case in suite.cases()}
    if len({case.size for case in known.values()}) < 2:
        return []
    series: dict[str, list[tuple[float, float]]] = {}
    for method, tried in per_method(results).items():
        by_size: dict[int, list[dict[str, float]]] = {}
        for each in tried:
            case = known.get(each.case)
            if case is not None and each.fits:
                predicted = suite.predicted({}) if each.predicted is None else each.predicted
                by_size.setdefault(case.size, []).append(suite.score(case, predicted))
        series[method] = [(float(size), next(iter(mean_of(scores).values()), 0.0)) for size, scores in by_size.items()]
    plot = plots.lines(series, "characters of context", "score")
    return ["<h2>Score over the size of the context</h2>", plot] if plot else []
