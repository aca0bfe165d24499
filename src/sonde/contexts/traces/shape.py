"""The tree of a trace, as far as it is one: roots, children, paths, and what is wrong with it. Bounded on hostile input."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sonde.contexts.traces.span import SpanSummary

MANY_SPANS = 10_000
SKEW_US = 1_000_000
_NAMED = 5


class Tree:
    """Spans of one trace by id and by parent. A cycle is cut where its earliest span would have its parent."""

    def __init__(self, spans: Iterable[SpanSummary]) -> None:
        ordered = sorted(spans, key=lambda span: span.order)
        self.by_id: dict[str, SpanSummary] = {}
        for span in ordered:
            self.by_id.setdefault(span.span_id, span)
        self.cut = self._cycle_members()
        self._children: dict[str, list[SpanSummary]] = {}
        for span in self.by_id.values():
            parent = self.parent(span)
            if parent is not None:
                self._children.setdefault(parent.span_id, []).append(span)

    def parent(self, span: SpanSummary) -> SpanSummary | None:
        """The parent, when it is there and following it upwards ends somewhere."""
        if span.parent_id is None or span.span_id in self.cut:
            return None
        return self.by_id.get(span.parent_id)

    def children(self, span_id: str) -> list[SpanSummary]:
        """Direct children by (start, id)."""
        return self._children.get(span_id, [])

    def roots(self) -> list[SpanSummary]:
        """Spans without a parent in this trace, by (start, id)."""
        return [span for span in self.by_id.values() if self.parent(span) is None]

    def path(self, span_id: str) -> list[SpanSummary]:
        """From the root down to this span."""
        span = self.by_id.get(span_id)
        found: list[SpanSummary] = []
        while span is not None:
            found.append(span)
            span = self.parent(span)
        return found[::-1]

    def _cycle_members(self) -> set[str]:
        """One span of each cycle: the earliest, so that the cut is the same in every store."""
        state: dict[str, int] = {}
        cut: set[str] = set()
        for number, start in enumerate(self.by_id.values(), start=1):
            trail: list[str] = []
            span: SpanSummary | None = start
            while span is not None and span.span_id not in state:
                state[span.span_id] = number
                trail.append(span.span_id)
                span = self.by_id.get(span.parent_id) if span.parent_id else None
            if span is not None and state[span.span_id] == number:
                ring = trail[trail.index(span.span_id) :]
                cut.add(min(ring, key=lambda span_id: self.by_id[span_id].order))
        return cut


def shape_gaps(spans: Sequence[SpanSummary]) -> list[str]:
    """What is wrong with the tree of a trace, in words."""
    tree = Tree(spans)
    missing = [s for s in tree.by_id.values() if s.parent_id is not None and s.parent_id not in tree.by_id]
    skewed = [s for s in tree.by_id.values() if _starts_before(tree.parent(s), s)]
    gaps = [
        _gap(missing, "parent span is missing"),
        _gap([tree.by_id[span_id] for span_id in sorted(tree.cut)], "the span is its own ancestor: a cycle, cut here"),
        _gap(skewed, "starts more than a second before its parent: clock skew"),
    ]
    if len(spans) > MANY_SPANS:
        gaps.append(f"{len(spans)} spans in one trace: lists come in pages")
    return [gap for gap in gaps if gap]


def _starts_before(parent: SpanSummary | None, span: SpanSummary) -> bool:
    return parent is not None and span.start_us < parent.start_us - SKEW_US


def _gap(spans: list[SpanSummary], what: str) -> str:
    if not spans:
        return ""
    named = ", ".join(span.span_id for span in spans[:_NAMED])
    more = f" and {len(spans) - _NAMED} more" if len(spans) > _NAMED else ""
    return f"{what}: {named}{more}"
