"""What rules see in a window of time, before any model: representative traces, the first errors, the config changes.

Bounded: at most MAX_FAILED failed traces and MAX_TRACES of the first ones of the window are looked at, and TIMELINE_SHOWN
errors and CHANGES_SHOWN changes are shown; what was left out is a gap. A window without traces ends the run before a model is paid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

from sonde.contexts.traces.context import TracesContext
from sonde.contexts.traces.filters import parse_filter
from sonde.contexts.traces.representatives import facts_of, representatives
from sonde.contexts.traces.span import time_text
from sonde.contexts.traces.store import TraceQuery
from sonde.contexts.traces.views import span_excerpt
from sonde.core.evidence import Excerpt
from sonde.errors import EvidenceValidationFailed
from sonde.runtime.engine import Gathered, Prefilter

MAX_FAILED = 200
MAX_TRACES = 200
TIMELINE_SHOWN = 6
CHANGES_SHOWN = 4


def prefilter(gathered: Gathered) -> Prefilter:
    """Representatives, the first errors in time and the config changes of the window."""
    context = cast("TracesContext", gathered.context)
    gaps = context.store.skipped()
    found = {trace_id: context.store.summaries(trace_id) for trace_id in _trace_ids(context, gathered.params, gaps)}
    facts = [facts_of(trace_id, spans) for trace_id, spans in found.items() if spans]
    chosen = representatives(facts, cast("Sequence[str]", gathered.params.get("trace_ids", ())))
    if not chosen:
        query = cast("TraceQuery | None", gathered.params.get("query")) or TraceQuery()
        every = context.store.traces(TraceQuery(project=query.project, limit=1000))
        began = [seconds(row.start_us) for row in every.rows]
        times = f" (traces began between {began[0]} and {began[-1]}{' or later' * bool(every.more)})" if began else ""
        raise EvidenceValidationFailed(
            f"no trace lies in this window{times}; widen --from and --to, or --last, or name trace ids"
        )
    spans = {each.facts.trace_id: found[each.facts.trace_id] for each in chosen}
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


def _trace_ids(context: TracesContext, params: Mapping[str, Any], gaps: list[str]) -> list[str]:
    """The named traces; with a window also its failed traces, wherever in it they lie, and then others."""
    found = dict.fromkeys(cast("Sequence[str]", params.get("trace_ids", ())))
    query = cast("TraceQuery | None", params.get("query"))
    if query is not None and query.condition is None:
        failed = replace(query, condition=parse_filter("status_code == 'ERROR'"))
        found |= dict.fromkeys(_page_through(context, failed, MAX_FAILED, "failed traces", gaps))
    if query is not None:
        found |= dict.fromkeys(_page_through(context, query, MAX_TRACES, "traces", gaps))
    return list(found)


def _page_through(context: TracesContext, query: TraceQuery, most: int, what: str, gaps: list[str]) -> Iterator[str]:
    seen, more, after = 0, None, None
    while seen < most:
        page = context.store.traces(replace(query, after=after, limit=min(100, most - seen)))
        yield from (row.trace_id for row in page.rows)
        seen, more = seen + len(page.rows), page.more
        if more is None or not page.rows:
            break
        after = page.rows[-1].trace_id
    if more is not None:
        gaps.append(f"only the first {seen} {what} of the window were looked at; narrow it with a filter")


def seconds(microseconds: int) -> str:
    """RFC 3339 to the second, as reports write times."""
    text = time_text(microseconds)
    return f"{text[:19]}Z" if text.endswith("Z") else text


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
