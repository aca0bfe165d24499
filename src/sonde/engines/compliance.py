"""The `compliance` engine: each applicable control judged once, by rule and, where there is a model, by a sub-call that
may only be stricter.

`insufficient_evidence` by rule stands whatever a model thinks; a model can make a verdict more severe, never milder.
Any fail makes the trace non_compliant; else anything insufficient, or nothing applicable, makes it needs_review.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from pydantic import ValidationError

from sonde.contexts.controls import Control, infer_scope
from sonde.contexts.traces.context import TracesContext
from sonde.core.budget import CONTRACT_MAXIMA, Budget
from sonde.core.evidence import EvidenceRef, merge
from sonde.engines.controls_rule import Ruled, rule, see
from sonde.engines.refs import fields_of, number, prove_refs, texts
from sonde.engines.reports import ComplianceReport, ControlFinding, PassFail, Verdict
from sonde.runtime.actions import DELEGATION_KEYS
from sonde.runtime.engine import Conclusion, Engine, Gathered, Prefilter, Problem
from sonde.runtime.prompts import prompt_file

COMPLIANCE_BUDGET = Budget(
    max_iterations=40,
    max_depth=2,
    max_tool_calls=160,
    max_subcalls=60,
    max_tokens_total=260_000,
    max_cost_usd=None,
    max_wall_time_sec=180,
)
SEVERITY_OF = {"pass": 0, "not_applicable": 1, "insufficient_evidence": 2, "fail": 3}
NONE_APPLY = "control.no_applicable_controls"


def selected(gathered: Gathered) -> list[Control]:
    """The controls that apply to this trace, most severe first."""
    context = cast("TracesContext", gathered.context)
    summaries = context.store.summaries(str(gathered.params["trace_id"]))
    scope = infer_scope((span.kind, span.name) for span in summaries)
    overrides = cast("Sequence[str]", gathered.params.get("overrides", ()))
    return context.controls.select(str(gathered.params["controls_version"]), scope, overrides=overrides)


def prefilter(gathered: Gathered) -> Prefilter:
    """The applicable controls with what rules say of each, as variables and in words."""
    context = cast("TracesContext", gathered.context)
    trace_id = str(gathered.params["trace_id"])
    total = len(context.store.summaries(trace_id))
    seen = see(context.store.spans(trace_id), total)
    ruled = [rule(control, seen) for control in selected(gathered)]
    rows = [_row(each) for each in ruled]
    lines = [f"- {r['control_id']} ({r['severity']}): by rule {r['pass_fail']}: {r['why']}" for r in rows]
    excerpts = tuple(excerpt for each in ruled for excerpt in each.excerpts)
    text = f"Controls that apply ({len(rows)}), with what rules say:\n" + ("\n".join(lines) or "none")
    return Prefilter(
        variables={"trace_id": trace_id, "controls": rows, "controls_version": gathered.params["controls_version"]},
        text=text,
        excerpts=excerpts,
        gaps=(*seen.gaps, *context.store.gaps(trace_id)),
    )


def _row(ruled: Ruled) -> dict[str, Any]:
    return {
        **ruled.control.row(),
        "pass_fail": ruled.pass_fail,
        "confidence": ruled.confidence,
        "why": ruled.why,
        "missing_evidence": list(ruled.missing),
        "evidence": [{"kind": e.kind.value, "ref": e.ref} for e in ruled.excerpts],
    }


def conclude(value: Any, gathered: Gathered) -> Conclusion:
    """A submission merged with the rules, control by control."""
    fields = fields_of(value)
    given = fields.get("findings") or fields.get("controls_evaluated")
    listed = cast("list[Any]", given) if isinstance(given, list) else [fields] if "control_id" in fields else []
    judged = {str(f.get("control_id")): f for f in (fields_of(item) for item in listed) if f.get("control_id")}
    problems: list[Problem] = []
    rows = cast("list[dict[str, Any]]", gathered.prefilter.variables.get("controls", []))
    known = {row["control_id"] for row in rows}
    if not judged and rows:
        problems.append(Problem(gate="schema", reason="findings is empty: judge each control that applies"))
    for name in judged:
        if name not in known:
            reason = f"{name} is not one of the controls that apply: {', '.join(sorted(known))}"
            problems.append(Problem(gate="schema", reason=reason))
    findings = [_finding(row, judged.get(row["control_id"]), gathered, problems) for row in rows]
    return _report(findings, gathered, [*texts(fields.get("gaps"))], problems)


def _finding(
    row: Mapping[str, Any], model: Mapping[str, Any] | None, gathered: Gathered, problems: list[Problem]
) -> ControlFinding:
    refs, _ = prove_refs(row["evidence"], gathered.prover)
    verdict: PassFail = row["pass_fail"]
    confidence, rationale = row["confidence"], str(row["why"])
    missing, remediation = list(row["missing_evidence"]), str(row["remediation_template"])
    wanted = str(model.get("pass_fail", "")) if model else ""
    if model is not None and wanted not in SEVERITY_OF:
        reason = f"{row['control_id']}: pass_fail must be one of {', '.join(SEVERITY_OF)}"
        problems.append(Problem(gate="schema", reason=reason))
    elif model is not None and verdict != "insufficient_evidence" and SEVERITY_OF[wanted] >= SEVERITY_OF[verdict]:
        own, refuted = prove_refs(model.get("evidence_refs"), gathered.prover)
        reasons = [f"{row['control_id']}: {reason}" for reason in refuted]
        if wanted == "fail" and not merge(refs if verdict == "fail" else [], own):
            reasons.append(f"{row['control_id']}: a fail needs evidence_refs that a tool returned")
            wanted = verdict
        if wanted == "insufficient_evidence" and not texts(model.get("missing_evidence")):
            reasons.append(f"{row['control_id']}: insufficient_evidence needs missing_evidence")
            wanted = verdict
        problems += [Problem(gate="evidence", reason=reason) for reason in reasons]
        verdict = wanted  # pyright: ignore[reportAssignmentType]  # one of SEVERITY_OF
        refs = merge(own, refs)
        confidence = number(model.get("confidence"), confidence)
        rationale = str(model.get("rationale") or rationale)
        missing = missing + [each for each in texts(model.get("missing_evidence")) if each not in missing]
        remediation = str(model.get("remediation") or remediation)
    return ControlFinding(
        controls_version=str(row["controls_version"]),
        control_id=str(row["control_id"]),
        pass_fail=verdict,
        severity=row["severity"],
        confidence=confidence,
        evidence_refs=refs,
        missing_evidence=missing if verdict == "insufficient_evidence" else [],
        remediation="" if verdict in ("pass", "not_applicable") else remediation,
        rationale=rationale,
    )


def verdict_of(findings: Sequence[ControlFinding]) -> Verdict:
    """The trace's verdict from those of its controls."""
    words = {finding.pass_fail for finding in findings}
    if "fail" in words:
        return "non_compliant"
    if "insufficient_evidence" in words or words <= {"not_applicable"}:
        return "needs_review"
    return "compliant"


