"""The shape of a trace: its tree as far as it is one, what is wrong with it, and a glance at one trace or many.

Pure over span summaries, and bounded on hostile input.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from sonde.contexts.traces.span import Row, SpanSummary, time_text
from sonde.core.canonical import clip

MAX_GROUPS = 50
MANY_SPANS = 10_000
SKEW_US = 1_000_000
SPANS = 300
"""As many spans as a picture shows."""
DRAWN_CHARS = 400
_NAMED = 5
_VARYING = re.compile(r"0x[0-9a-f]+|[0-9a-f]{8,}|\d+|'[^']*'|\"[^\"]*\"", re.IGNORECASE)


class Tree:
    """Spans of one trace by id and by parent. A cycle is cut where its earliest span would have its parent."""

    def __init__(self, spans: Iterable[SpanSummary]) -> None:
        ordered = sorted(spans, key=lambda span: span.order)
        self.by_id: dict[str, SpanSummary] = {}
        for span in ordered:
            self.by_id.setdefault(span.span_id, span)
        self.cut: set[str] = set()  # one span of each cycle: the earliest, so that the cut is the same in every store
        state: dict[str, int] = {}
        for number, start in enumerate(self.by_id.values(), start=1):
            trail: list[str] = []
            each: SpanSummary | None = start
            while each is not None and each.span_id not in state:
                state[each.span_id] = number
                trail.append(each.span_id)
                each = self.by_id.get(each.parent_id) if each.parent_id else None
            if each is not None and state[each.span_id] == number:
                ring = trail[trail.index(each.span_id) :]
                self.cut.add(min(ring, key=lambda span_id: self.by_id[span_id].order))
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


class DrawnSpan(msgspec.Struct, frozen=True, kw_only=True):
    """A span of the page's picture; times are in milliseconds from the first drawn span."""

    span_id: str
    name: str
    kind: str
    status: str
    message: str
    depth: int
    start_ms: float
    latency_ms: float


class TracePicture(msgspec.Struct, frozen=True, kw_only=True):
    """Spans of one trace from the top down, and how many were left out."""

    trace_id: str
    spans: list[DrawnSpan]
    left_out: int


class KeptTrace(msgspec.Struct, frozen=True, kw_only=True):
    """What a run over a server keeps of it for the page: the picture of the trace that the report is about, and the cited texts."""

    picture: TracePicture | None = None
    texts: list[str] = []


def picture_of(trace_id: str, spans: Iterable[SpanSummary], cited: Collection[str]) -> TracePicture:
    """At most SPANS of a trace's spans: failed and cited ones come first, with those above them."""
    tree = Tree(spans)
    told = [span for span in tree.by_id.values() if span.status == "ERROR" or span.span_id in cited]
    kept: dict[str, SpanSummary] = {}
    for span in islice((*told, *tree.by_id.values()), 10 * SPANS):  # a hostile trace may be one chain of all its spans
        path: list[SpanSummary] = []
        each: SpanSummary | None = span
        while each is not None and each.span_id not in kept and len(path) <= SPANS:
            path.append(each)
            each = tree.parent(each)
        fitting = path if len(kept) + len(path) <= SPANS else path[:1]
        if len(kept) + len(fitting) <= SPANS:
            kept |= {each.span_id: each for each in fitting}
    began = min((span.start_us for span in kept.values()), default=0)
    drawn: list[DrawnSpan] = []
    left = [(span, 0) for span in reversed(tree.roots())]
    while left:
        span, depth = left.pop()
        left += [(child, depth + 1) for child in reversed(tree.children(span.span_id))]
        if span.span_id in kept:
            drawn.append(
                DrawnSpan(
                    span_id=span.span_id,
                    name=clip(span.name, DRAWN_CHARS),
                    kind=span.kind,
                    status=span.status,
                    message=clip(span.status_message, DRAWN_CHARS),
                    depth=depth,
                    start_ms=(span.start_us - began) / 1000,
                    latency_ms=span.latency_ms,
                )
            )
    return TracePicture(trace_id=trace_id, spans=drawn, left_out=len(tree.by_id) - len(drawn))


