"""The `compliance` engine: each applicable control is judged once, by rule and, if a model runs, by a sub-call that
may only be stricter.

`insufficient_evidence` by rule stands whatever a model thinks; a model can make a proved verdict more severe, never milder. A control
that needs judgement is the exception: the rule can only fail it, and a model decides the rest with evidence. A person may override any
verdict with a reason; what was overridden stays beside it.
Any fail makes the trace non_compliant; otherwise anything insufficient, or nothing applicable, makes it needs_review. The result
says whether any model's word is in it, so nobody claims a judgement that was overruled.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, cast

from sonde.contexts.controls import MAX_CONTROLS, Control, infer_scope
from sonde.contexts.traces.context import LOOKING, TracesContext
from sonde.contexts.traces.maskedstore import MaskedStore
from sonde.core.budget import CONTRACT_MAXIMA, Budget
from sonde.core.evidence import merge
from sonde.engines.controls_rule import JUDGEMENT, UNREAD, rule, see
from sonde.engines.pages import compliance_page
from sonde.engines.reports import ComplianceReport, ControlFinding, Overridden, Verdict
from sonde.engines.submission import (
    Counted,
    conclude_report,
    fields_of,
    items_of,
    miscounted,
    number,
    prove_refs,
    prove_reply,
    report_gaps,
    texts,
    unfit_confidence,
)
from sonde.runtime.actions import DELEGATION_KEYS
from sonde.runtime.engine import Conclusion, Engine, Gate, Gathered, Prefilter, Problem
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
OPEN = ("insufficient_evidence", "fail")  # verdicts that need a remedy
NONE_APPLY = "control.no_applicable_controls"
MAX_UNKNOWN = 20


def selected(gathered: Gathered, limit: int = MAX_CONTROLS) -> list[Control]:
    """The controls that apply to this trace, most severe first."""
    context = cast("TracesContext", gathered.context)
    store, trace_id = context.store, str(gathered.params["trace_id"])
    # A tool whose name is masked is still the tool that a control is about.
    summaries = store.real_summaries(trace_id) if isinstance(store, MaskedStore) else store.summaries(trace_id)
    scope = infer_scope((span.kind, span.name) for span in summaries)
    if scope.span_kinds == frozenset({"UNKNOWN"}):  # instrumentation without kinds: what is unknown excludes no control
        scope = replace(scope, span_kinds=None)
    overrides = cast("Sequence[str]", gathered.params.get("overrides", ()))
    version = str(gathered.params["controls_version"])
    return context.controls.select(version, scope, overrides=overrides, limit=limit)


def prefilter(gathered: Gathered) -> Prefilter:
    """The applicable controls with what rules say about each, as variables and in words."""
    context = cast("TracesContext", gathered.context)
    trace_id = str(gathered.params["trace_id"])
    seen = see(context.store, trace_id)
    ruled = [rule(control, seen) for control in selected(gathered)]
    rows = [
        {
            **each.control.row(),
            "pass_fail": each.pass_fail,
            "confidence": each.confidence,
            "why": each.why,
            "missing_evidence": list(each.missing),
            "evidence": [{"kind": e.kind.value, "ref": e.ref} for e in each.excerpts],
        }
        for each in ruled
    ]
    lines = [f"- {r['control_id']} ({r['severity']}): by rule {r['pass_fail']}: {r['why']}" for r in rows]
    text = f"Controls that apply ({len(rows)}), with what rules say:\n" + ("\n".join(lines) or "none")
    every = len(selected(gathered, limit=sys.maxsize))
    left = every - MAX_CONTROLS
    unjudged = (
        [f"{left} of {every} controls that apply were not judged: at most {MAX_CONTROLS} are"] if left > 0 else []
    )
    lacking = [each for each in ruled if each.missing and each.missing[0].startswith(UNREAD)]
    if lacking:
        named = ", ".join(each.control.control_id for each in lacking[:4]) + (" and others" if len(lacking) > 4 else "")
        unjudged.append(f"{named}: {lacking[0].why}")
    return Prefilter(
        variables={"trace_id": trace_id, "controls": rows, "controls_version": gathered.params["controls_version"]},
        text=text,
        excerpts=tuple(excerpt for each in ruled for excerpt in each.excerpts),
        gaps=(*unjudged, *seen.gaps, *context.store.gaps(trace_id), *context.store.skipped()),
    )


def conclude(value: Any, gathered: Gathered) -> Conclusion:
    """A submission merged with the rules, control by control; sub-calls speak for controls that it leaves out."""
    fields = fields_of(value)
    given = fields.get("findings") or fields.get("controls_evaluated")
    listed = items_of(given) or ([fields] if "control_id" in fields else [])
    judgement = Judgement(gathered=gathered, gaps=texts(fields.get("gaps")))
    judged = {**judged_below(gathered), **_most_severe(fields_of(item) for item in listed)}
    known = [row["control_id"] for row in judgement.rows]
    unknown = (name for name in judged if name not in known)
    for name in islice(unknown, MAX_UNKNOWN):
        judgement.wrong("schema", f"{name} is not one of the controls that apply: {', '.join(known) or 'none does'}")
    if not judged and known:
        reason = f"the model judged none of the controls that apply: {', '.join(known)}"
        told = f"findings is empty: judge each control that applies: {', '.join(known)}"
        return Conclusion(output=None, problems=(Problem(gate="schema", reason=reason, told=told),))
    return judgement.report(judged)


def _most_severe(findings: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """By control; the more severe of two verdicts on one control."""
    chosen: dict[str, Mapping[str, Any]] = {}
    for each in findings:
        name = str(each.get("control_id") or "")
        if name and (name not in chosen or _severity(each) > _severity(chosen[name])):
            chosen[name] = each
    return chosen


def _severity(finding: Mapping[str, Any]) -> int:
    return SEVERITY_OF.get(str(finding.get("pass_fail")), -1)


def judged_below(gathered: Gathered) -> dict[str, Mapping[str, Any]]:
    """The verdicts of sub-calls."""
    return _most_severe(result for result in gathered.subcalls if result.get("pass_fail") in SEVERITY_OF)


@dataclass(slots=True, kw_only=True)
class Judgement:
    """The rule's verdicts and the model's on their way into one report; `adopted` says whether a model's word is in it."""

    gathered: Gathered
    problems: list[Problem] = field(default_factory=list[Problem])
    gaps: list[str] = field(default_factory=list[str])
    adopted: bool = False

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The controls that apply, as the pre-filter found them."""
        return cast("list[dict[str, Any]]", self.gathered.prefilter.variables.get("controls", []))

    def wrong(self, gate: Gate, reason: str, told: str = "") -> None:
        """Tell the model."""
        self.problems.append(Problem(gate=gate, reason=reason, told=told))

    def report(self, judged: Mapping[str, Mapping[str, Any]]) -> Conclusion:
        """Every control that applies, once, by rule and by the model where that is stricter."""
        found = [self.finding(row, judged.get(row["control_id"])) for row in self.rows]
        findings = [self.overridden(each, row) for each, row in zip(found, self.rows, strict=True)]
        version = str(self.gathered.params["controls_version"])
        if not findings:
            self.gaps.append(f"no control of {version} applies to this trace")
            none = {"control_id": NONE_APPLY, "pass_fail": "not_applicable", "severity": "low", "confidence": 0.4}
            findings = [ControlFinding.model_validate({"controls_version": version, **none})]
        draft: dict[str, Any] = {
            "trace_id": str(self.gathered.params["trace_id"]),
            "controls_version": version,
            "controls_evaluated": findings,
            "overall_verdict": verdict_of(findings),
            "overall_confidence": round(confidence_of(findings), 4),
            "gaps": report_gaps(self.gaps, self.gathered),
        }
        context = cast("TracesContext", self.gathered.context)
        said = {
            f"{each.control_id}: the rationale": each.rationale for each in findings if each.annotator_kind == "LLM"
        }
        fails = sum(each.pass_fail == "fail" for each in findings)
        controls = Counted(kind="controls", total=len(findings), failed=(fails,))
        self.problems += miscounted(
            said, lambda: [Counted.of_spans(context.store.summaries(draft["trace_id"])), controls]
        )
        concluded = conclude_report(
            ComplianceReport, draft, lambda report: compliance_page(report, context), self.problems
        )
        decides = {"non_compliant": "fail", "needs_review": "insufficient_evidence"}.get(
            draft["overall_verdict"], "pass"
        )
        human = any(each.annotator_kind == "HUMAN" and each.pass_fail == decides for each in findings)
        by_person = human or bool(found and verdict_of(found) != draft["overall_verdict"])
        return replace(concluded, by_model=self.adopted, by_person=by_person)

    def finding(self, row: Mapping[str, Any], model: Mapping[str, Any] | None) -> ControlFinding:
        """One control: the rule's verdict, or the model's when it is at least as severe and proved."""
        ruled = self._ruled(row)
        if model is None:
            return ruled
        name, wanted = ruled.control_id, str(model.get("pass_fail", ""))
        if wanted not in SEVERITY_OF:
            self.wrong("schema", f"{name}: pass_fail must be one of {', '.join(SEVERITY_OF)}; not {wanted!r:.40}")
            return ruled
        undecided = ruled.missing_evidence == [JUDGEMENT]
        # Where the rules read only a part, a model may have found a violation in the rest.
        unread = wanted == "fail" and any(each.startswith(UNREAD) for each in ruled.missing_evidence)
        insufficient = ruled.pass_fail == "insufficient_evidence" and not unread
        stands = insufficient or SEVERITY_OF[wanted] < SEVERITY_OF[ruled.pass_fail]
        if stands and not undecided:
            if wanted != ruled.pass_fail:
                self.gaps.append(f"{name}: the model said {wanted}; the rule's {ruled.pass_fail} stands")
            return ruled
        own, refuted = prove_refs(model.get("evidence_refs"), self.gathered.prover)
        missing = texts(model.get("missing_evidence"))
        self.problems += unfit_confidence(model, f"{name}: ")
        self.problems += [Problem.of(each, f"{name}: ") for each in refuted]
        milder = wanted in ("pass", "not_applicable")
        if milder and own and all(self.gathered.prover.instruction(ref) for ref in own):
            told = ", ".join(ref.ref for ref in own)
            self.wrong("evidence", f"{name}: {told} tries to instruct its reader; {wanted} cannot rest on that")
            return ruled.model_copy(
                update={
                    "pass_fail": "insufficient_evidence",
                    "missing_evidence": [f"evidence that does not instruct its reader, as {told} does"],
                    "remediation": str(row["remediation_template"]),
                }
            )
        if not own and (undecided or wanted == "fail") and wanted != ruled.pass_fail:
            told = f"{name}: a {wanted} needs evidence_refs that a tool returned"
            self.wrong("evidence", f"{name}: the model said {wanted} and named no evidence that holds", told)
            return ruled
        if wanted == "insufficient_evidence" and not missing:
            told = f"{name}: insufficient_evidence needs missing_evidence"
            self.wrong("evidence", f"{name}: the model said insufficient_evidence, but not what is missing", told)
            return ruled
        self.adopted = True
        remediation = str(model.get("remediation") or row["remediation_template"])
        return ruled.model_copy(
            update={
                "pass_fail": wanted,
                "confidence": number(model.get("confidence"), ruled.confidence),
                "evidence_refs": merge(own, ruled.evidence_refs) if wanted == ruled.pass_fail else own,
                "missing_evidence": missing if wanted == "insufficient_evidence" else [],
                "remediation": remediation if wanted in OPEN else "",
                "rationale": str(model.get("rationale") or ruled.rationale),
                "annotator_kind": "LLM",
            }
        )

    def overridden(self, finding: ControlFinding, row: Mapping[str, Any]) -> ControlFinding:
        """The finding as the person who runs this wants it, with the verdict that it replaces."""
        verdicts = cast("Mapping[str, str]", self.gathered.params.get("verdicts") or {})
        verdict = verdicts.get(finding.control_id)
        if verdict is None:
            return finding
        replaced = Overridden(
            pass_fail=finding.pass_fail,
            confidence=finding.confidence,
            rationale=finding.rationale,
            annotator_kind=finding.annotator_kind,
        )
        reason = str(self.gathered.params.get("reason"))
        return finding.model_copy(
            update={
                "pass_fail": verdict,
                "confidence": 1.0,
                "evidence_refs": finding.evidence_refs if verdict == finding.pass_fail else [],
                "missing_evidence": [reason] if verdict == "insufficient_evidence" else [],
                "remediation": str(row["remediation_template"]) if verdict in OPEN else "",
                "rationale": reason,
                "annotator_kind": "HUMAN",
                "overridden": replaced,
            }
        )

    def _ruled(self, row: Mapping[str, Any]) -> ControlFinding:
        """The rule's verdict. If what it saw has changed since, its fail has no proof and becomes insufficient evidence."""
        refs, refuted = prove_refs(row["evidence"], self.gathered.prover)
        verdict, missing = row["pass_fail"], list(row["missing_evidence"])
        if verdict == "fail" and not refs:
            gone = [each.reason for each in refuted] or ["the violation cannot be read again"]
            verdict, missing = "insufficient_evidence", gone
        return ControlFinding(
            controls_version=str(row["controls_version"]),
            control_id=str(row["control_id"]),
            pass_fail=verdict,
            severity=row["severity"],
            confidence=row["confidence"],
            evidence_refs=refs,
            missing_evidence=missing,
            remediation=str(row["remediation_template"]) if verdict in OPEN else "",
            rationale=str(row["why"]),
        )


