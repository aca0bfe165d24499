"""The `rca` engine: why a trace failed, by hypotheses that sub-calls test, in one report whose every reference is proved.

The pre-filter finds hot spans, branches and a rule's label and puts them into variables. The root tests one to four
hypotheses by sub-calls and submits. Without a model, or without a usable submission, the best sub-call or the rule
speaks; the record says which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from pydantic import ValidationError

from sonde.contexts.traces.context import LOOKING, TracesContext
from sonde.contexts.traces.prefilter import prefilter as look
from sonde.contexts.traces.rules import LABELS
from sonde.contexts.traces.views import span_excerpt
from sonde.core.budget import CONTRACT_MAXIMA, Budget
from sonde.core.evidence import EvidenceRef, independent, merge, refs_of
from sonde.engines.findings import conclude_findings
from sonde.engines.pages import rca_page
from sonde.engines.refs import fields_of, items_of, misfit, number, prove_refs, report_gaps, texts, unfit_confidence
from sonde.engines.reports import Decisive, RCAReport
from sonde.engines.taxonomies import Taxonomy
from sonde.runtime.actions import DELEGATION_KEYS
from sonde.runtime.engine import Conclusion, Engine, Gathered, Prefilter, Problem
from sonde.runtime.prompts import prompt_file

RCA_BUDGET = Budget(
    max_iterations=40,
    max_depth=2,
    max_tool_calls=120,
    max_subcalls=40,
    max_tokens_total=200_000,
    max_cost_usd=None,
    max_wall_time_sec=180,
)
SURE, UNSURE = 0.5, 0.49  # from here on two independent references are needed; the most that one can carry
REMEDIES = {
    "retrieval_failure": "Check the retriever's index, query and filters; alert on empty or low-score results.",
    "tool_failure": "Handle the tool's errors and time-outs; retry or fall back, and check its arguments.",
    "instruction_failure": "Tighten the prompt and validate the form of the answer before it is used.",
    "upstream_dependency_failure": "Retry with backoff, watch the dependency, and degrade gracefully without it.",
    "data_schema_mismatch": "Validate data at the boundary and agree on a versioned schema.",
}
NOTHING_TO_MEND = "The rules found nothing to mend: have a model read the trace, or look at one with an error."


def prefilter(gathered: Gathered) -> Prefilter:
    """Hot spans, branches, error groups and the rule's label, as variables and in words."""
    context = cast("TracesContext", gathered.context)
    trace_id = str(gathered.params["trace_id"])
    store = context.store
    summaries = store.summaries(trace_id)
    found = look(trace_id, summaries, store.span)
    shown = tuple(span_excerpt(span) for span in found.hot_spans)
    hot = "\n".join(
        f"- {span.span_id} {span.kind} {span.name!r} {span.status} {span.latency_ms:.0f} ms {span.status_message[:120]}"
        for span in found.hot_spans
    )
    text = (
        f"A rule looked first (it reads words, not meaning): {found.verdict.label}, {found.verdict.confidence}: "
        f"{found.verdict.why}\nHot spans of {len(summaries)}:\n{hot}"
    )
    return Prefilter(
        variables=found.variables(),
        text=text,
        excerpts=(*shown, *found.verdict.excerpts),
        gaps=(*found.gaps, *store.gaps(trace_id)),
    )


def conclude(value: Any, gathered: Gathered) -> Conclusion:
    """A submission as a report: label, confidence and evidence judged by rule."""
    fields = fields_of(value)
    taxonomy = cast("Taxonomy | None", gathered.params.get("taxonomy"))
    problems = unfit_confidence(fields)
    findings, wrong = conclude_findings(fields.get("findings"), gathered, taxonomy)
    proved, refuted = prove_refs(fields.get("evidence_refs"), gathered.prover)
    label = _label(fields)
    refs = proved or merge(*(finding.evidence_refs for finding in findings)) or _refs_below(label, gathered)
    problems += [Problem(gate="evidence", reason=reason) for reason in (*refuted, *wrong)]
    decisive, unread = _decisive(fields.get("decisive"))
    draft = {
        "trace_id": str(gathered.params["trace_id"]),
        "primary_label": label,
        "summary": str(fields.get("summary") or "").strip(),
        "confidence": _carried(number(fields.get("confidence"), 0.5), refs, problems),
        "evidence_refs": refs,
        "remediation": texts(fields.get("remediation")),
        "gaps": report_gaps([*texts(fields.get("gaps")), *unread], gathered),
        "findings": findings,
        "taxonomy": taxonomy.name if taxonomy else "sonde",
        "decisive": decisive,
        "coverage": _coverage(gathered),
    }
    return _report(draft, refs, problems)


