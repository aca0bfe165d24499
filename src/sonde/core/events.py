"""The one event stream: everything a run does, as a tagged union of frozen values.

The record, the metrics, the live view, the web page, the wire protocol, OpenTelemetry spans and resume are folds or
views of it. `session` is the path of the session in the recursion tree (`root`, `root/3.1`: the sub-call made by host
call 1 of turn 3; `.k` more for the k-th of a batch). Events that code depends on (model replies, host results, the
clock) have a `slot`: (session, turn, ordinal); the journal finds them by it. msgspec and not pydantic here: an event
is written between two turns, and that must cost microseconds.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

SCHEMA_VERSION = "1.0.0"
ROOT = "root"


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """What every event carries; `seq` and `at` (seconds since the epoch) are stamped by the recorder."""

    session: str = ROOT
    seq: int = -1
    at: float = 0.0

    @property
    def identity(self) -> tuple[Any, ...] | None:
        """What makes two events of one run the same step; None for those that repeat freely."""
        return None


class RunStarted(Event, tag="run_started", frozen=True, kw_only=True):
    """The run with everything that decides how it goes."""

    run_id: str
    run_type: str
    objective: str
    engine_version: str
    model: str | None
    sub_model: str | None
    provider: str
    temperature: float
    prompt_template_hash: str
    mode: str
    profile: str
    budget: dict[str, Any]
    seed: int
    input_ref: dict[str, Any]
    dataset_ref: dict[str, Any]
    schema_version: str = SCHEMA_VERSION
    settings: dict[str, Any] = {}
    layers: list[str] = []
    scaffold: str = "rlm"
    variables: list[str] = []
    context: str = ""

    @property
    def identity(self) -> tuple[Any, ...]:
        """One a run."""
        return ("run_started",)


class RunResumed(Event, tag="run_resumed", frozen=True, kw_only=True):
    """The run goes on after a crash: `elapsed_s` of wall time were used before."""

    elapsed_s: float
    replayed: int


class SubcallStarted(Event, tag="subcall_started", frozen=True, kw_only=True):
    """A child session (`mode` rlm) or one plain completion (`mode` query) begins; `session` is the child's path."""

    call_id: str
    parent_call_id: str
    depth: int
    objective: str
    input_ref_hash: str
    mode: Literal["rlm", "query"]
    shared: list[str] = []
    budget: dict[str, Any] = {}

    @property
    def identity(self) -> tuple[Any, ...]:
        """One a child."""
        return ("subcall_started", self.session)


class SubcallEnded(Event, tag="subcall_ended", frozen=True, kw_only=True):
    """How a child ended and what it hands to its parent."""

    call_id: str
    status: Literal["succeeded", "failed", "terminated_budget"]
    summary: str
    evidence_refs: list[dict[str, Any]] = []
    gaps: list[str] = []
    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: float = 0.0
    error: dict[str, Any] | None = None

    @property
    def identity(self) -> tuple[Any, ...]:
        """One a child."""
        return ("subcall_ended", self.session)


class StateChanged(Event, tag="state_changed", frozen=True, kw_only=True):
    """The session's loop moved (R130)."""

    turn: int
    state: str
    ordinal: int = 0

    @property
    def identity(self) -> tuple[Any, ...]:
        """One a step of the loop."""
        return ("state_changed", self.session, self.ordinal)


class TurnStarted(Event, tag="turn_started", frozen=True, kw_only=True):
    """A turn begins; `elapsed_s` is the time that the prompt shows and that decides a forced finish."""

    turn: int
    elapsed_s: float
    forced: str | None = None
    left: dict[str, Any] = {}

    @property
    def identity(self) -> tuple[Any, ...]:
        """One a turn."""
        return ("turn_started", self.session, self.turn)


class ModelAsked(Event, tag="model_asked", frozen=True, kw_only=True):
    """A request goes out; `messages` are only those after the first `kept` of the session's earlier request."""

    turn: int
    ordinal: int
    request_hash: str
    model: str
    kept: int
    messages: list[dict[str, str]]
    max_output_tokens: int | None = None
    schema_hash: str | None = None

    @property
    def identity(self) -> tuple[Any, ...]:
        """One a request."""
        return ("model_asked", self.session, self.turn, self.ordinal)


class ModelReplied(Event, tag="model_replied", frozen=True, kw_only=True):
    """A reply, on disk before anyone uses it."""

    turn: int
    ordinal: int
    request_hash: str
    text: str
    model: str
    tokens_in: int
    tokens_out: int
    cached_in: int = 0
    estimated: bool = False
    cost_usd: float | None = None
    latency_s: float = 0.0
    waited_s: float = 0.0
    attempts: int = 1
    finish_reason: str | None = None

    @property
    def identity(self) -> tuple[Any, ...]:
        """One a request."""
        return ("model_replied", self.session, self.turn, self.ordinal)


class ModelFailed(Event, tag="model_failed", frozen=True, kw_only=True):
    """An attempt gave nothing; `wait_s` until the next one, None when there is none. `cancelled`: the run was stopped meanwhile."""

    turn: int
    ordinal: int
    attempt: int
    request_hash: str
    message: str
    retryable: bool
    wait_s: float | None = None
    tokens_in: int = 0
    latency_s: float = 0.0
    waited_s: float = 0.0
    too_long: bool = False
    cancelled: bool = False


class CodeStarted(Event, tag="code_started", frozen=True, kw_only=True):
    """A block is about to run with this clock."""

    turn: int
    block: int
    code: str
    reasoning: str = ""
    clock: float = 0.0

    @property
    def identity(self) -> tuple[Any, ...]:
        """One a block."""
        return ("code_started", self.session, self.turn, self.block)


