"""A trace, or many, at a glance: kinds, errors grouped by what they say, latencies. Pure over span summaries."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sonde.contexts.traces.shape import Tree
from sonde.contexts.traces.span import Row, SpanSummary, time_text

MAX_GROUPS = 50
_VARYING = re.compile(r"0x[0-9a-f]+|[0-9a-f]{8,}|\d+|'[^']*'|\"[^\"]*\"", re.IGNORECASE)


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


def signature(message: str) -> str:
    """The message without what varies from one occurrence to the next."""
    return " ".join(_VARYING.sub("#", message[:400]).split())


def error_groups(spans: Iterable[SpanSummary]) -> list[ErrorGroup]:
    """Groups of failed spans, the largest first, then by name and message."""
    groups: dict[tuple[str, str, str], ErrorGroup] = {}
    for span in spans:
        if span.status == "ERROR" or span.exception:
            key = (span.name, span.kind, signature(span.status_message))
            groups.setdefault(key, ErrorGroup(span.name, span.kind, span.status_message[:400])).spans.append(span)
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
    tree = Tree(spans)
    slowest = sorted(spans, key=lambda span: (-span.latency_ms, span.span_id))[:5]
    return {
        "trace_id": trace_id,
        "span_count": len(spans),
        "roots": [span.row() for span in tree.roots()[:5]],
        "start_time": time_text(min(span.start_us for span in spans)),
        "kinds": _counts(span.kind for span in spans),
        "statuses": _counts(span.status for span in spans),
        "names": _counts(span.name for span in spans),
        "latency_ms": quantiles([span.latency_ms for span in spans]),
        "slowest": [span.row() for span in slowest],
        "error_groups": [group.row() for group in error_groups(spans)[:MAX_GROUPS]],
        "gaps": list(gaps),
    }


def many_overview(traces: Sequence[tuple[str, Sequence[SpanSummary]]]) -> Row:
    """Many traces at a glance: how many failed, how long they took, what their errors say."""
    spans = [span for _, found in traces for span in found]
    failed = [trace_id for trace_id, found in traces if any(span.status == "ERROR" for span in found)]
    return {
        "trace_count": len(traces),
        "span_count": len(spans),
        "failed_traces": len(failed),
        "kinds": _counts(span.kind for span in spans),
        "statuses": _counts(span.status for span in spans),
        "latency_ms": quantiles([_duration(found) for _, found in traces if found]),
        "error_groups": [group.row() for group in error_groups(spans)[:MAX_GROUPS]],
    }


def _duration(spans: Sequence[SpanSummary]) -> float:
    start = min(span.start_us for span in spans)
    return max(0, max(span.end_us or span.start_us for span in spans) - start) / 1000


def _counts(words: Iterable[str]) -> dict[str, int]:
    """Most frequent first, then by name; at most fifty."""
    counted = sorted(Counter(words).items(), key=lambda item: (-item[1], item[0]))
    return dict(counted[:50])