def _carried(confidence: float, refs: list[EvidenceRef], problems: list[Problem]) -> float:
    """The confidence that the evidence can carry; what it cannot is told."""
    if not refs:
        reason = "evidence_refs is empty: point at spans or artifacts you looked at"
        problems.append(Problem(gate="evidence", reason=reason))
    elif confidence >= SURE and independent(refs) < 2:
        reason = "a confidence of 0.5 or more needs two independent evidence_refs; add one or lower the confidence"
        problems.append(Problem(gate="evidence", reason=reason))
    return _at_most(confidence, refs)


def _at_most(confidence: float, refs: list[EvidenceRef]) -> float:
    return confidence if independent(refs) >= 2 else min(confidence, UNSURE)


def _label(fields: Mapping[str, Any]) -> str:
    return str(fields.get("primary_label") or fields.get("label") or "")


def _refs_below(label: str, gathered: Gathered) -> list[EvidenceRef]:
    """What sub-calls have proved for the label that the root chose."""
    groups = (
        prove_refs(r.get("evidence_refs"), gathered.prover)[0] for r in gathered.subcalls if r.get("label") == label
    )
    return merge(*groups)


def _decisive(given: Any) -> tuple[Decisive | None, list[str]]:
    if given is None:
        return None, []
    try:
        return Decisive.model_validate(given), []
    except ValidationError:
        return None, ["decisive was not an object with agent, step, span_id and why, and was left out"]


def _coverage(gathered: Gathered) -> dict[str, Any]:
    context = cast("TracesContext", gathered.context)
    seen = {e.span_id for e in gathered.prover.log.excerpts() if e.span_id}
    total = len(context.store.summaries(str(gathered.params["trace_id"])))
    return {"spans": total, "looked_at": len(seen), "span_ids": sorted(seen)[:200]}


def _report(draft: dict[str, Any], refs: list[EvidenceRef], problems: list[Problem]) -> Conclusion:
    if draft["primary_label"] not in LABELS:
        problems.insert(0, _unknown_label("primary_label", draft["primary_label"]))
        return Conclusion(output=None, problems=tuple(problems))
    if not refs:
        return Conclusion(output=None, problems=tuple(problems))
    try:
        report = RCAReport.model_validate(draft)
    except ValidationError as error:
        return Conclusion(output=None, problems=(misfit("report", error), *problems))
    return Conclusion(
        output=report.model_dump(mode="json"),
        text=rca_page(report),
        evidence=tuple(report.evidence_refs),
        gaps=tuple(report.gaps),
        problems=tuple(problems),
    )


def _unknown_label(field: str, label: str) -> Problem:
    return Problem(gate="schema", reason=f"{field} must be one of {', '.join(LABELS)}; not {label!r:.80}")


def conclude_child(value: Any, gathered: Gathered) -> Conclusion:
    """What a hypothesis sub-call hands back: label, confidence, proved evidence, facts, gaps; batches hand back findings."""
    fields = fields_of(value) or {"summary": value}
    proved, refuted = prove_refs(fields.get("evidence_refs"), gathered.prover)
    facts, gaps = texts(fields.get("supporting_facts")), [*texts(fields.get("gaps")), *refuted]
    output: dict[str, Any] = {
        "label": _label(fields) or str(gathered.params.get("candidate_label") or ""),
        "confidence": number(fields.get("confidence"), 0.0),
        "evidence_refs": [ref.model_dump(mode="json") for ref in proved],
        "supporting_facts": facts,
        "gaps": gaps,
        "findings": items_of(fields.get("findings")),
    }
    text = str(fields.get("summary") or "; ".join(facts) or output["label"])
    problems = unfit_confidence(fields)
    problems += [] if proved else [Problem(gate="evidence", reason=reason) for reason in refuted]
    if output["label"] not in LABELS and not output["findings"]:
        problems.insert(0, _unknown_label("label", output["label"]))
    return Conclusion(output=output, text=text, evidence=tuple(proved), gaps=tuple(gaps), problems=tuple(problems))


