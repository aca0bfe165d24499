"""Which traces stand for an incident: the worst errors, the slowest, and the largest groups that these two leave out (contracts 2.6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sonde.contexts.traces.shape import Tree
from sonde.contexts.traces.span import Row, SpanSummary

WANTED = 12
ERROR_BUCKET = 5
LATENCY_BUCKET = 5
CLUSTER_BUCKET = 2
_BUCKETS = ("error", "latency", "cluster", "override")
Signature = tuple[str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFacts:
    """What the selection looks at in one trace."""

    trace_id: str
    root_span_id: str
    root_name: str
    first_tool: str
    first_error: str
    error_spans: int
    latency_ms: float
    start_us: int

    @property
    def signature(self) -> Signature:
        """Traces with the same one tell the same story."""
        return (self.root_name, self.first_tool, self.first_error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Representative:
    """A chosen trace, the bucket it came from and its score there."""

    facts: TraceFacts
    bucket: str
    score: float

    @property
    def why_selected(self) -> str:
        """As dossiers say it."""
        facts = self.facts
        figures = f"score={self.score:g} error_spans={facts.error_spans} latency_ms={facts.latency_ms:g}"
        return f"{self.bucket} bucket: {figures}"

    def row(self) -> Row:
        """For the sandbox and the prompt."""
        ids = {"trace_id": self.facts.trace_id, "root_span_id": self.facts.root_span_id}
        return {**ids, "bucket": self.bucket, "score": self.score, "why_selected": self.why_selected}


def facts_of(trace_id: str, spans: Sequence[SpanSummary]) -> TraceFacts:
    """The facts of one trace."""
    ordered = sorted(spans, key=lambda span: span.order)
    root = Tree(ordered).roots()[0]
    failed = [span for span in ordered if span.status == "ERROR"]
    start = min(span.start_us for span in ordered)
    return TraceFacts(
        trace_id=trace_id,
        root_span_id=root.span_id,
        root_name=root.name,
        first_tool=next((span.name for span in ordered if span.kind == "TOOL"), ""),
        first_error=failed[0].status_message if failed else "",
        error_spans=len(failed),
        latency_ms=max(0, max(span.end_us or span.start_us for span in ordered) - start) / 1000,
        start_us=start,
    )


def representatives(
    traces: Iterable[TraceFacts], overrides: Sequence[str] = (), wanted: int = WANTED
) -> list[Representative]:
    """At most `wanted` traces, none telling the same story twice, by (bucket, score, id); overrides come on top."""
    known = sorted(traces, key=lambda facts: facts.trace_id)
    sizes = Counter(facts.signature for facts in known)
    buckets: list[tuple[str, int, list[tuple[float, TraceFacts]]]] = [
        ("error", ERROR_BUCKET, [(float(facts.error_spans), facts) for facts in known if facts.error_spans]),
        ("latency", LATENCY_BUCKET, [(facts.latency_ms, facts) for facts in known]),
        ("cluster", CLUSTER_BUCKET, [(float(sizes[facts.signature]), facts) for facts in known]),
    ]
    found: list[Representative] = []
    stories: set[Signature] = set()
    for bucket, count, scored in buckets:
        taken = 0
        for score, facts in sorted(scored, key=lambda one: (-one[0], -one[1].latency_ms, one[1].trace_id)):
            if taken < count and facts.signature not in stories:
                stories.add(facts.signature)
                found.append(Representative(facts=facts, bucket=bucket, score=score))
                taken += 1
    found = found[:wanted]
    present = {one.facts.trace_id for one in found}
    forced = [facts for facts in known if facts.trace_id in overrides and facts.trace_id not in present]
    found += [Representative(facts=facts, bucket="override", score=0.0) for facts in forced]
    return sorted(found, key=lambda one: (_BUCKETS.index(one.bucket), -one.score, one.facts.trace_id))