def shape_gaps(spans: Sequence[SpanSummary]) -> list[str]:
    """What is wrong with the tree of a trace, in words."""
    tree = Tree(spans)
    missing = [s for s in tree.by_id.values() if s.parent_id is not None and s.parent_id not in tree.by_id]
    skewed = [s for s in tree.by_id.values() if (above := tree.parent(s)) and s.start_us < above.start_us - SKEW_US]
    gaps = [
        _gap(missing, "parent span is missing"),
        _gap([tree.by_id[span_id] for span_id in sorted(tree.cut)], "the span is its own ancestor: a cycle, cut here"),
        _gap(skewed, "starts more than a second before its parent: clock skew"),
    ]
    if len(spans) > MANY_SPANS:
        gaps.append(f"{len(spans)} spans in one trace: lists come in pages")
    return [gap for gap in gaps if gap]


def _gap(spans: list[SpanSummary], what: str) -> str:
    if not spans:
        return ""
    named = ", ".join(span.span_id for span in spans[:_NAMED])
    more = f" and {len(spans) - _NAMED} more" if len(spans) > _NAMED else ""
    return f"{what}: {named}{more}"


@dataclass(slots=True)
class ErrorGroup:
    """Failed spans that say the same, numbers and quoted names aside."""

    name: str
    kind: str
    message: str
    spans: list[SpanSummary] = field(default_factory=list[SpanSummary])

    def row(self) -> Row:
        """For tools and reports."""
        return {
            "name": self.name,
            "span_kind": self.kind,
            "message": self.message,
            "count": len(self.spans),
            "span_ids": [span.span_id for span in self.spans[:5]],
            "trace_ids": sorted({span.trace_id for span in self.spans})[:5],
            "first_time": time_text(min(span.start_us for span in self.spans)),
        }


def error_groups(spans: Iterable[SpanSummary], called: Callable[[str], str] = str) -> list[ErrorGroup]:
    """Groups of failed spans, the largest first, then by name and message. `called` is the name of a group of spans of this name."""
    groups: dict[tuple[str, str, str], ErrorGroup] = {}
    for span in spans:
        if span.status == "ERROR" or span.exception:
            same = " ".join(_VARYING.sub("#", span.status_message[:400]).split())
            name = called(span.name)
            group = groups.setdefault((name, span.kind, same), ErrorGroup(name, span.kind, span.status_message[:400]))
            group.spans.append(span)
    return sorted(groups.values(), key=lambda group: (-len(group.spans), group.name, group.message))


def quantiles(values: Sequence[float]) -> Row:
    """The usual quantiles by the nearest rank: always a value that occurred."""
    if not values:
        return {}
    ordered = sorted(values)
    ranks = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99, "max": 1.0}
    return {name: ordered[max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1)] for name, share in ranks.items()}


def trace_overview(trace_id: str, spans: Sequence[SpanSummary], gaps: Sequence[str]) -> Row:
    """One trace at a glance."""
    slowest = sorted(spans, key=lambda span: (-span.latency_ms, span.span_id))[:5]
    return {
        "trace_id": trace_id,
        "span_count": len(spans),
        "roots": [span.row() for span in Tree(spans).roots()[:5]],
        "start_time": time_text(min(span.start_us for span in spans)),
        "kinds": counts(span.kind for span in spans),
        "statuses": counts(span.status for span in spans),
        "names": counts(span.name for span in spans),
        "latency_ms": quantiles([span.latency_ms for span in spans]),
        "slowest": [span.row() for span in slowest],
        "error_groups": [group.row() for group in error_groups(spans)[:MAX_GROUPS]],
        "gaps": list(gaps),
    }


def counts(words: Iterable[str]) -> dict[str, int]:
    """Most frequent first, then by name; at most fifty."""
    counted = sorted(Counter(words).items(), key=lambda item: (-item[1], item[0]))
    return dict(counted[:50])
