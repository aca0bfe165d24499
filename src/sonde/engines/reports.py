"""The three reports, field by field as the contract has them. Fields added since are optional, and the minor version says so.

A report is built by an engine from what a model submitted or a rule found; hashes in it are the runtime's. Validation
here is about form only: whether evidence exists is proved before, by `engines.submission`.
"""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sonde.core.evidence import EvidenceRef, merge

REPORT_VERSION = "1.3.0"

Severity = Literal["critical", "high", "medium", "low"]
PassFail = Literal["pass", "fail", "not_applicable", "insufficient_evidence"]
Verdict = Literal["compliant", "non_compliant", "needs_review"]
ChangeType = Literal["deploy", "config", "prompt", "dependency", "unknown"]


AnnotatorKind = Literal["LLM", "CODE", "HUMAN"]


class Report(BaseModel):
    """What all reports share."""

    model_config = ConfigDict(extra="forbid")

    schema_version: str = REPORT_VERSION


class Finding(BaseModel):
    """One proved failure in a trace; `caused_by` is the index of the finding that led to it."""

    model_config = ConfigDict(extra="forbid")

    category: str = Field(min_length=1)
    span_id: str = Field(min_length=1)
    evidence_refs: list[EvidenceRef] = Field(min_length=1)
    why: str = Field(min_length=1)
    impact: Literal["high", "medium", "low"] = "medium"
    first_failure: bool = False
    caused_by: int | None = None
    verified: bool | None = None
    confidence: float = Field(default=0.5, ge=0, le=1)
    annotator_kind: AnnotatorKind = "LLM"


class Decisive(BaseModel):
    """The step and the agent that decided a failed multi-agent conversation."""

    model_config = ConfigDict(extra="forbid")

    agent: str
    step: int | None = None
    span_id: str = ""
    why: str = ""


class Alternative(BaseModel):
    """An explanation that was tested and rejected."""

    model_config = ConfigDict(extra="forbid")

    hypothesis: str = Field(min_length=1)
    why_rejected: str = Field(min_length=1)
    evidence_refs: list[EvidenceRef] = []


class RCAReport(Report):
    """Why a trace failed; only `no_failure_found` may stand without evidence."""

    trace_id: str
    primary_label: str
    summary: str = Field(min_length=1)
    confidence: float = Field(ge=0, le=1)
    evidence_refs: list[EvidenceRef]
    remediation: list[str] = []
    gaps: list[str] = []
    alternatives: list[Alternative] = []
    findings: list[Finding] = []
    taxonomy: str = "sonde"
    decisive: Decisive | None = None
    coverage: dict[str, int | list[str]] | None = None
    annotator_kind: AnnotatorKind | None = None

    @model_validator(mode="after")
    def _proved(self) -> Self:
        if not self.evidence_refs and self.primary_label != "no_failure_found":
            raise ValueError("evidence_refs is empty")
        return self

    def refs(self) -> list[EvidenceRef]:
        """The references that the record keeps."""
        return self.evidence_refs


class Overridden(BaseModel):
    """The verdict that a person replaced."""

    model_config = ConfigDict(extra="forbid")

    pass_fail: PassFail
    confidence: float = Field(ge=0, le=1)
    rationale: str = ""
    annotator_kind: AnnotatorKind


class ControlFinding(BaseModel):
    """The verdict on one control."""

    model_config = ConfigDict(extra="forbid")

    controls_version: str
    control_id: str
    pass_fail: PassFail
    severity: Severity
    confidence: float = Field(ge=0, le=1)
    evidence_refs: list[EvidenceRef] = []
    missing_evidence: list[str] = []
    remediation: str = ""
    rationale: str = ""
    annotator_kind: AnnotatorKind = "CODE"
    overridden: Overridden | None = None


class ComplianceReport(Report):
    """Whether a trace keeps the controls."""

    trace_id: str
    controls_version: str
    controls_evaluated: list[ControlFinding] = Field(min_length=1)
    overall_verdict: Verdict
    overall_confidence: float = Field(ge=0, le=1)
    gaps: list[str] = []

    def refs(self) -> list[EvidenceRef]:
        """The references of all controls, each once."""
        return merge(*(finding.evidence_refs for finding in self.controls_evaluated))


