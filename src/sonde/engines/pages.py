"""Reports for people, as Markdown. With a `link`, spans and traces open where they live.

Words of models and traces stay on one line each and cannot open a tag, a link or a table cell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sonde.core.evidence import EvidenceRef
from sonde.core.markdown_safety import code, words
from sonde.engines.reports import ComplianceReport, IncidentDossier, RCAReport

Link = Callable[[str, str | None], str | None]


def no_link(_trace_id: str, _span_id: str | None) -> str | None:
    """Files have no page."""
    return None


def page_of(run_type: str, output: Mapping[str, Any], link: Link = no_link) -> str:
    """The page of a report as data."""
    match run_type:
        case "rca":
            return rca_page(RCAReport.model_validate(output), link)
        case "policy_compliance":
            return compliance_page(ComplianceReport.model_validate(output), link)
        case _:
            return incident_page(IncidentDossier.model_validate(output), link)


def rca_page(report: RCAReport, link: Link = no_link) -> str:
    """Why a trace failed."""
    lines = [
        f"# Root cause of {_linked(report.trace_id, link(report.trace_id, None))}",
        "",
        f"**{inline(report.primary_label)}**, confidence {report.confidence:.2f}",
        "",
        inline(report.summary, 4000),
        "",
        "## Evidence",
        *_evidence(report.evidence_refs, link),
    ]
    if report.findings:
        lines += ["", "## Findings"]
    for place, finding in enumerate(report.findings):
        first = " (first failure)" if finding.first_failure else ""
        odds = f"{finding.impact} impact, {'checked' if finding.verified else 'not checked'}, {finding.confidence:.2f}"
        cause = f", caused by {finding.caused_by}" if finding.caused_by is not None else ""
        span = _linked(finding.span_id, link(report.trace_id, finding.span_id))
        lines.append(f"{place}. **{inline(finding.category)}** at {span}{first}{cause}: {inline(finding.why)} ({odds})")
    if report.decisive is not None:
        decisive = report.decisive
        lines += ["", f"Decisive: {inline(decisive.agent)}, step {decisive.step}: {inline(decisive.why)}"]
    lines += _section("Remediation", report.remediation)
    lines += _section("Other explanations", [f"{each.hypothesis}: {each.why_rejected}" for each in report.alternatives])
    lines += _section("Gaps", report.gaps)
    return "\n".join(lines) + "\n"


def compliance_page(report: ComplianceReport, link: Link = no_link) -> str:
    """Whether a trace keeps its controls."""
    trace = _linked(report.trace_id, link(report.trace_id, None))
    lines = [
        f"# Compliance of {trace} with {inline(report.controls_version)}",
        "",
        f"**{report.overall_verdict}**, confidence {report.overall_confidence:.2f}",
        "",
        "| control | severity | verdict | why |",
        "|---|---|---|---|",
    ]
    for each in report.controls_evaluated:
        missing = f" Missing: {', '.join(each.missing_evidence)}." if each.missing_evidence else ""
        why = inline(each.rationale + missing, 300)
        lines.append(f"| {inline(each.control_id)} | {each.severity} | {each.pass_fail} | {why} |")
    for each in report.controls_evaluated:
        if each.pass_fail == "fail":
            lines += ["", f"## {inline(each.control_id)}", inline(each.remediation)]
            lines += _evidence(each.evidence_refs, link)
    lines += _section("Gaps", report.gaps)
    return "\n".join(lines) + "\n"


def incident_page(report: IncidentDossier, link: Link = no_link) -> str:
    """What happened in a window of time."""
    lines = [f"# Incident {inline(report.incident_id)}".rstrip(), "", inline(report.incident_summary, 4000)]
    lines += ["", f"Confidence {report.confidence:.2f}", "", "## Timeline"]
    for event in report.timeline:
        lines.append(f"- {inline(event.timestamp)} {inline(event.event)} {_places(event.evidence_refs, link)}".rstrip())
    lines += [] if report.timeline else ["- no event"]
    lines += ["", "## Hypotheses"]
    for each in report.hypotheses:
        shown = _places(each.evidence_refs, link)
        lines.append(f"{each.rank}. ({each.confidence:.2f}) {inline(each.statement)} {shown}".rstrip())
    change = report.suspected_change
    ref = f" {code(change.diff_ref)}" if change.diff_ref else ""
    lines += ["", "## Suspected change", f"{change.change_type}: {inline(change.summary)}{ref}"]
    lines += ["", "## Representative traces"]
    for each in report.representative_traces:
        lines.append(f"- {_linked(each.trace_id, link(each.trace_id, None))} {inline(each.why_selected)}")
    actions = [f"{a.priority} ({a.type}): {a.action}" for a in report.recommended_actions]
    lines += _section("Impacted components", report.impacted_components) + _section("Actions", actions)
    lines += _section("Gaps", report.gaps)
    return "\n".join(lines) + "\n"


def inline(text: str, limit: int = 1000) -> str:
    """Foreign words on one line, without the signs that would make them more than words."""
    flat = " ".join(text.split())
    return words(flat if len(flat) <= limit else flat[: limit - 1] + "…").replace("|", r"\|")


def _section(title: str, items: Iterable[str]) -> list[str]:
    listed = [f"- {inline(item)}" for item in items]
    return ["", f"## {title}", *listed] if listed else []


def _evidence(refs: Iterable[EvidenceRef], link: Link) -> list[str]:
    return [f"- {ref.kind.value} {_place(ref, link)} (sha256 {ref.excerpt_hash[:12]})" for ref in refs]


def _places(refs: Iterable[EvidenceRef], link: Link) -> str:
    shown = ", ".join(_place(ref, link) for ref in refs)
    return f"({shown})" if shown else ""


def _place(ref: EvidenceRef, link: Link) -> str:
    return _linked(ref.ref, link(ref.trace_id, ref.span_id) if ref.span_id else None)


def _linked(name: str, address: str | None) -> str:
    shown = code(name if len(name) <= 300 else name[:299] + "…")
    return f"[{shown}]({address})" if address else shown
