"""The `incident` engine: a dossier of what happened in a window of time, from representative traces and config snapshots.

Representatives are chosen by rule; sub-calls look at one trace each; the root writes the dossier. A suspected change
is asserted only with its diff, every event of the timeline and every hypothesis has proved evidence, and the timeline
ascends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

from pydantic import ValidationError

from sonde.contexts.configs import change_type
from sonde.contexts.traces.context import TracesContext
from sonde.contexts.traces.evidence import span_excerpt
from sonde.contexts.traces.representatives import Representative, facts_of, representatives
from sonde.contexts.traces.span import SpanSummary, time_text, us_of_text
from sonde.contexts.traces.store import TraceQuery
from sonde.core.budget import CONTRACT_MAXIMA, Budget
from sonde.core.evidence import EvidenceKind, EvidenceRef, Excerpt, merge
from sonde.engines.refs import fields_of, number, prove_refs, texts
from sonde.engines.reports import IncidentDossier
from sonde.runtime.actions import DELEGATION_KEYS
from sonde.runtime.engine import Conclusion, Engine, Gathered, Prefilter, Problem
from sonde.runtime.prompts import prompt_file

INCIDENT_BUDGET = Budget(
    max_iterations=60,
    max_depth=3,
    max_tool_calls=220,
    max_subcalls=90,
    max_tokens_total=320_000,
    max_cost_usd=None,
    max_wall_time_sec=300,
)
MAX_TRACES = 500
TIMELINE_SHOWN = 6
PRIORITIES = frozenset({"P0", "P1", "P2"})


def prefilter(gathered: Gathered) -> Prefilter:
    """Representatives, the first errors in time and the config changes of the window."""
    context = cast("TracesContext", gathered.context)
    chosen, gaps, first = _choose(context, gathered.params)
    changes, diffs = _changes(context, gathered.params)
    timeline = _timeline(first)
    rows = [each.row() for each in chosen]
    roots = tuple(span_excerpt(first[each.facts.trace_id][0]) for each in chosen if each.facts.trace_id in first)
    errors = tuple(span_excerpt(span) for _, span in timeline)
    lines = [f"- {row['trace_id']}: {row['why_selected']}" for row in rows]
    text = "Representative traces:\n" + "\n".join(lines)
    if timeline:
        shown = [
            f"- {time_text(s.start_us)} {s.name}: {s.status_message[:100]} (span {s.span_id})" for _, s in timeline
        ]
        text += "\nFirst errors in time:\n" + "\n".join(shown)
    if changes:
        listed = [f"- {c['base_snapshot_id']} -> {c['target_snapshot_id']}: {c['summary']}" for c in changes]
        text += "\nConfig changes:\n" + "\n".join(listed)
    return Prefilter(
        variables={"representatives": rows, "timeline": [_event(t, s) for t, s in timeline], "config_changes": changes},
        text=text,
        excerpts=(*roots, *errors, *diffs),
        gaps=tuple(gaps),
    )


def _choose(
    context: TracesContext, params: Mapping[str, Any]
) -> tuple[list[Representative], list[str], dict[str, Sequence[SpanSummary]]]:
    gaps: list[str] = []
    found: dict[str, Sequence[SpanSummary]] = {}
    for trace_id in _trace_ids(context, params, gaps):
        summaries = context.store.summaries(trace_id)
        if summaries:
            found[trace_id] = sorted(summaries, key=lambda span: (span.parent_id is not None, span.order))
    overrides = cast("Sequence[str]", params.get("trace_ids", ()))
    facts = [facts_of(trace_id, spans) for trace_id, spans in found.items()]
    chosen = representatives(facts, overrides)
    kept = {each.facts.trace_id for each in chosen}
    return chosen, gaps, {trace_id: spans for trace_id, spans in found.items() if trace_id in kept}


def _trace_ids(context: TracesContext, params: Mapping[str, Any], gaps: list[str]) -> Iterator[str]:
    named = cast("Sequence[str]", params.get("trace_ids", ()))
    yield from named
    after, count = None, 0
    while count < MAX_TRACES:
        page = context.store.traces(
            TraceQuery(
                project=params.get("project"),
                start_us=params.get("start_us"),
                end_us=params.get("end_us"),
                condition=params.get("condition"),
                after=after,
                limit=100,
            )
        )
        for row in page.rows:
            count += 1
            if row.trace_id not in named:
                yield row.trace_id
        if page.more is None or not page.rows:
            return
        after = page.rows[-1].trace_id
    gaps.append(f"only the first {MAX_TRACES} traces of the window were looked at; narrow it with a filter")


def _timeline(traces: Mapping[str, Sequence[SpanSummary]]) -> list[tuple[str, SpanSummary]]:
    failed = [(trace_id, s) for trace_id, spans in traces.items() for s in spans if s.status == "ERROR"]
    return sorted(failed, key=lambda pair: (pair[1].start_us, pair[1].span_id))[:TIMELINE_SHOWN]


def _event(trace_id: str, span: SpanSummary) -> dict[str, Any]:
    return {
        "timestamp": f"{time_text(span.start_us)[:19]}Z",
        "event": f"{span.name} failed: {span.status_message[:200] or 'no message'}",
        "trace_id": trace_id,
        "evidence_refs": [{"kind": "SPAN", "ref": span.span_id}],
    }


def _changes(context: TracesContext, params: Mapping[str, Any]) -> tuple[list[dict[str, Any]], tuple[Excerpt, ...]]:
    snapshots = context.configs.list_config_snapshots(str(params.get("project") or ""))
    pairs = list(pairwise(snapshots))[-4:]
    found = [context.configs.get_config_diff(a["snapshot_id"], b["snapshot_id"]) for a, b in pairs]
    return [each.value for each in found if each.value["paths"]], tuple(e for each in found for e in each.excerpts)


def conclude(value: Any, gathered: Gathered) -> Conclusion:
    """A submission as a dossier: what has no evidence is dropped and named, a change without its diff stays a hypothesis."""
    fields = fields_of(value)
    problems: list[Problem] = []
    timeline = _proved(fields.get("timeline"), "timeline", gathered, problems)
    hypotheses = _proved(fields.get("hypotheses"), "hypotheses", gathered, problems)
    change = _change(fields_of(fields.get("suspected_change")), gathered, problems)
    draft = {
        "incident_id": str(gathered.params.get("incident_id", "")),
        "incident_summary": str(fields.get("incident_summary") or fields.get("summary") or "").strip(),
        "impacted_components": texts(fields.get("impacted_components")),
        "timeline": sorted(
            (
                {"timestamp": str(e.get("timestamp", "")), "event": str(e.get("event", "")), "evidence_refs": e["refs"]}
                for e in timeline
            ),
            key=lambda e: e["timestamp"],
        ),
        "representative_traces": _representatives(gathered, fields.get("representative_traces")),
        "suspected_change": change,
        "hypotheses": [
            {
                "rank": rank,
                "statement": str(h.get("statement", "")),
                "evidence_refs": h["refs"],
                "confidence": number(h.get("confidence"), 0.5),
            }
            for rank, h in enumerate(sorted(hypotheses, key=lambda h: number(h.get("rank"), 1) or 1), 1)
        ],
        "recommended_actions": [_action(each) for each in _items(fields.get("recommended_actions"))],
        "confidence": number(fields.get("confidence"), 0.5),
        "gaps": texts(fields.get("gaps")),
    }
    return _dossier(draft, problems)


def _items(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _proved(items: Any, name: str, gathered: Gathered, problems: list[Problem]) -> list[dict[str, Any]]:
    kept: list[dict[str, Any]] = []
    for index, item in enumerate(_items(items)):
        fields = fields_of(item)
        refs, refuted = prove_refs(fields.get("evidence_refs"), gathered.prover)
        if refs:
            kept.append({**fields, "refs": refs})
        else:
            reason = "; ".join(refuted) or "it has no evidence_refs"
            problems.append(Problem(gate="evidence", reason=f"{name}[{index}]: {reason}"))
    return kept


def _representatives(gathered: Gathered, given: Any) -> list[dict[str, Any]]:
    """Those chosen by rule; a model may say more about why, not choose others without evidence."""
    said = {str(f.get("trace_id")): f for f in (fields_of(item) for item in _items(given))}
    rows = cast("list[dict[str, Any]]", gathered.prefilter.variables.get("representatives", []))
    listed: list[dict[str, Any]] = []
    for row in rows:
        refs, _ = prove_refs([{"kind": "SPAN", "ref": row["root_span_id"]}], gathered.prover)
        more = said.get(row["trace_id"], {})
        own, _ = prove_refs(more.get("evidence_refs"), gathered.prover)
        why = str(row["why_selected"]) + (f"; {more['why_selected']}" if more.get("why_selected") else "")
        listed.append({"trace_id": row["trace_id"], "why_selected": why, "evidence_refs": merge(refs, own)})
    return listed


def _change(fields: Mapping[str, Any], gathered: Gathered, problems: list[Problem]) -> dict[str, Any]:
    kind = str(fields.get("change_type") or "unknown")
    refs, refuted = prove_refs(fields.get("evidence_refs"), gathered.prover)
    diff = fields.get("diff_ref")
    holds = any(ref.kind is EvidenceKind.CONFIG_DIFF and ref.ref == diff for ref in refs)
    if kind != "unknown" and not holds:
        reason = "a suspected change of a known type needs diff_ref and the same ref as CONFIG_DIFF evidence"
        problems.append(Problem(gate="evidence", reason="; ".join([reason, *refuted])))
        kind, diff = "unknown", None
    return {
        "change_type": kind,
        "change_ref": str(fields.get("change_ref") or ""),
        "diff_ref": diff if holds else None,
        "summary": str(fields.get("summary") or ""),
        "evidence_refs": refs,
    }


def _action(item: Any) -> dict[str, Any]:
    fields = fields_of(item) or {"action": str(item)}
    priority = str(fields.get("priority", "P1")).upper()
    kind = str(fields.get("type", "follow_up_fix"))
    return {
        "priority": priority if priority in PRIORITIES else "P1",
        "action": str(fields.get("action") or "review"),
        "type": kind if kind in ("mitigation", "follow_up_fix") else "follow_up_fix",
    }


def _dossier(draft: dict[str, Any], problems: list[Problem]) -> Conclusion:
    if not draft["representative_traces"]:
        reason = "no trace lies in this window; widen --from and --to or name trace ids"
        return Conclusion(output=None, text=reason, problems=(Problem(gate="evidence", reason=reason), *problems))
    try:
        report = IncidentDossier.model_validate(draft)
    except ValidationError as error:
        reasons = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:6])
        reason = f"the dossier does not fit its schema: {reasons}"
        return Conclusion(output=None, problems=(Problem(gate="schema", reason=reason), *problems))
    return Conclusion(
        output=report.model_dump(mode="json"),
        text=markdown(report),
        evidence=tuple(all_refs(report)),
        gaps=tuple(report.gaps),
        problems=tuple(problems),
    )


def all_refs(report: IncidentDossier) -> list[EvidenceRef]:
    """Every reference of a dossier, once."""
    groups = [each.evidence_refs for each in (*report.timeline, *report.hypotheses, *report.representative_traces)]
    return merge(*groups, report.suspected_change.evidence_refs)


def conclude_child(value: Any, gathered: Gathered) -> Conclusion:
    """What the sub-call for one trace hands back."""
    fields = fields_of(value) or {"summary": value}
    proved, refuted = prove_refs(fields.get("evidence_refs"), gathered.prover)
    gaps = [*texts(fields.get("gaps")), *refuted]
    output = {**fields, "evidence_refs": [ref.model_dump(mode="json") for ref in proved], "gaps": gaps}
    text = str(fields.get("summary") or fields.get("statement") or "")
    problems = () if proved or not refuted else tuple(Problem(gate="evidence", reason=reason) for reason in refuted)
    return Conclusion(output=output, text=text, evidence=tuple(proved), gaps=tuple(gaps), problems=problems)


def fallback(gathered: Gathered) -> Conclusion:
    """The dossier that rules can write: representatives, first errors, the last config change as a hypothesis."""
    variables = gathered.prefilter.variables
    events = cast("list[dict[str, Any]]", variables.get("timeline", []))
    changes = cast("list[dict[str, Any]]", variables.get("config_changes", []))
    first = events[0]["event"] if events else "no span is in error"
    hypotheses: list[dict[str, Any]] = []
    if events:
        statement = f"The incident began with: {first}"
        hypotheses.append({"statement": statement, "evidence_refs": events[0]["evidence_refs"], "confidence": 0.45})
    if changes:
        last = changes[-1]
        ref = {"kind": "CONFIG_DIFF", "ref": last["diff_ref"]}
        statement = f"The {change_type(last['paths'])} change {last['target_snapshot_id']} may have caused it"
        hypotheses.append({"statement": statement, "evidence_refs": [ref], "confidence": 0.35})
    count = len(cast("list[Any]", variables.get("representatives", [])))
    value = {
        "incident_summary": f"By rule, without a model: {count} representative traces; {first}.",
        "impacted_components": sorted({event["event"].partition(" failed")[0] for event in events}),
        "timeline": events,
        "suspected_change": {"change_type": "unknown", "summary": "no model judged the changes of this window"},
        "hypotheses": hypotheses,
        "recommended_actions": [
            {"priority": "P1", "action": "Look at the representative traces", "type": "follow_up_fix"}
        ],
        "confidence": 0.35,
        "gaps": [gathered.reason or "no model looked at this incident"],
    }
    return conclude(value, gathered)


def markdown(report: IncidentDossier) -> str:
    """The dossier for people."""
    lines = [f"# Incident {report.incident_id}".rstrip(), "", report.incident_summary, "", "## Timeline"]
    lines += [f"- {event.timestamp} {event.event}" for event in report.timeline] or ["- nothing is in error"]
    lines += ["", "## Hypotheses", *(f"{h.rank}. ({h.confidence:.2f}) {h.statement}" for h in report.hypotheses)]
    change = report.suspected_change
    lines += ["", "## Suspected change", f"{change.change_type}: {change.summary} {change.diff_ref or ''}".rstrip()]
    lines += ["", "## Representative traces"]
    lines += [f"- `{each.trace_id}` {each.why_selected}" for each in report.representative_traces]
    lines += ["", "## Actions", *(f"- {a.priority} ({a.type}): {a.action}" for a in report.recommended_actions)]
    if report.gaps:
        lines += ["", "## Gaps", *(f"- {gap}" for gap in report.gaps)]
    return "\n".join(lines) + "\n"


def window(start: str | None, end: str | None) -> dict[str, int | None]:
    """A window of time as the stores take it."""
    return {"start_us": us_of_text(start) if start else None, "end_us": us_of_text(end) if end else None}


INCIDENT = Engine(
    name="incident",
    run_type="incident_dossier",
    output_type="IncidentDossier",
    system=prompt_file("incident"),
    child=prompt_file("incident_child"),
    budget=INCIDENT_BUDGET,
    maxima=CONTRACT_MAXIMA,
    prefilter=prefilter,
    conclude=conclude,
    conclude_child=conclude_child,
    fallback=fallback,
    reply_form="schema",
    tools=(
        "overview",
        "list_traces",
        "list_spans",
        "get_spans",
        "get_span",
        "get_attribute",
        "get_children",
        "get_path",
        "get_messages",
        "get_tool_io",
        "get_retrieval_chunks",
        "search_trace",
        "list_config_snapshots",
        "get_config_snapshot",
        "get_config_diff",
    ),
    functions=("budget", "llm_query", "llm_batch", "delegate_subcall", "delegate_batch"),
    delegation_keys=DELEGATION_KEYS,
    final_example=(
        'SUBMIT(incident_summary="…", impacted_components=["…"], timeline=[{"timestamp": "2026-01-01T00:00:00Z", "event": "…", '
        '"evidence_refs": [{"kind": "SPAN", "ref": "<span_id>"}]}], hypotheses=[{"statement": "…", "confidence": 0.6, '
        '"evidence_refs": [...]}], suspected_change={"change_type": "unknown", "summary": "…"}, '
        'recommended_actions=[{"priority": "P0", "action": "…", "type": "mitigation"}], confidence=0.6, gaps=[])'
    ),
)