def _report(findings: list[ControlFinding], gathered: Gathered, gaps: list[str], problems: list[Problem]) -> Conclusion:
    version = str(gathered.params["controls_version"])
    if not findings:
        gaps = [*gaps, f"no control of {version} applies to this trace"]
        findings = [
            ControlFinding(
                controls_version=version,
                control_id=NONE_APPLY,
                pass_fail="not_applicable",
                severity="low",
                confidence=0.4,
            )
        ]
    try:
        report = ComplianceReport(
            trace_id=str(gathered.params["trace_id"]),
            controls_version=version,
            controls_evaluated=findings,
            overall_verdict=verdict_of(findings),
            overall_confidence=round(min(finding.confidence for finding in findings), 4),
            gaps=gaps,
        )
    except ValidationError as error:
        reason = f"the report does not fit its schema: {error.errors()[0]['msg']}"
        return Conclusion(output=None, problems=(Problem(gate="schema", reason=reason), *problems))
    refs: list[EvidenceRef] = merge(*(finding.evidence_refs for finding in findings))
    return Conclusion(
        output=report.model_dump(mode="json"),
        text=markdown(report),
        evidence=tuple(refs),
        gaps=tuple(gaps),
        problems=tuple(problems),
    )


def conclude_child(value: Any, gathered: Gathered) -> Conclusion:
    """What a control's sub-call hands back."""
    fields = fields_of(value) or {"rationale": value}
    proved, refuted = prove_refs(fields.get("evidence_refs"), gathered.prover)
    gaps = [*texts(fields.get("gaps")), *refuted]
    output: dict[str, Any] = {
        "control_id": str(fields.get("control_id") or gathered.params.get("control_id") or ""),
        "pass_fail": str(fields.get("pass_fail", "")),
        "confidence": number(fields.get("confidence"), 0.5),
        "rationale": str(fields.get("rationale", "")),
        "covered_requirements": texts(fields.get("covered_requirements")),
        "missing_evidence": texts(fields.get("missing_evidence")),
        "evidence_refs": [ref.model_dump(mode="json") for ref in proved],
        "gaps": gaps,
    }
    text = f"{output['control_id']}: {output['pass_fail']}: {output['rationale']}"
    problems = () if proved or not refuted else tuple(Problem(gate="evidence", reason=reason) for reason in refuted)
    return Conclusion(output=output, text=text, evidence=tuple(proved), gaps=tuple(gaps), problems=problems)