def winner(results: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The best hypothesis: one that succeeded, then by confidence, independent references and facts."""
    usable = [result for result in results if result.get("evidence_refs") and result.get("label") in LABELS]
    return max(
        usable,
        key=lambda r: (
            r.get("status") == "succeeded",
            r.get("confidence", 0),
            len({(e["kind"], e["ref"]) for e in r["evidence_refs"]}),
            len(r.get("supporting_facts", ())),
        ),
        default=None,
    )


def fallback(gathered: Gathered) -> Conclusion:
    """The best sub-call if one has proved something, else the rule's report, marked CODE."""
    best = winner(gathered.subcalls)
    proved = prove_refs(best["evidence_refs"], gathered.prover)[0] if best is not None else []
    return _of_winner(best, proved, gathered) if best is not None and proved else _of_rule(gathered)


def _of_rule(gathered: Gathered) -> Conclusion:
    rule = cast("Mapping[str, Any]", gathered.prefilter.variables.get("rule") or {})
    proved, _ = prove_refs(rule.get("evidence"), gathered.prover)
    if not proved:
        log, reread = gathered.prover.log, gathered.prover.reread
        proved = refs_of([e for e in gathered.prefilter.excerpts if not log.prove(e, reread)])[:1]
    label = str(rule.get("label") or "instruction_failure")
    why = str(rule.get("why") or "nothing was found").removesuffix("…").rstrip()
    draft = {
        "trace_id": str(gathered.params["trace_id"]),
        "primary_label": label,
        "summary": f"By rule, without a model: {why}.",
        "confidence": _at_most(number(rule.get("confidence"), 0.35), proved),
        "evidence_refs": proved,
        "remediation": [REMEDIES[label] if rule.get("span_id") else NOTHING_TO_MEND],
        "gaps": report_gaps([gathered.reason or "no model looked at this trace"], gathered),
        "coverage": _coverage(gathered),
    }
    return _report(draft, proved, [])


def _of_winner(best: Mapping[str, Any], proved: list[EvidenceRef], gathered: Gathered) -> Conclusion:
    draft = {
        "trace_id": str(gathered.params["trace_id"]),
        "primary_label": best["label"],
        "summary": str(best.get("summary") or best["label"]),
        "confidence": _at_most(number(best.get("confidence")), proved),
        "evidence_refs": proved,
        "remediation": [REMEDIES[str(best["label"])]],
        "gaps": report_gaps([f"taken from the best sub-call: {gathered.reason}"], gathered),
        "coverage": _coverage(gathered),
    }
    found = _report(draft, proved, [])
    return replace(found, by_model=found.output is not None)


RCA = Engine(
    name="rca",
    run_type="rca",
    output_type="RCAReport",
    system=prompt_file("engines/rca"),
    child=prompt_file("engines/rca_child"),
    budget=RCA_BUDGET,
    maxima=CONTRACT_MAXIMA,
    prefilter=prefilter,
    conclude=conclude,
    conclude_child=conclude_child,
    fallback=fallback,
    reply_form="schema",
    tools=LOOKING,
    functions=("budget", "llm_query", "llm_batch", "delegate_subcall", "delegate_batch"),
    delegation_keys=DELEGATION_KEYS | {"findings", "span_ids"},
    final_example=(
        'SUBMIT(primary_label="tool_failure", summary="…", confidence=0.8, '
        'evidence_refs=[{"kind": "SPAN", "ref": "<span_id>"}], remediation=["…"], gaps=[])'
    ),
)