def verdict_of(findings: Sequence[ControlFinding]) -> Verdict:
    """The trace's verdict from those of its controls."""
    words = {finding.pass_fail for finding in findings}
    if "fail" in words:
        return "non_compliant"
    if "insufficient_evidence" in words or words <= {"not_applicable"}:
        return "needs_review"
    return "compliant"


def confidence_of(findings: Sequence[ControlFinding]) -> float:
    """How sure the verdict is: as sure as the findings that decide it. One fail is enough; for a pass all of them must hold."""
    failed = [each.confidence for each in findings if each.pass_fail == "fail"]
    unclear = [each.confidence for each in findings if each.pass_fail == "insufficient_evidence"]
    passed = [each.confidence for each in findings if each.pass_fail == "pass"]
    if failed or unclear:
        return max(failed or unclear)
    return min(passed or [each.confidence for each in findings])


def conclude_child(value: Any, gathered: Gathered) -> Conclusion:
    """What a control's sub-call hands back."""
    reply = prove_reply(value, gathered, only="rationale")
    fields = reply.fields
    output: dict[str, Any] = {
        "control_id": str(fields.get("control_id") or gathered.params.get("control_id") or ""),
        "pass_fail": str(fields.get("pass_fail", "")),
        "confidence": number(fields.get("confidence"), 0.5),
        "rationale": str(fields.get("rationale", "")),
        "covered_requirements": texts(fields.get("covered_requirements")),
        "missing_evidence": texts(fields.get("missing_evidence")),
        "evidence_refs": reply.ref_rows,
        "gaps": reply.gaps,
    }
    problems = unfit_confidence(fields)
    if output["pass_fail"] not in SEVERITY_OF:
        problems.insert(0, Problem(gate="schema", reason=f"pass_fail must be one of {', '.join(SEVERITY_OF)}"))
    return reply.conclusion(output, f"{output['control_id']}: {output['pass_fail']}: {output['rationale']}", problems)


def fallback(gathered: Gathered) -> Conclusion:
    """The rules' report, with what finished sub-calls have proved on top."""
    judgement = Judgement(gathered=gathered, gaps=[gathered.reason or "no model looked at this trace"])
    return replace(judgement.report(judged_below(gathered)), problems=())


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
    unforgiving=True,
    delegation_keys=DELEGATION_KEYS,
    in_actions=prompt_file("engines/compliance_actions"),
    final_example=(
        'SUBMIT(findings=[{"control_id": "…", "pass_fail": "fail", "confidence": 0.8, "rationale": "…", '
        '"evidence_refs": [{"kind": "SPAN", "ref": "<span_id>"}], "missing_evidence": []}], gaps=[])'
    ),
)
