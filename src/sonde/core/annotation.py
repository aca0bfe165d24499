"""An annotation: what a finished investigation says about one span or one trace, ready for any writer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

AnnotatorKind = Literal["LLM", "CODE", "HUMAN"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """One annotation. The upsert key of a writer is (name, target, identifier): a second run replaces the first."""

    run_id: str
    engine_type: str
    schema_version: str
    name: str
    annotator_kind: AnnotatorKind
    label: str
    score: float | None
    explanation: str
    level: Literal["span", "trace"]
    target: str
    identifier: str

    def as_dict(self) -> dict[str, Any]:
        """As a line of annotations.jsonl, the payload of the contract. An annotation of a whole trace has no span."""
        about_trace = self.level == "trace"
        return {
            "run_id": self.run_id,
            "engine_type": self.engine_type,
            "schema_version": self.schema_version,
            "name": self.name,
            "annotator_kind": self.annotator_kind,
            "label": self.label,
            "score": self.score,
            "explanation_json": self.explanation,
            "target_span_id": None if about_trace else self.target,
            "target_trace_id": self.target if about_trace else None,
            "identifier": self.identifier,
        }

    def row(self) -> dict[str, Any]:
        """As Phoenix accepts it; run, engine and version are at the top of its metadata."""
        return {
            f"{self.level}_id": self.target,
            "name": self.name,
            "annotator_kind": self.annotator_kind,
            "result": {"label": self.label, "score": self.score, "explanation": self.explanation},
            "metadata": {
                "run_id": self.run_id,
                "engine_type": self.engine_type,
                "schema_version": self.schema_version,
                "name": self.name,
                "annotator_kind": self.annotator_kind,
            },
            "identifier": self.identifier,
        }
