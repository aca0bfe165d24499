"""Reports as annotations, with the names, labels and weights of the contract (2.7).

One root annotation for the result and one per span that carries evidence; several references to a span become one
annotation that lists them, because a second one of the same name would replace the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sonde.contexts.traces.shape import Tree
from sonde.contexts.traces.store import TraceStore
from sonde.core.canonical import canonical_json
from sonde.phoenix import Annotation

WEIGHTS = {"TOOL_IO": 0.95, "RETRIEVAL_CHUNK": 0.9, "CONFIG_DIFF": 0.85, "SPAN": 0.8, "MESSAGE": 0.8}
LABELS = {
    "TOOL_IO": "tool_error",
    "RETRIEVAL_CHUNK": "retrieval_signal",
    "CONFIG_DIFF": "config_signal",
    "SPAN": "hot_span",
    "MESSAGE": "hot_span",
}
Ref = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Who says it: the run, the engine and the kind of judge."""

    run_id: str
    engine_type: str
    annotator_kind: Literal["LLM", "CODE"]


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
    explanation: Mapping[str, Any],
    level: Literal["span", "trace"],
    target: str,
    code: bool = False,
) -> Annotation:
    return Annotation(
        run_id=by.run_id,
        engine_type=by.engine_type,
        schema_version=str(report["schema_version"]),
        name=name,
        annotator_kind="CODE" if code else by.annotator_kind,
        label=label,
        score=score,
        explanation=_unmarked(canonical_json(explanation)),
        level=level,
        target=target,
        identifier=f"sonde:{by.engine_type}",
    )


def _unmarked(text: str) -> str:
    """JSON in which no text is a picture, a link or a tag for a page that shows it as Markdown; it reads back as the same value."""
    for sign in ("![", "](", "]:", "<"):
        text = text.replace(sign, f"{sign[:-1]}\\u{ord(sign[-1]):04x}")
    return text


def _rca(report: Mapping[str, Any], by: Provenance, _store: TraceStore) -> Iterable[Annotation]:
    yield _note(
        by,
        report,
        name="rca.primary",
        label=report["primary_label"],
        score=report["confidence"],
        explanation={"annotator_kind": by.annotator_kind, "run_id": by.run_id, "report": report},
        level="trace",
        target=report["trace_id"],
    )
    refs = [*report["evidence_refs"], *(ref for finding in report["findings"] for ref in finding["evidence_refs"])]
    whys = {finding["span_id"]: f"{finding['category']}: {finding['why']}" for finding in report["findings"]}
    for span_id, group in _by_span(refs).items():
        best = max(group, key=lambda ref: WEIGHTS.get(ref["kind"], 0.0))
        yield _note(
            by,
            report,
            name="rca.evidence",
            label=LABELS.get(best["kind"], "hot_span"),
            score=WEIGHTS.get(best["kind"]),
            explanation={
                "annotator_kind": "CODE",
                "evidence_ref": best,
                "evidence_refs": group,
                "run_id": by.run_id,
                "why": whys.get(span_id, report["summary"]),
            },
            level="span",
            target=span_id,
            code=True,
        )


def _compliance(report: Mapping[str, Any], by: Provenance, _store: TraceStore) -> Iterable[Annotation]:
    yield _note(
        by,
        report,
        name="compliance.overall",
        label=report["overall_verdict"],
        score=report["overall_confidence"],
        explanation={
            "annotator_kind": by.annotator_kind,
            "controls_version": report["controls_version"],
            "report": report,
            "run_id": by.run_id,
        },
        level="trace",
        target=report["trace_id"],
    )
    words = {"fail": "control_violation", "insufficient_evidence": "control_gap"}
    for finding in report["controls_evaluated"]:
        for span_id, group in _by_span(finding["evidence_refs"]).items():
            yield _note(
                by,
                report,
                name=f"compliance.control.{finding['control_id']}.evidence",
                label=words.get(finding["pass_fail"], "control_evidence"),
                score=finding["confidence"],
                explanation={
                    "control_id": finding["control_id"],
                    "controls_version": finding["controls_version"],
                    "evidence_ref": group[0],
                    "evidence_refs": group,
                    "missing_evidence": finding["missing_evidence"],
                    "pass_fail": finding["pass_fail"],
                    "run_id": by.run_id,
                },
                level="span",
                target=span_id,
            )


def _incident(report: Mapping[str, Any], by: Provenance, store: TraceStore) -> Iterable[Annotation]:
    trees = [Tree(store.summaries(trace["trace_id"])) for trace in report["representative_traces"]]
    roots = [tops[0].span_id for tree in trees if (tops := tree.roots())]
    for span_id in dict.fromkeys(roots):
        yield _note(
            by,
            report,
            name="incident.dossier",
            label="incident_dossier",
            score=report["confidence"],
            explanation={"annotator_kind": by.annotator_kind, "report": report, "run_id": by.run_id},
            level="span",
            target=span_id,
        )
    # One label per span: the first of timeline, hypothesis and change wins.
    change: list[Ref] = list(report["suspected_change"]["evidence_refs"])
    groups = {
        "timeline_event": _by_span(ref for event in report["timeline"] for ref in event["evidence_refs"]),
        "hypothesis_evidence": _by_span(ref for each in report["hypotheses"] for ref in each["evidence_refs"]),
        "change_evidence": _by_span(change),
    }
    found: dict[str, tuple[str, list[Ref]]] = {}
    for label, spans in groups.items():
        for span_id, group in spans.items():
            found.setdefault(span_id, (label, group))
    # A diff has no span, so it goes to the first free root.
    homeless = [ref for ref in change if not ref["span_id"]]
    free = next((span_id for span_id in roots if span_id not in found), None)
    if homeless and free is not None:
        found[free] = ("change_evidence", homeless)
    for span_id, (label, group) in found.items():
        yield _note(
            by,
            report,
            name="incident.timeline.evidence",
            label=label,
            score=report["confidence"],
            explanation={"evidence_ref": group[0], "evidence_refs": group, "run_id": by.run_id},
            level="span",
            target=span_id,
        )


def _by_span(refs: Iterable[Ref]) -> dict[str, list[Ref]]:
    groups: dict[str, list[Ref]] = {}
    for ref in refs:
        if ref["span_id"] and ref not in groups.get(ref["span_id"], ()):
            groups.setdefault(ref["span_id"], []).append(ref)
    return groups
