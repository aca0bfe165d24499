"""The `incident` engine: a dossier of what happened in a window of time, from counts over all its traces and what changed around it.

Counts, groups and the change that each group is suspected of are found by rule, and are the report's whatever a model says; sub-calls look
at one representative trace each; the root explains. A suspected change is asserted only with its diff or if the rules found it, every
event of the timeline and every hypothesis has proved evidence, and the timeline ascends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast, get_args

from sonde.contexts.traces.context import LOOKING, TracesContext
from sonde.contexts.traces.span import us_of_text
from sonde.contexts.traces.window import seconds
from sonde.core.budget import CONTRACT_MAXIMA, Budget
from sonde.core.canonical import cut, plural
from sonde.core.evidence import EvidenceKind, EvidenceRef, Refuted, merge
from sonde.engines.incident_window import headline, kind_of, prefilter, sharpest, unrecorded
from sonde.engines.pages import incident_page
from sonde.engines.reports import ChangeType, IncidentDossier
from sonde.engines.submission import (
    NOT_READ,
    Counted,
    conclude_report,
    fields_of,
    items_of,
    joined,
    miscounted,
    number,
    prove_refs,
    prove_reply,
    report_gaps,
    texts,
    unfit_confidence,
)
from sonde.runtime.actions import DELEGATION_KEYS
from sonde.runtime.engine import Conclusion, Engine, Gathered, Problem
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
PRIORITIES = frozenset({"P0", "P1", "P2"})
CHANGE_TYPES = frozenset(get_args(ChangeType))
DEMOTED = 0.4  # the confidence of a change that was claimed without its diff
HYPOTHESES = 3
STATEMENT_CHARS = 200
Rows = list[dict[str, Any]]


def conclude(value: Any, gathered: Gathered) -> Conclusion:
    """A submission as a dossier: what has no evidence is dropped and named, a change without its diff stays a hypothesis."""
    fields = fields_of(value)
    problems = unfit_confidence(fields)
    change, demoted = _change(fields_of(fields.get("suspected_change")), gathered, problems)
    hypotheses = _proved(fields.get("hypotheses"), "hypotheses", gathered, problems)
    for each in hypotheses:
        rank = each.get("rank")
        each["rank"] = rank if isinstance(rank, int | float) and not isinstance(rank, bool) else float("inf")
    ranked = [*sorted(hypotheses, key=lambda each: each["rank"]), *demoted]
    timeline: Rows = []
    for event in _proved(fields.get("timeline"), "timeline", gathered, problems):
        try:
            moment = seconds(us_of_text(str(event.get("timestamp") or "")))
        except (ValueError, OverflowError):  # a time that cannot be read: that of the evidence
            moment = min((ref.ts for ref in cast("list[EvidenceRef]", event["refs"]) if ref.ts), default="")
        words = str(event.get("event") or "").strip()
        timeline.append({"timestamp": moment, "event": words, "evidence_refs": event["refs"]})
    actions: Rows = []
    for item in items_of(fields.get("recommended_actions")):
        action = fields_of(item) or {"action": str(item)}
        priority, kind = str(action.get("priority", "P1")).upper(), action.get("type")
        actions.append(
            {
                "priority": priority if priority in PRIORITIES else "P1",
                "action": str(action.get("action") or "review"),
                "type": kind if kind in ("mitigation", "follow_up_fix") else "follow_up_fix",
            }
        )
    draft: dict[str, Any] = {
        "incident_id": str(gathered.params["incident_id"]),
        "incident_summary": str(fields.get("incident_summary") or fields.get("summary") or "").strip(),
        "impacted_components": texts(fields.get("impacted_components")),
        "timeline": sorted(timeline, key=lambda row: row["timestamp"]),
        "representative_traces": _representatives(gathered, fields.get("representative_traces"), problems),
        "suspected_change": change,
        "hypotheses": [
            {
                "rank": rank,
                "statement": str(each.get("statement") or "").strip(),
                "evidence_refs": each["refs"],
                "confidence": number(each.get("confidence"), 0.5),
            }
            for rank, each in enumerate(ranked, 1)
        ],
        "recommended_actions": actions,
        "confidence": number(fields.get("confidence"), 0.5),
        "gaps": report_gaps(texts(fields.get("gaps")), gathered),
        "window": gathered.prefilter.variables.get("window"),
        "groups": _groups(gathered),
    }
    context = cast("TracesContext", gathered.context)
    said = {"the summary": draft["incident_summary"]}
    said |= {f"hypotheses[{each['rank']}]": each["statement"] for each in draft["hypotheses"]}
    said |= {f"timeline[{at}]": each["event"] for at, each in enumerate(draft["timeline"])}

    def count() -> list[Counted]:
        spans = [context.store.summaries(each["trace_id"]) for each in draft["representative_traces"]]
        each_trace = [Counted.of_spans(each) for each in spans]
        failed = tuple(sum(each.failed[sense] > 0 for each in each_trace) for sense in (0, 1))
        looked_at = Counted(kind="representative traces", total=len(spans), failed=failed)
        return [
            *each_trace,
            Counted.of_spans([span for each in spans for span in each]),
            looked_at,
            *_counted(gathered),
        ]

    problems += miscounted(said, count)
    return conclude_report(IncidentDossier, draft, lambda report: incident_page(report, context), problems)


def _groups(gathered: Gathered) -> Rows:
    """The groups as they were counted, with the evidence of their changes proved."""
    rows: Rows = []
    for row in cast("Rows", gathered.prefilter.variables.get("groups", [])):
        change = row["suspected_change"]
        refs, _ = prove_refs(change["evidence_refs"], gathered.prover)
        rows.append({**row, "suspected_change": {**change, "evidence_refs": refs}})
    return rows


def _counted(gathered: Gathered) -> list[Counted]:
    """The failed traces of the window, all together and of each group that a sentence may name."""
    window = cast(
        "Mapping[str, Any]", gathered.prefilter.variables.get("window") or {"traces": 0, "failed": 0, "recovered": 0}
    )
    total, failed = window["traces"], window["failed"]
    whole = Counted(kind="traces", total=total, failed=(failed, failed + window["recovered"]))
    groups = [
        Counted(
            kind="traces",
            total=total,
            failed=(each["count"], each["failed"], each["count"] + each["also"]),
            about=(each["component"], each["message"]),
        )
        for each in cast("Rows", gathered.prefilter.variables.get("groups", []))
        if each["kind"] in {"error", "retries"}
    ]
    return [whole, *groups]


def _proved(items: Any, name: str, gathered: Gathered, problems: list[Problem]) -> Rows:
    """The rows that have evidence, each with its proved `refs`; the others become problems."""
    kept: Rows = []
    for index, item in enumerate(items_of(items)):
        fields = fields_of(item)
        refs, refuted = prove_refs(fields.get("evidence_refs"), gathered.prover)
        problems += unfit_confidence(fields, f"{name}[{index}].")
        problems += [Problem.of(each, f"{name}[{index}]: ") for each in refuted if refs]
        if refs:
            kept.append({**fields, "refs": refs})
        else:
            problems.append(
                Problem.of(
                    joined(refuted or [Refuted("it has no evidence", "it has no evidence_refs")]), f"{name}[{index}]: "
                )
            )
    return kept


def _representatives(gathered: Gathered, given: Any, problems: list[Problem]) -> Rows:
    """Those chosen by rule; a model may say more about why, not choose others without evidence."""
    said = {str(f.get("trace_id")): f for f in (fields_of(item) for item in items_of(given))}
    rows = cast("Rows", gathered.prefilter.variables.get("representatives", []))
    listed: Rows = []
    for row in rows:
        refs, _ = prove_refs([{"kind": "SPAN", "ref": row["root_span_id"]}], gathered.prover)
        more = said.get(row["trace_id"], {})
        own, refuted = prove_refs(more.get("evidence_refs"), gathered.prover)
        problems += [Problem.of(each, f"representative_traces {row['trace_id']}: ") for each in refuted]
        why = str(row["why_selected"]) + (f"; {more['why_selected']}" if more.get("why_selected") else "")
        listed.append({"trace_id": row["trace_id"], "why_selected": why, "evidence_refs": merge(refs, own)})
    return listed


def _change(fields: Mapping[str, Any], gathered: Gathered, problems: list[Problem]) -> tuple[dict[str, Any], Rows]:
    """The suspected change if its diff proves it; otherwise nothing is asserted and it stays a hypothesis."""
    kind, diff = str(fields.get("change_type") or "unknown"), fields.get("diff_ref")
    refs, refuted = prove_refs(fields.get("evidence_refs"), gathered.prover)
    summary = str(fields.get("summary") or "")
    holds = any(ref.kind is EvidenceKind.CONFIG_DIFF and ref.ref == diff for ref in refs)
    listed = cast("Rows", gathered.prefilter.variables.get("changes", []))
    known = next(
        (each for each in listed if each["change_ref"] == fields.get("change_ref") and not each["diff_ref"]), None
    )
    if kind not in CHANGE_TYPES:
        reason = f"change_type must be one of {', '.join(sorted(CHANGE_TYPES))}; not {kind!r:.40}"
        problems.append(Problem(gate="schema", reason=reason))
    elif kind == "unknown" or holds or known:
        problems += [Problem.of(each, "suspected_change: ") for each in refuted]
        asserted = {"change_type": kind, "diff_ref": diff if holds else None, "summary": summary, "evidence_refs": refs}
        return {**asserted, "change_ref": str(fields.get("change_ref") or "")}, []
    else:
        told = (
            "a suspected change of a known type needs the change_ref of a row of `changes`; one with a diff_ref also needs diff_ref "
            "and the same ref as CONFIG_DIFF evidence"
        )
        problems.append(Problem.of(joined([Refuted("no diff proves the suspected change", told), *refuted])))
    statement = f"A {kind} change may have caused it: {summary}".rstrip(": ")
    demoted: Rows = [{"statement": statement, "refs": refs, "confidence": DEMOTED}] if refs else []
    return {"change_type": "unknown", "summary": f"claimed without its diff: {summary}"}, demoted


def conclude_child(value: Any, gathered: Gathered) -> Conclusion:
    """What the sub-call for one trace hands back."""
    reply = prove_reply(value, gathered, only="summary")
    output = {**reply.fields, "evidence_refs": reply.ref_rows, "gaps": reply.gaps}
    return reply.conclusion(output, str(reply.fields.get("summary") or reply.fields.get("statement") or ""))


def fallback(gathered: Gathered) -> Conclusion:
    """The dossier that rules can write: counts, groups, representatives, the suspected changes; and what sub-calls proved."""
    variables = gathered.prefilter.variables
    groups = cast("Rows", variables.get("groups", []))
    window = cast("Mapping[str, Any]", variables.get("window", {}))
    hypotheses: Rows = [
        {
            "statement": str(each["summary"]),
            "evidence_refs": each["evidence_refs"],
            "confidence": each.get("confidence"),
        }
        for each in gathered.subcalls
        if each.get("status") == "succeeded" and each.get("evidence_refs") and each.get("summary")
    ]
    by_model = bool(hypotheses)
    main = [each for each in groups if each["pattern"] != "stray"] or groups[:1]
    incident = bool(groups) and window.get("verdict") == "incident"
    actions: Rows = []
    for group in main[:HYPOTHESES] if incident else ():
        change = group["suspected_change"]
        what = cut(f"{group['component']}: {group['message']}".rstrip(": "), STATEMENT_CHARS)
        hit = f"{group['count']} of {plural(window['traces'], 'trace')}"
        since = f" since {group['onset']['at']}" if group["onset"] else ""
        cause = f", probably by {change['name']}" if change["change_ref"] else "; nothing that changed explains it"
        if not change["change_ref"] and (apart := sharpest(group)):
            cause += f"; {apart}"
        refs = [{"kind": "SPAN", "ref": span_id} for span_id in group["example_span_ids"][:3]]
        statement = f"{what} ({kind_of(group)}) hit {hit}{since}{cause}"
        confidence = 0.45 if change["change_ref"] else 0.35
        hypotheses.append(
            {"statement": statement, "confidence": confidence, "evidence_refs": [*refs, *change["evidence_refs"]]}
        )
        if change["change_ref"] and change["change_type"] == "deploy":
            actions.append(
                {"priority": "P0", "type": "mitigation", "action": f"Consider rolling back {change['name']}: {what}"}
            )
        else:
            mended = kind_of(group).endswith("recovered")
            looked = f"Look at {', '.join(group['example_trace_ids'][:2])}: {what}{' (recovered)' * mended}"
            actions.append({"priority": "P2" if mended else "P1", "action": looked})
    suspect = next((each["suspected_change"] for each in main if each["suspected_change"]["change_ref"]), None)
    suspect = suspect or cast("dict[str, Any] | None", variables.get("overall_change"))
    change: dict[str, Any] = {
        "change_type": "unknown",
        "summary": "nothing that is known to have changed fits the failures",
    }
    if not incident:
        change["summary"] = "none: there is no incident to explain"
    elif suspect:
        told = "; ".join(filter(None, (suspect["at"], suspect["detail"])))
        reasons = "; ".join([*suspect["speaks_for"], *(f"but {each}" for each in suspect["speaks_against"])])
        change = {
            **{key: suspect[key] for key in ("change_type", "change_ref", "diff_ref", "evidence_refs")},
            "summary": f"{suspect['name']}{f' ({told})' if told else ''}; no model judged it: {reasons}",
        }
    unseen: list[str] = []
    if window.get("verdict") == "healthy":  # nothing was found: say what nobody looked at
        unseen = [*([] if by_model else [NOT_READ]), *unrecorded(window)]
    value = {
        "incident_summary": f"By rule, without a model: {headline(window, groups)}",
        "impacted_components": list(dict.fromkeys(each["component"] for each in groups)),
        "timeline": variables.get("timeline", []),
        "suspected_change": change,
        "hypotheses": hypotheses,
        "recommended_actions": actions,
        "confidence": 0.35,
        "gaps": [*unseen, gathered.reason or "no model looked at this incident"],
    }
    return replace(conclude(value, gathered), problems=(), by_model=by_model)


INCIDENT = Engine(
    name="incident",
    run_type="incident_dossier",
    output_type="IncidentDossier",
    system=prompt_file("engines/incident"),
    child=prompt_file("engines/incident_child"),
    budget=INCIDENT_BUDGET,
    maxima=CONTRACT_MAXIMA,
    prefilter=prefilter,
    conclude=conclude,
    conclude_child=conclude_child,
    fallback=fallback,
    reply_form="schema",
    tools=(
        *LOOKING,
        "list_traces",
        "group_by",
        "rate_over_time",
        "compare_windows",
        "list_config_snapshots",
        "get_config_snapshot",
        "get_config_diff",
    ),
    functions=("budget", "llm_query", "llm_batch", "delegate_subcall", "delegate_batch"),
    unforgiving=True,
    delegation_keys=DELEGATION_KEYS,
    in_actions=prompt_file("engines/incident_actions"),
    final_example=(
        'SUBMIT(incident_summary="…", impacted_components=["…"], timeline=[{"timestamp": "2026-01-01T00:00:00Z", "event": "…", '
        '"evidence_refs": [{"kind": "SPAN", "ref": "<span_id>"}]}], hypotheses=[{"statement": "…", "confidence": 0.6, '
        '"evidence_refs": [...]}], suspected_change={"change_type": "unknown", "summary": "…"}, '
        'recommended_actions=[{"priority": "P0", "action": "…", "type": "mitigation"}], confidence=0.6, gaps=[])'
    ),
)
