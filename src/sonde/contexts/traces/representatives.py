"""Which traces stand for an incident: one of each of the largest groups of errors, slow ones, and the largest groups that these two
leave out (contracts 2.6).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from sonde.contexts.traces.groups import TraceFacts
from sonde.contexts.traces.span import Row

WANTED = 12
ERROR_BUCKET = 5
LATENCY_BUCKET = 5
CLUSTER_BUCKET = 2
SLOW = 1.5  # times the median latency


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


def representatives(
    traces: Iterable[TraceFacts],
    overrides: Sequence[str] = (),
    wanted: int = WANTED,
    groups: Mapping[str, str] | None = None,
) -> list[Representative]:
    """At most `wanted` traces, none telling the same story twice, by bucket and score; overrides come on top. `groups` says of which
    group a trace is; those of one group tell one story.
    """
    known = sorted(traces, key=lambda facts: facts.trace_id)
    stories = {facts.trace_id: (groups or {}).get(facts.trace_id) or facts.signature for facts in known}
    sizes = Counter(stories.values())
    slow = SLOW * median(facts.latency_ms for facts in known) if known else 0.0
    buckets: list[tuple[str, int, list[tuple[float, TraceFacts]]]] = [
        ("error", ERROR_BUCKET, [(float(sizes[stories[each.trace_id]]), each) for each in known if each.error_spans]),
        ("latency", LATENCY_BUCKET, [(facts.latency_ms, facts) for facts in known if facts.latency_ms > slow]),
        ("cluster", CLUSTER_BUCKET, [(float(sizes[stories[each.trace_id]]), each) for each in known]),
    ]
    found: list[Representative] = []
    told: set[Any] = set()
    for bucket, count, scored in buckets:
        taken = 0
        for score, facts in sorted(
            scored, key=lambda one: (-one[0], -one[1].error_spans, -one[1].latency_ms, one[1].trace_id)
        ):
            if taken < count and stories[facts.trace_id] not in told:
                told.add(stories[facts.trace_id])
                found.append(Representative(facts=facts, bucket=bucket, score=score))
                taken += 1
    found = found[:wanted]
    present = {one.facts.trace_id for one in found}
    forced = [facts for facts in known if facts.trace_id in overrides and facts.trace_id not in present]
    found += [Representative(facts=facts, bucket="override", score=0.0) for facts in forced]
    return found
