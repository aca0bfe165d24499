"""The `compliance` engine: each applicable control judged once, by rule and, where there is a model, by a sub-call that
may only be stricter.

`insufficient_evidence` by rule stands whatever a model thinks; a model can make a verdict more severe, never milder.
Any fail makes the trace non_compliant; else anything insufficient, or nothing applicable, makes it needs_review.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from sonde.contexts.controls import MAX_CONTROLS, Control, infer_scope
from sonde.contexts.traces.context import LOOKING, TracesContext
from sonde.core.budget import CONTRACT_MAXIMA, Budget
from sonde.engines.controls_rule import Ruled, rule, see
from sonde.engines.refs import fields_of, items_of, number, prove_refs, texts, unfit_confidence
from sonde.engines.verdicts import SEVERITY_OF, Judging
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


def selected(gathered: Gathered, limit: int = MAX_CONTROLS) -> list[Control]:
    """The controls that apply to this trace, most severe first."""
    context = cast("TracesContext", gathered.context)
    summaries = context.store.summaries(str(gathered.params["trace_id"]))
    scope = infer_scope((span.kind, span.name) for span in summaries)
    if scope.span_kinds == frozenset({"UNKNOWN"}):  # instrumentation without kinds: what is unknown excludes no control
        scope = replace(scope, span_kinds=None)
    overrides = cast("Sequence[str]", gathered.params.get("overrides", ()))
    version = str(gathered.params["controls_version"])
    return context.controls.select(version, scope, overrides=overrides, limit=limit)


def prefilter(gathered: Gathered) -> Prefilter:
    """The applicable controls with what rules say of each, as variables and in words."""
    context = cast("TracesContext", gathered.context)
    trace_id = str(gathered.params["trace_id"])
    seen = see(context.store, trace_id)
    ruled = [rule(control, seen) for control in selected(gathered)]
    rows = [_row(each) for each in ruled]
    lines = [f"- {r['control_id']} ({r['severity']}): by rule {r['pass_fail']}: {r['why']}" for r in rows]
    text = f"Controls that apply ({len(rows)}), with what rules say:\n" + ("\n".join(lines) or "none")
    return Prefilter(
        variables={"trace_id": trace_id, "controls": rows, "controls_version": gathered.params["controls_version"]},
        text=text,
        excerpts=tuple(excerpt for each in ruled for excerpt in each.excerpts),
        gaps=(*_unjudged(gathered), *seen.gaps, *context.store.gaps(trace_id)),
    )


def _unjudged(gathered: Gathered) -> list[str]:
    every = len(selected(gathered, limit=sys.maxsize))
    left = every - MAX_CONTROLS
    return [f"{left} of {every} controls that apply were not judged: at most {MAX_CONTROLS} are"] if left > 0 else []


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
    """A submission merged with the rules, control by control; sub-calls speak for controls that it leaves out."""
    fields = fields_of(value)
    given = fields.get("findings") or fields.get("controls_evaluated")
    listed = items_of(given) or ([fields] if "control_id" in fields else [])
    judging = Judging(gathered=gathered, gaps=texts(fields.get("gaps")))
    judged = {**judged_below(gathered), **_most_severe(fields_of(item) for item in listed)}
    known = [row["control_id"] for row in judging.rows]
    for name in judged:
        if name not in known:
            judging.wrong("schema", f"{name} is not one of the controls that apply: {', '.join(known) or 'none does'}")
    if not judged and known:
        reason = f"findings is empty: judge each control that applies: {', '.join(known)}"
        return Conclusion(output=None, problems=(Problem(gate="schema", reason=reason),))
    return judging.report(judged)


def _most_severe(findings: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """By control; of two verdicts on one control the more severe."""
    chosen: dict[str, Mapping[str, Any]] = {}
    for each in findings:
        name = str(each.get("control_id") or "")
        if name and (name not in chosen or _severity(each) > _severity(chosen[name])):
            chosen[name] = each
    return chosen


def _severity(finding: Mapping[str, Any]) -> int:
    return SEVERITY_OF.get(str(finding.get("pass_fail")), -1)


def judged_below(gathered: Gathered) -> dict[str, Mapping[str, Any]]:
    """What sub-calls have judged."""
    return _most_severe(result for result in gathered.subcalls if result.get("pass_fail") in SEVERITY_OF)


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
    problems = unfit_confidence(fields)
    problems += [] if proved else [Problem(gate="evidence", reason=reason) for reason in refuted]
    if output["pass_fail"] not in SEVERITY_OF:
        problems.insert(0, Problem(gate="schema", reason=f"pass_fail must be one of {', '.join(SEVERITY_OF)}"))
    text = f"{output['control_id']}: {output['pass_fail']}: {output['rationale']}"
    return Conclusion(output=output, text=text, evidence=tuple(proved), gaps=tuple(gaps), problems=tuple(problems))


def fallback(gathered: Gathered) -> Conclusion:
    """The rules' report, with what finished sub-calls have proved on top."""
    judging = Judging(gathered=gathered, gaps=[gathered.reason or "no model looked at this trace"])
    return replace(judging.report(judged_below(gathered)), problems=())


COMPLIANCE = Engine(
    name="compliance",
    run_type="policy_compliance",
    output_type="ComplianceReport",
    system=prompt_file("engines/compliance"),
    child=prompt_file("engines/compliance_child"),
    budget=COMPLIANCE_BUDGET,
    maxima=CONTRACT_MAXIMA,
    prefilter=prefilter,
    conclude=conclude,
    conclude_child=conclude_child,
    fallback=fallback,
    reply_form="schema",
    tools=(*LOOKING, "list_controls", "get_control", "required_evidence"),
    functions=("budget", "llm_query", "llm_batch", "delegate_subcall", "delegate_batch"),
    delegation_keys=DELEGATION_KEYS,
    final_example=(
        'SUBMIT(findings=[{"control_id": "…", "pass_fail": "fail", "confidence": 0.8, "rationale": "…", '
        '"evidence_refs": [{"kind": "SPAN", "ref": "<span_id>"}], "missing_evidence": []}], gaps=[])'
    ),
)
