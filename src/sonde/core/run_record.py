"""The types of `run_record.json` (contracts 2.2). pydantic, because other programs read and check it.

Fields beyond the contract are additions: metrics (R116), the state object (R76), citations without their text (R117), gaps, who judged,
the sandbox layers, and counts of what was left out.
"""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer, model_validator

from sonde.core.status import RunStatus
from sonde.core.trajectory import ReplStep
from sonde.core.usage import Usage
from sonde.errors import ErrorCode

RunType = Literal["rca", "policy_compliance", "incident_dossier", "ask", "edit", "rlms"]


class Part(BaseModel):
    """Part of a record: frozen; fields of a newer minor version are kept, not refused."""

    model_config = ConfigDict(frozen=True, extra="allow")


class TimeWindow(Part):
    """Both ends may be open."""

    start: str | None = None
    end: str | None = None


class InputRef(Part):
    """What the run looked at, as asked for."""

    project_name: str | None = None
    trace_ids: list[str] = []
    trace_ids_omitted: int = 0
    time_window: TimeWindow = TimeWindow()
    filter_expr: str | None = None
    controls_version: str | None = None


class DatasetRef(Part):
    """What the run looked at, as found."""

    dataset_id: str | None = None
    dataset_hash: str | None = None


class SubcallMetadata(Part):
    """One sub-call (R98)."""

    call_id: str
    parent_call_id: str
    depth: int
    objective: str
    input_ref_hash: str
    started_at: str
    completed_at: str | None = None
    status: Literal["running", "succeeded", "failed", "terminated_budget"] = "running"
    session: str
    mode: str
    summary: str = ""
    gaps: list[str] = []
    evidence_count: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: float = 0.0
    state_trajectory: list[str] = []


class RuntimeRef(Part):
    """With what, within what, and how it went."""

    engine_version: str
    model_provider: str
    model_name: str | None
    sub_model_name: str | None = None
    price_source: str | None = None
    """Who said what the model costs."""
    temperature: float
    prompt_template_hash: str
    mode: str
    profile: str
    budget: dict[str, Any]
    usage: Usage
    state_trajectory: list[str] = []
    state_trajectory_omitted: int = 0
    subcall_metadata: list[SubcallMetadata] = []
    subcall_metadata_omitted: int = 0
    repl_trajectory: list[ReplStep] = []
    repl_trajectory_omitted: int = 0
    scaffold: str | None = None
    layers: list[str] = []
    unsafe: bool = False
    unproved: bool = False
    """Citations were switched off, and there are none."""

    @property
    def cost(self) -> float | None:
        """US dollars; None when a part of it is not known, also if the model of unknown price never replied."""
        silent = self.usage.iterations and not self.usage.tokens_out
        unknown = self.price_source == "unknown" and silent and not self.usage.cost_usd
        return None if unknown else self.usage.cost

    @model_serializer(mode="wrap")
    def _as_before(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A record from before prices had a source, or of a run that is proved, looks as it always did."""
        shown: dict[str, Any] = plain(self)
        if self.price_source is None:
            shown.pop("price_source", None)
        if not self.unproved:
            shown.pop("unproved", None)
        return shown


class OutputRef(Part):
    """Where the output is, relative to the run's folder."""

    artifact_type: str | None = None
    artifact_path: str | None = None
    schema_version: str | None = None
    sha256: str | None = None


class WritebackRef(Part):
    """What was written back; no status when nothing was to be written."""

    phoenix_annotation_ids: list[str] = []
    writeback_status: Literal["succeeded", "partial", "failed"] | None = None
    annotation_names: list[str] = []
    annotator_kinds: list[str] = []


class RecordedError(Part):
    """Why the run failed (R115)."""

    code: ErrorCode
    message: str
    stage: str
    retryable: bool


class Metrics(Part):
    """R116, in seconds and counts."""

    total_latency_s: float = 0.0
    model_latency_s: float = 0.0
    model_calls: int = 0
    model_failures: int = 0
    tool_latency_s: float = 0.0
    tool_latency_p95_s: float = 0.0
    tool_calls: int = 0
    depth_reached: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_cached: int = 0
    writeback_succeeded: int = 0
    writeback_failed: int = 0


class Counters(Part):
    """The counters of the state object."""

    iteration: int = 0
    depth: int = 0
    tool_calls_total: int = 0
    tokens_total: int = 0


class Artifacts(Part):
    """What the run has gathered; a large output is given by its path and hash."""

    intermediate_evidence_ids: list[str] = []
    intermediate_evidence_omitted: int = 0
    final_output: Any = None


class RunState(Part):
    """The state object (R76)."""

    run_id: str
    engine_type: RunType
    status: RunStatus
    input_ref: InputRef
    budget: dict[str, Any]
    counters: Counters
    artifacts: Artifacts


class RunRecord(Part):
    """One run. A failed one has an error; a succeeded one has an artifact and no error."""

    schema_version: str
    run_id: str
    run_type: RunType
    status: RunStatus
    started_at: str
    completed_at: str | None = None
    dataset_ref: DatasetRef
    input_ref: InputRef
    runtime_ref: RuntimeRef
    output_ref: OutputRef
    writeback_ref: WritebackRef
    error: RecordedError | None = None
    objective: str = ""
    annotator_kind: str = "CODE"
    gaps: list[str] = []
    gaps_omitted: int = 0
    notes: list[str] = []
    notes_omitted: int = 0
    citations: list[dict[str, Any]] = []
    citations_omitted: int = 0
    metrics: Metrics
    state: RunState

    @model_validator(mode="after")
    def _error_iff_failed(self) -> Self:
        if self.status is RunStatus.FAILED and self.error is None:
            raise ValueError("a failed run needs an error")
        if self.status is RunStatus.SUCCEEDED and (self.error is not None or not self.output_ref.artifact_path):
            raise ValueError("a succeeded run has an artifact_path and no error")
        return self