class CodeRan(Event, tag="code_ran", frozen=True, kw_only=True):
    """What came of a block."""

    turn: int
    block: int
    ok: bool
    stdout: str = ""
    stderr: str = ""
    output_hash: str = ""
    fault: dict[str, Any] | None = None
    final: bool = False
    final_hash: str | None = None
    variables: list[dict[str, Any]] = []
    duration_s: float = 0.0
    warnings: list[str] = []

    @property
    def identity(self) -> tuple[Any, ...]:
        """One a block."""
        return ("code_ran", self.session, self.turn, self.block)


class HostReturned(Event, tag="host_returned", frozen=True, kw_only=True):
    """A host call and its result or error, on disk before the code sees it."""

    turn: int
    ordinal: int
    name: str
    args: Any
    args_hash: str
    ok: bool
    result: Any = None
    response_hash: str = ""
    error: str | None = None
    latency_s: float = 0.0
    excerpts: list[dict[str, Any]] = []
    truncated: str | None = None
    tool: bool = True

    @property
    def identity(self) -> tuple[Any, ...]:
        """One a call."""
        return ("host_returned", self.session, self.turn, self.ordinal)


class ToolIntercepted(Event, tag="tool_intercepted", frozen=True, kw_only=True):
    """Assign-only: these calls were lifted out of the block."""

    turn: int
    block: int
    count: int
    names: list[str]

    @property
    def identity(self) -> tuple[Any, ...]:
        """One a block."""
        return ("tool_intercepted", self.session, self.turn, self.block)


class ToolExecError(Event, tag="tool_exec_error", frozen=True, kw_only=True):
    """Assign-only: a lifted call failed."""

    turn: int
    block: int
    name: str
    lineno: int
    message: str

    @property
    def identity(self) -> tuple[Any, ...]:
        """One a block."""
        return ("tool_exec_error", self.session, self.turn, self.block)


class Cited(Event, tag="cited", frozen=True, kw_only=True):
    """A citation was noted, proved."""

    turn: int
    ordinal: int
    citation: dict[str, Any]

    @property
    def identity(self) -> tuple[Any, ...]:
        """One a citation."""
        return ("cited", self.session, self.turn, self.ordinal)


class Highlighted(Event, tag="highlighted", frozen=True, kw_only=True):
    """The code kept a remark."""

    turn: int
    ordinal: int
    text: str

    @property
    def identity(self) -> tuple[Any, ...]:
        """One a remark."""
        return ("highlighted", self.session, self.turn, self.ordinal)


class GateChecked(Event, tag="gate_checked", frozen=True, kw_only=True):
    """A final value was judged: `gate` is seen, schema, evidence or citations."""

    turn: int
    gate: str
    ok: bool
    reason: str = ""

    @property
    def identity(self) -> tuple[Any, ...]:
        """One a gate and turn."""
        return ("gate_checked", self.session, self.turn, self.gate)


class Compacted(Event, tag="compacted", frozen=True, kw_only=True):
    """Old turns became one-line summaries."""

    turn: int
    turns: int
    tokens_before: int
    tokens_after: int

    @property
    def identity(self) -> tuple[Any, ...]:
        """One a turn."""
        return ("compacted", self.session, self.turn)


class Noted(Event, tag="noted", frozen=True, kw_only=True):
    """Something a reader of the run should know: a warning, a skipped file, an unknown price."""

    text: str
    level: Literal["info", "warning"] = "info"

    @property
    def identity(self) -> tuple[Any, ...]:
        """The same remark once."""
        return ("noted", self.session, self.text)


class StatusChanged(Event, tag="status_changed", frozen=True, kw_only=True):
    """The run's status moved (R77)."""

    status: str
    error: dict[str, Any] | None = None

    @property
    def identity(self) -> tuple[Any, ...]:
        """One a status."""
        return ("status_changed", self.status)


class RunEnded(Event, tag="run_ended", frozen=True, kw_only=True):
    """The end: status, output, who judged, and the error if there is one."""

    status: str
    output: Any = None
    output_type: str | None = None
    output_hash: str = ""
    annotator_kind: str = "CODE"
    gaps: list[str] = []
    error: dict[str, Any] | None = None
    elapsed_s: float = 0.0

    @property
    def identity(self) -> tuple[Any, ...]:
        """One a run."""
        return ("run_ended",)


class WroteBack(Event, tag="wrote_back", frozen=True, kw_only=True):
    """Annotations were written, or not."""

    status: Literal["succeeded", "partial", "failed"]
    annotation_ids: list[str] = []
    names: list[str] = []
    annotator_kinds: list[str] = []
    succeeded: int = 0
    failed: int = 0
    error: dict[str, Any] | None = None


AnyEvent: TypeAlias = (
    RunStarted
    | RunResumed
    | SubcallStarted
    | SubcallEnded
    | StateChanged
    | TurnStarted
    | ModelAsked
    | ModelReplied
    | ModelFailed
    | CodeStarted
    | CodeRan
    | HostReturned
    | ToolIntercepted
    | ToolExecError
    | Cited
    | Highlighted
    | GateChecked
    | Compacted
    | Noted
    | StatusChanged
    | RunEnded
    | WroteBack
)

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AnyEvent)


def encode(event: Event) -> bytes:
    """One line of JSON, without its newline."""
    return _encoder.encode(event)


def decode(line: bytes | str) -> AnyEvent:
    """The event of a line; msgspec.ValidationError or DecodeError when it is none."""
    return _decoder.decode(line)


def stamp(event: Event, seq: int, at: float) -> Event:
    """The event with its place and time in the stream."""
    return msgspec.structs.replace(event, seq=seq, at=at)


def as_dict(event: Event) -> dict[str, Any]:
    """The event as plain data."""
    return msgspec.to_builtins(event)
