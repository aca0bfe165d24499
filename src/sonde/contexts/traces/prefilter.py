"""The deterministic look at a trace before any model: hot spans, the branches around them, error groups and a rule's label.

Pure over span summaries; only the label opens spans, and only a bounded number. A model starts with its results as variables; without a
model they are the report. Text in a trace is matched against words, never followed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sonde.contexts.traces.caps import clipped
from sonde.contexts.traces.rules import RuleVerdict, judge
from sonde.contexts.traces.shape import MAX_GROUPS, Tree, error_groups, shape_gaps
from sonde.contexts.traces.span import Row, Span, SpanSummary

TOP_K = 5
MAX_DEPTH = 2
MAX_NODES = 30
OPENED_SPANS = 60
READ_CHARS = 20_000
_RANKS = {"RETRIEVER": 1, "TOOL": 2, "LLM": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbourhood:
    """The neighbourhood of a hot span: what lies between the root and it, and what hangs below the branch."""

    hot_span_id: str
    root_span_id: str
    spans: tuple[SpanSummary, ...]
    left_out: int = 0

    def row(self) -> Row:
        """For the sandbox and the prompt."""
        return {
            "hot_span_id": self.hot_span_id,
            "root_span_id": self.root_span_id,
            "span_ids": [span.span_id for span in self.spans],
            "left_out": self.left_out,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstLook:
    """What the pre-filter found in one trace."""

    trace_id: str
    hot_spans: tuple[SpanSummary, ...]
    branches: tuple[Neighbourhood, ...]
    error_groups: tuple[Row, ...]
    verdict: RuleVerdict
    gaps: tuple[str, ...]

    def variables(self) -> Row:
        """JSON-like variables for generated code to start with."""
        return {
            "trace_id": self.trace_id,
            "hot_spans": [span.row() for span in self.hot_spans],
            "branches": [branch.row() for branch in self.branches],
            "error_groups": list(self.error_groups),
            "rule": self.verdict.row(),
            "gaps": list(self.gaps),
        }


def prefilter(trace_id: str, spans: Sequence[SpanSummary], read: Callable[[str], Span]) -> FirstLook:
    """All of it for one trace; `read` opens a span."""
    tree = Tree(spans)
    hot = hot_spans(spans)
    branches = tuple(branch_of(tree, span) for span in hot)
    cut = [branch for branch in branches if branch.left_out]
    gaps = [
        f"branch of {branch.hot_span_id}: {branch.left_out} span{'s' * (branch.left_out != 1)} left out"
        for branch in cut
    ]
    # Worth opening for a label: failed spans, retrievers and tools, then models, the earliest of each first.
    ranked: list[tuple[int, tuple[int, str], str]] = []
    for span in tree.by_id.values():
        rank = 0 if span.status == "ERROR" or span.exception else _RANKS.get(span.kind, 3)
        ranked.append((rank, span.order, span.span_id))
    opened = sorted((order, span_id) for _, order, span_id in sorted(ranked)[:OPENED_SPANS])
    return FirstLook(
        trace_id=trace_id,
        hot_spans=tuple(hot),
        branches=branches,
        error_groups=tuple(group.row() for group in error_groups(spans)[:MAX_GROUPS]),
        verdict=judge([shortened(read(span_id)) for _, span_id in opened], tree, read),
        gaps=(*shape_gaps(spans), *gaps),
    )


def hot_spans(spans: Sequence[SpanSummary], top: int = TOP_K) -> list[SpanSummary]:
    """Failed spans first, then those with exceptions, then the slowest."""
    return sorted(spans, key=lambda s: (s.status != "ERROR", not s.exception, -s.latency_ms, s.span_id))[:top]


def branch_of(tree: Tree, hot: SpanSummary) -> Neighbourhood:
    """The path from the branch's root to the hot span, and the branch's children breadth first, both bounded."""
    path = tree.path(hot.span_id)
    below_root = path[1:] or path
    root = below_root[0]
    chosen = {span.span_id: span for span in below_root[-MAX_NODES:]}
    level, near = [root], [root]
    for _ in range(MAX_DEPTH):
        level = [child for span in level for child in tree.children(span.span_id)]
        near += level
    for span in near:
        if len(chosen) < MAX_NODES:
            chosen.setdefault(span.span_id, span)
    everything = [root]
    for span in everything:  # grows while it is walked
        everything += tree.children(span.span_id)
    left_out = len({span.span_id for span in (*below_root, *everything)}) - len(chosen)
    spans = tuple(sorted(chosen.values(), key=lambda span: span.order))
    return Neighbourhood(hot_span_id=hot.span_id, root_span_id=root.span_id, spans=spans, left_out=left_out)


def shortened(span: Span) -> Span:
    """The span with long texts cut: sixty hostile ones must not fill the memory, and rules read only beginnings."""
    return replace(span, attributes={key: clipped(value, READ_CHARS) for key, value in span.attributes.items()})
