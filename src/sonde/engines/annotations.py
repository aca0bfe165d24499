"""Reports as annotations, with the names and labels of the contract (2.7, 2.14).

One annotation says the result, on the trace and on its root span; one per span carries the evidence for a failure, a gap or an event.
Several references to a span become one annotation that lists them, because a second one of the same name would replace the first.
The explanation is a sentence for people: why, what to do, and how to open the run. The data behind it goes into the metadata.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sonde.contexts.traces.rules import NO_FAILURE
from sonde.contexts.traces.shape import Tree
from sonde.contexts.traces.store import TraceStore
from sonde.core.canonical import clip
from sonde.core.markdown_safety import words
from sonde.engines.reports import AnnotatorKind
from sonde.phoenix import Annotation

WEIGHTS = {"TOOL_IO": 0.95, "RETRIEVAL_CHUNK": 0.9, "CONFIG_DIFF": 0.85, "SPAN": 0.8, "MESSAGE": 0.8}
LABELS = {
    "TOOL_IO": "tool_error",
    "RETRIEVAL_CHUNK": "retrieval_signal",
    "CONFIG_DIFF": "config_signal",
    "SPAN": "hot_span",
    "MESSAGE": "hot_span",
}
SCORES = {"compliant": 1.0, "non_compliant": 0.0, "pass": 1.0, "fail": 0.0}
EVIDENCE = ".evidence"
"""How the names of annotations end that say what a result rests on."""
SUPERSEDED = "superseded"
SAID_CHARS = 600
Ref = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Who says it: the run, the engine and the kind of judge."""

    run_id: str
    engine_type: str
    annotator_kind: AnnotatorKind


def annotations_of(report: Mapping[str, Any], by: Provenance, store: TraceStore) -> list[Annotation]:
    """The annotations of a report about traces of this store."""
    build = {"rca": _rca, "policy_compliance": _compliance, "incident_dossier": _incident}[by.engine_type]
    return list(build(report, by, store))


def _note(
    by: Provenance,
    report: Mapping[str, Any],
    *,
    name: str,
    label: str,
    score: float | None,
    why: str,
    todo: str = "",
    confidence: float,
    details: Mapping[str, Any],
    level: Literal["span", "trace"],
    target: str,
    kind: AnnotatorKind | None = None,
) -> Annotation:
    version = report.get("controls_version")
    said = [_sentence(why), f"To do: {_sentence(todo)}" if todo.strip() else "", f"More: sonde view {by.run_id}"]
    return Annotation(
        run_id=by.run_id,
        engine_type=by.engine_type,
        schema_version=str(report["schema_version"]),
        name=name,
        annotator_kind=kind or by.annotator_kind,
        label=label,
        score=score,
        explanation=" ".join(filter(None, said)),
        details={"confidence": confidence, **details},
        level=level,
        target=target,
        identifier=f"sonde:{by.engine_type}" + (f":{version}" if version else ""),
    )


def _sentence(text: str) -> str:
    """Words of a model or a trace on one line, harmless to a page that shows Markdown."""
    said = words(clip(" ".join(text.split()), SAID_CHARS))
    return said if said.endswith((".", "!", "?", "…")) else f"{said}."


def _places(trace_id: str, store: TraceStore) -> list[tuple[Literal["span", "trace"], str]]:
    """Where the result of a trace is said: on the trace, and on its root span."""
    return [("trace", trace_id), *(("span", span_id) for span_id in _roots(trace_id, store))]


def _roots(trace_id: str, store: TraceStore) -> list[str]:
    """The first root span of a trace, where a list of traces shows annotations."""
    return [span.span_id for span in Tree(store.summaries(trace_id)).roots()[:1]]


def _rca(report: Mapping[str, Any], by: Provenance, store: TraceStore) -> Iterable[Annotation]:
    label = report["primary_label"]
    for level, target in _places(report["trace_id"], store):
        yield _note(
            by,
            report,
            name="rca.primary",
            label=label,
            score=None if label == NO_FAILURE else report["confidence"],
            why=report["summary"],
            todo=next(iter(report["remediation"]), ""),
            confidence=report["confidence"],
            details={"report": report},
            level=level,
            target=target,
        )
    if label == NO_FAILURE:
        return
    refs = [*report["evidence_refs"], *(ref for finding in report["findings"] for ref in finding["evidence_refs"])]
    findings = {finding["span_id"]: finding for finding in report["findings"]}
    for span_id, group in _by_span(refs).items():
        best = max(group, key=lambda ref: WEIGHTS.get(ref["kind"], 0.0))
        finding = findings.get(span_id)
        yield _note(
            by,
            report,
            name="rca.evidence",
            label=LABELS.get(best["kind"], "hot_span"),
            score=WEIGHTS.get(best["kind"]),
            why=f"{finding['category']}: {finding['why']}" if finding else report["summary"],
            confidence=finding["confidence"] if finding else report["confidence"],
            details={"evidence_ref": best, "evidence_refs": group},
            level="span",
            target=span_id,
            kind=finding["annotator_kind"] if finding else "CODE",
        )