def fallback(gathered: Gathered) -> Conclusion:
    """The rules' report, with what finished sub-calls have proved on top."""
    judged = {str(r["control_id"]): r for r in gathered.subcalls if r.get("control_id") and r.get("pass_fail")}
    rows = cast("list[dict[str, Any]]", gathered.prefilter.variables.get("controls", []))
    findings = [_finding(row, judged.get(row["control_id"]), gathered, []) for row in rows]
    found = _report(findings, gathered, [gathered.reason or "no model looked at this trace"], [])
    return Conclusion(
        output=found.output,
        text=found.text,
        evidence=found.evidence,
        gaps=found.gaps,
        by_model=bool(judged) and found.output is not None,
    )


def markdown(report: ComplianceReport) -> str:
    """The report for people."""
    lines = [
        f"# Compliance of {report.trace_id} with {report.controls_version}",
        "",
        f"**{report.overall_verdict}**, confidence {report.overall_confidence:.2f}",
        "",
        "| control | severity | verdict | why |",
        "|---|---|---|---|",
    ]
    for finding in report.controls_evaluated:
        why = " ".join(finding.rationale.split()).replace("|", "\\|")[:200]
        lines.append(f"| {finding.control_id} | {finding.severity} | {finding.pass_fail} | {why} |")
    for finding in report.controls_evaluated:
        if finding.pass_fail == "fail":
            lines += ["", f"## {finding.control_id}", finding.remediation]
            lines += [
                f"- {ref.kind.value} `{ref.ref}` (sha256 {ref.excerpt_hash[:12]})" for ref in finding.evidence_refs
            ]
    if report.gaps:
        lines += ["", "## Gaps", *(f"- {gap}" for gap in report.gaps)]
    return "\n".join(lines) + "\n"


COMPLIANCE = Engine(
    name="compliance",
    run_type="policy_compliance",
    output_type="ComplianceReport",
    system=prompt_file("compliance"),
    child=prompt_file("compliance_child"),
    budget=COMPLIANCE_BUDGET,
    maxima=CONTRACT_MAXIMA,
    prefilter=prefilter,
    conclude=conclude,
    conclude_child=conclude_child,
    fallback=fallback,
    reply_form="schema",
    tools=(
        "overview",
        "list_spans",
        "get_spans",
        "get_span",
        "get_attribute",
        "get_children",
        "get_messages",
        "get_tool_io",
        "get_retrieval_chunks",
        "search_trace",
        "list_controls",
        "get_control",
        "required_evidence",
    ),
    functions=("budget", "llm_query", "llm_batch", "delegate_subcall", "delegate_batch"),
    delegation_keys=DELEGATION_KEYS,
    final_example=(
        'SUBMIT(findings=[{"control_id": "…", "pass_fail": "fail", "confidence": 0.8, "rationale": "…", '
        '"evidence_refs": [{"kind": "SPAN", "ref": "<span_id>"}], "missing_evidence": []}], gaps=[])'
    ),
)
