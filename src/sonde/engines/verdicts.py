"""Verdicts on controls: the rule's and the model's brought together, and the report they make.

The rule's `insufficient_evidence` stands; otherwise a model's verdict counts where it is at least as severe and
proved. Whether any model's word is in the result is remembered, so that nobody claims a judgement that was overruled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from pydantic import ValidationError

from sonde.core.evidence import merge
from sonde.engines.pages import compliance_page
from sonde.engines.refs import misfit, number, prove_refs, report_gaps, texts, unfit_confidence
from sonde.engines.reports import ComplianceReport, ControlFinding, PassFail, Verdict
from sonde.runtime.engine import Conclusion, Gate, Gathered, Problem

SEVERITY_OF = {"pass": 0, "not_applicable": 1, "insufficient_evidence": 2, "fail": 3}
OPEN = ("insufficient_evidence", "fail")  # verdicts after which something is to be done
NONE_APPLY = "control.no_applicable_controls"


@dataclass(slots=True, kw_only=True)
class Judging:
    """Verdicts on their way into a report: what is wrong with them, what is to be said, whether a model's word is in it."""

    gathered: Gathered
    problems: list[Problem] = field(default_factory=list[Problem])
    gaps: list[str] = field(default_factory=list[str])
    adopted: bool = False

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The controls that apply, as the pre-filter found them."""
        return cast("list[dict[str, Any]]", self.gathered.prefilter.variables.get("controls", []))

    def wrong(self, gate: Gate, reason: str) -> None:
        """Tell the model."""
        self.problems.append(Problem(gate=gate, reason=reason))

    def report(self, judged: Mapping[str, Mapping[str, Any]]) -> Conclusion:
        """Every control that applies, once, by rule and by the model where that is stricter."""
        findings = [self.finding(row, judged.get(row["control_id"])) for row in self.rows]
        return replace(_report(findings, self), by_model=self.adopted)

    def finding(self, row: Mapping[str, Any], model: Mapping[str, Any] | None) -> ControlFinding:
        """One control: the rule's verdict, or the model's when it is at least as severe and proved."""
        ruled = self._ruled(row)
        if model is None:
            return ruled
        name, wanted = ruled.control_id, str(model.get("pass_fail", ""))
        if wanted not in SEVERITY_OF:
            self.wrong("schema", f"{name}: pass_fail must be one of {', '.join(SEVERITY_OF)}; not {wanted!r:.40}")
            return ruled
        if ruled.pass_fail == "insufficient_evidence" or SEVERITY_OF[wanted] < SEVERITY_OF[ruled.pass_fail]:
            if wanted != ruled.pass_fail:
                self.gaps.append(f"{name}: the model said {wanted}; the rule's {ruled.pass_fail} stands")
            return ruled
        return self._stricter(ruled, cast("PassFail", wanted), model)

    def _ruled(self, row: Mapping[str, Any]) -> ControlFinding:
        refs, refuted = prove_refs(row["evidence"], self.gathered.prover)
        verdict, missing = row["pass_fail"], list(row["missing_evidence"])
        if verdict == "fail" and not refs:  # what the rule saw has changed since: a fail without proof is none
            verdict, missing = "insufficient_evidence", refuted or ["the violation cannot be read again"]
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

    def _stricter(self, ruled: ControlFinding, wanted: PassFail, model: Mapping[str, Any]) -> ControlFinding:
        own, refuted = prove_refs(model.get("evidence_refs"), self.gathered.prover)
        missing = texts(model.get("missing_evidence"))
        self.problems += unfit_confidence(model, f"{ruled.control_id}: ")
        for reason in refuted:
            self.wrong("evidence", f"{ruled.control_id}: {reason}")
        if wanted == "fail" and not own and ruled.pass_fail != "fail":
            self.wrong("evidence", f"{ruled.control_id}: a fail needs evidence_refs that a tool returned")
            return ruled
        if wanted == "insufficient_evidence" and not missing:
            self.wrong("evidence", f"{ruled.control_id}: insufficient_evidence needs missing_evidence")
            return ruled
        self.adopted = True
        remediation = str(model.get("remediation") or _template(self.rows, ruled.control_id))
        return ruled.model_copy(
            update={
                "pass_fail": wanted,
                "confidence": number(model.get("confidence"), ruled.confidence),
                "evidence_refs": merge(own, ruled.evidence_refs),
                "missing_evidence": missing if wanted == "insufficient_evidence" else [],
                "remediation": remediation if wanted in OPEN else "",
                "rationale": str(model.get("rationale") or ruled.rationale),
            }
        )


def _template(rows: Sequence[Mapping[str, Any]], control_id: str) -> str:
    return next((str(row["remediation_template"]) for row in rows if row["control_id"] == control_id), "")


def verdict_of(findings: Sequence[ControlFinding]) -> Verdict:
    """The trace's verdict from those of its controls."""
    words = {finding.pass_fail for finding in findings}
    if "fail" in words:
        return "non_compliant"
    if "insufficient_evidence" in words or words <= {"not_applicable"}:
        return "needs_review"
    return "compliant"


def _report(findings: list[ControlFinding], judging: Judging) -> Conclusion:
    version = str(judging.gathered.params["controls_version"])
    if not findings:
        judging.gaps.append(f"no control of {version} applies to this trace")
        findings = [_none_applies(version)]
    try:
        report = ComplianceReport(
            trace_id=str(judging.gathered.params["trace_id"]),
            controls_version=version,
            controls_evaluated=findings,
            overall_verdict=verdict_of(findings),
            overall_confidence=round(min(finding.confidence for finding in findings), 4),
            gaps=report_gaps(judging.gaps, judging.gathered),
        )
    except ValidationError as error:
        return Conclusion(output=None, problems=(misfit("report", error), *judging.problems))
    return Conclusion(
        output=report.model_dump(mode="json"),
        text=compliance_page(report),
        evidence=tuple(merge(*(finding.evidence_refs for finding in findings))),
        gaps=tuple(report.gaps),
        problems=tuple(judging.problems),
    )


def _none_applies(version: str) -> ControlFinding:
    return ControlFinding(
        controls_version=version, control_id=NONE_APPLY, pass_fail="not_applicable", severity="low", confidence=0.4
    )
