"""What rules see in a window of time, before any model: representative traces, the first errors, the config changes.

Every trace of the window counts. TIMELINE_SHOWN errors and CHANGES_SHOWN changes are shown; what was left out is a gap. A window without
traces ends the run before a model is paid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

from sonde.contexts.traces.context import TracesContext
from sonde.contexts.traces.representatives import representatives
from sonde.contexts.traces.span import time_text
from sonde.contexts.traces.store import TraceQuery
from sonde.contexts.traces.views import span_excerpt
from sonde.contexts.traces.window import read_window, seconds
from sonde.core.evidence import Excerpt
from sonde.errors import EvidenceValidationFailed
from sonde.runtime.engine import Gathered, Prefilter

TIMELINE_SHOWN = 6
CHANGES_SHOWN = 4


def prefilter(gathered: Gathered) -> Prefilter:
    """Representatives, the first errors in time and the config changes of the window."""
    context = cast("TracesContext", gathered.context)
    query = cast("TraceQuery | None", gathered.params.get("query"))
    named = cast("Sequence[str]", gathered.params.get("trace_ids", ()))
    window = read_window(context.store, query, named)
    gaps = [*context.store.skipped(), *window.gaps]
    groups = {window.traces[at].trace_id: each.id for each in reversed(window.groups) for at in each.members}
    chosen = representatives(window.traces, named, groups=groups)
    if not chosen:
        every = context.store.traces(TraceQuery(project=query.project if query else None, limit=1000))
        began = [seconds(row.start_us) for row in every.rows]
        times = f" (traces began between {began[0]} and {began[-1]}{' or later' * bool(every.more)})" if began else ""
        raise EvidenceValidationFailed(
            f"no trace lies in this window{times}; widen --from and --to, or --last, or name trace ids"
        )
    spans = {each.facts.trace_id: context.store.summaries(each.facts.trace_id) for each in chosen}
    for trace_id in spans:
        gaps += [f"{trace_id}: {gap}" for gap in context.store.gaps(trace_id)]
    failed = [span for each in spans.values() for span in each if span.status == "ERROR"]
    timeline = sorted(failed, key=lambda span: span.order)[:TIMELINE_SHOWN]
    if len(failed) > len(timeline):
        gaps.append(f"by rule, the timeline has only the first {len(timeline)} of {len(failed)} failed spans")
    changes, diffs = _changes(context, gathered.params, seconds(timeline[0].start_us) if timeline else "", gaps)
    roots = [span for each in chosen for span in spans[each.facts.trace_id] if span.span_id == each.facts.root_span_id]
    lines = ["Representative traces:", *(f"- {each.facts.trace_id}: {each.why_selected}" for each in chosen)]
    if timeline:
        lines.append("First errors in time:")
    for span in timeline:
        message = " ".join(span.status_message.split())[:100]
        lines.append(f"- {time_text(span.start_us)} {span.name}: {message} (span {span.span_id})")
    if changes:
        lines.append("Config changes:")
    lines += [f"- {c['base_snapshot_id']} -> {c['target_snapshot_id']}: {c['summary']}" for c in changes]
    return Prefilter(
        variables={
            "representatives": [each.row() for each in chosen],
            "timeline": [
                {
                    "timestamp": seconds(span.start_us),
                    "event": f"{span.name} failed: {' '.join(span.status_message.split())[:200] or 'no message'}",
                    "trace_id": span.trace_id,
                    "component": span.name,
                    "evidence_refs": [{"kind": "SPAN", "ref": span.span_id}],
                }
                for span in timeline
            ],
            "config_changes": changes,
        },
        text="\n".join(lines),
        excerpts=(*(span_excerpt(span) for span in (*roots, *timeline)), *diffs),
        gaps=tuple(gaps),
    )


def _changes(
    context: TracesContext, params: Mapping[str, Any], first_error: str, gaps: list[str]
) -> tuple[list[dict[str, Any]], tuple[Excerpt, ...]]:
    """The last changes up to the end of the window (later ones cannot have caused it), and the last before the first error."""
    query = cast("TraceQuery | None", params.get("query"))
    end = None if query is None or query.end_us is None else seconds(query.end_us)
    snapshots = context.configs.list_config_snapshots(str(params.get("project") or ""), end_time=end)
    created = {row["snapshot_id"]: row["created_at"] for row in snapshots}
    every = list(pairwise(snapshots))
    before = [pair for pair in every if pair[1]["created_at"] <= first_error]
    pairs = every[-CHANGES_SHOWN:]
    if before and before[-1] not in pairs:
        pairs = [before[-1], *pairs[1:]]
    if len(every) > len(pairs):
        gaps.append(
            f"{len(every) - len(pairs)} of {len(every)} config changes are not shown; get_config_diff compares any two"
        )
    diffs = [context.configs.get_config_diff(a["snapshot_id"], b["snapshot_id"]) for a, b in pairs]
    found = [each for each in diffs if each.value["paths"]]
    rows = [{**each.value, "created_at": created[each.value["target_snapshot_id"]]} for each in found]
    return rows, tuple(excerpt for each in found for excerpt in each.excerpts)