class TimelineEvent(BaseModel):
    """Something that happened, proved."""

    model_config = ConfigDict(extra="forbid")

    timestamp: str
    event: str = Field(min_length=1)
    evidence_refs: list[EvidenceRef] = Field(min_length=1)


class RepresentativeTrace(BaseModel):
    """A trace that stands for the incident."""

    model_config = ConfigDict(extra="forbid")

    trace_id: str
    why_selected: str
    evidence_refs: list[EvidenceRef] = Field(min_length=1)


class SuspectedChange(BaseModel):
    """What may have changed; asserted only with its diff."""

    model_config = ConfigDict(extra="forbid")

    change_type: ChangeType
    change_ref: str = ""
    diff_ref: str | None = None
    summary: str = ""
    evidence_refs: list[EvidenceRef] = []


class Hypothesis(BaseModel):
    """A ranked explanation."""

    model_config = ConfigDict(extra="forbid")

    rank: int = Field(ge=1)
    statement: str = Field(min_length=1)
    evidence_refs: list[EvidenceRef] = Field(min_length=1)
    confidence: float = Field(ge=0, le=1)


class RecommendedAction(BaseModel):
    """What to do, and how soon."""

    model_config = ConfigDict(extra="forbid")

    priority: Literal["P0", "P1", "P2"]
    action: str = Field(min_length=1)
    type: Literal["mitigation", "follow_up_fix"]


class WindowCounts(BaseModel):
    """What was counted over all traces of the window. `listed` is how many there are; `traces` how many were read and counted."""

    model_config = ConfigDict(extra="forbid")

    traces: int
    listed: int
    failed: int
    recovered: int
    failure_rate: float
    spans: int
    error_spans: int
    start: str | None
    end: str | None
    verdict: Literal["healthy", "steady", "incident"]
    latency_ms: dict[str, float] = {}
    tokens: dict[str, float] = {}
    cost: dict[str, float] = {}
    rate_over_time: list[dict[str, Any]] = []
    outliers: list[dict[str, Any]] = []


class GroupChange(BaseModel):
    """The change that a group is suspected of; `unknown` if nothing that changed fits."""

    model_config = ConfigDict(extra="forbid")

    kind: str | None
    change_type: ChangeType
    change_ref: str
    name: str
    at: str | None
    detail: str = ""
    speaks_for: list[str] = []
    speaks_against: list[str] = []
    also_near: list[str] = []
    diff_ref: str | None = None
    evidence_refs: list[EvidenceRef] = []


class FailureGroup(BaseModel):
    """Traces that failed alike, or whose time, cost or tries are out of line alike. `count` is of traces."""

    model_config = ConfigDict(extra="forbid")

    id: str
    kind: Literal["error", "retries", "slow", "costly"]
    component: str
    service: str = ""
    message: str
    count: int
    share: float
    failed: int
    recovered: int
    spans: int = 0
    also: int = 0
    pattern: Literal["onset", "steady", "stray"]
    first_seen: str
    last_seen: str
    onset: dict[str, str] | None = None
    figures: dict[str, float] = {}
    by: dict[str, list[dict[str, Any]]] = {}
    over_represented: list[dict[str, Any]] = []
    blast_radius: dict[str, int] = {}
    rate_over_time: list[dict[str, Any]] = []
    example_trace_ids: list[str] = []
    example_span_ids: list[str] = []
    suspected_change: GroupChange

    @property
    def mended(self) -> bool:
        """Whether it is about errors that all its traces recovered from."""
        return self.kind in ("error", "retries") and self.recovered == self.count


class IncidentDossier(Report):
    """An incident from its traces."""

    incident_id: str = ""
    incident_summary: str = Field(min_length=1)
    impacted_components: list[str] = []
    timeline: list[TimelineEvent] = []
    representative_traces: list[RepresentativeTrace] = Field(min_length=1)
    suspected_change: SuspectedChange
    hypotheses: list[Hypothesis] = []
    recommended_actions: list[RecommendedAction] = []
    confidence: float = Field(ge=0, le=1)
    gaps: list[str] = []
    window: WindowCounts | None = None
    groups: list[FailureGroup] = []

    def refs(self) -> list[EvidenceRef]:
        """Every reference of the dossier, once."""
        told = (*self.timeline, *self.hypotheses, *self.representative_traces, self.suspected_change)
        changes = [each.suspected_change.evidence_refs for each in self.groups]
        return merge(*(each.evidence_refs for each in told), *changes)