def _compliance(report: Mapping[str, Any], by: Provenance, store: TraceStore) -> Iterable[Annotation]:
    findings = report["controls_evaluated"]
    decides = {"non_compliant": "fail", "needs_review": "insufficient_evidence"}.get(report["overall_verdict"])
    deciding = [each for each in findings if each["pass_fail"] == decides]
    kinds = {by.annotator_kind} & {"HUMAN"} | {each["annotator_kind"] for each in deciding or findings}
    kind: AnnotatorKind = "HUMAN" if "HUMAN" in kinds else "LLM" if "LLM" in kinds else "CODE"
    counted = sum(each["pass_fail"] != "not_applicable" for each in findings)
    why = (
        f"{counted} controls were judged and none failed" if decides is None else "; ".join(map(_control_why, deciding))
    )
    for level, target in _places(report["trace_id"], store):
        yield _note(
            by,
            report,
            name="compliance.overall",
            label=report["overall_verdict"],
            score=SCORES.get(report["overall_verdict"]),
            why=f"{report['overall_verdict']} with {report['controls_version']}: {why}",
            todo=next((each["remediation"] for each in deciding if each["remediation"]), ""),
            confidence=report["overall_confidence"],
            details={"controls_version": report["controls_version"], "report": report},
            level=level,
            target=target,
            kind=kind,
        )
    labels = {"fail": "control_violation", "insufficient_evidence": "control_gap"}
    for finding in findings:
        for span_id, group in _by_span(finding["evidence_refs"]).items() if finding["pass_fail"] in labels else ():
            yield _note(
                by,
                report,
                name=f"compliance.control.{finding['control_id']}{EVIDENCE}",
                label=labels[finding["pass_fail"]],
                score=SCORES.get(finding["pass_fail"]),
                why=_control_why(finding),
                todo=finding["remediation"],
                confidence=finding["confidence"],
                details={
                    "control_id": finding["control_id"],
                    "controls_version": finding["controls_version"],
                    "evidence_ref": group[0],
                    "evidence_refs": group,
                    "missing_evidence": finding["missing_evidence"],
                    "pass_fail": finding["pass_fail"],
                },
                level="span",
                target=span_id,
                kind=finding["annotator_kind"],
            )


def _control_why(finding: Mapping[str, Any]) -> str:
    return f"{finding['control_id']}: {finding['rationale'] or ', '.join(finding['missing_evidence'])}"


def _incident(report: Mapping[str, Any], by: Provenance, store: TraceStore) -> Iterable[Annotation]:
    roots = [span_id for trace in report["representative_traces"] for span_id in _roots(trace["trace_id"], store)]
    for span_id in dict.fromkeys(roots):
        yield _note(
            by,
            report,
            name="incident.dossier",
            label="incident_dossier",
            score=report["confidence"],
            why=report["incident_summary"],
            todo=next((each["action"] for each in report["recommended_actions"]), ""),
            confidence=report["confidence"],
            details={"report": report},
            level="span",
            target=span_id,
        )
    # One label per span: the first of timeline, hypothesis and change wins.
    change = report["suspected_change"]
    found: dict[str, tuple[str, str, list[Ref]]] = {}
    said = [
        *(("timeline_event", event["event"], event["evidence_refs"]) for event in report["timeline"]),
        *(("hypothesis_evidence", each["statement"], each["evidence_refs"]) for each in report["hypotheses"]),
        ("change_evidence", change["summary"], change["evidence_refs"]),
    ]
    for label, why, refs in said:
        for span_id, group in _by_span(refs).items():
            known = found.setdefault(span_id, (label, why, []))
            if known[0] == label:
                known[2].extend(ref for ref in group if ref not in known[2])
    # A diff has no span, so it goes to the first free root.
    homeless = [ref for ref in change["evidence_refs"] if not ref["span_id"]]
    free = next((span_id for span_id in roots if span_id not in found), None)
    if homeless and free is not None:
        found[free] = ("change_evidence", change["summary"], homeless)
    for span_id, (label, why, group) in found.items():
        yield _note(
            by,
            report,
            name=f"incident.timeline{EVIDENCE}",
            label=label,
            score=report["confidence"],
            why=why or label,
            confidence=report["confidence"],
            details={"evidence_ref": group[0], "evidence_refs": group},
            level="span",
            target=span_id,
        )


def _by_span(refs: Iterable[Ref]) -> dict[str, list[Ref]]:
    groups: dict[str, list[Ref]] = {}
    for ref in refs:
        if ref["span_id"] and ref not in groups.get(ref["span_id"], ()):
            groups.setdefault(ref["span_id"], []).append(ref)
    return groups
