"""The one event stream: everything a run does, as a tagged union of frozen values.

The record, the metrics, the live view, the web page, the wire protocol, OpenTelemetry spans and resume are folds or
views of it. `session` is the path of the session in the recursion tree (`root`, `root/3.1`: the sub-call made by host
call 1 of turn 3; with `.k` added for the k-th of a batch). Events that code depends on (model replies, host results, the
clock) are found by their KEY. msgspec instead of pydantic, because an event is written between two turns and must cost
only microseconds.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import msgspec

from sonde.errors import ErrorCode

SCHEMA_VERSION = "1.0.0"
LAST_MOMENT = 253_402_300_800
"""Seconds from the epoch to the year 10000, which no date can show."""
ROOT = "root"
JOURNAL_FORMAT = 3
"""What a run records and does: since 1, code that waits for a sub-call is delegating; since 2, code has READY_NAMES without an import;
since 3, cut output says what is missing, a failed block what it had done, edit that lines can be numbered; code has NEWER_MODULES."""


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """What every event carries; `seq` and `at` (seconds since the epoch) are stamped by the recorder."""

    KEY: ClassVar[tuple[str, ...] | None] = None
    """The fields that make two events of one class the same step of a run."""
    session: str = ROOT
    seq: int = -1
    at: Annotated[float, msgspec.Meta(ge=0, lt=LAST_MOMENT)] = 0.0

    @property
    def key(self) -> tuple[Any, ...] | None:
        """Its class and the values of KEY; None for events that repeat freely."""
        return None if self.KEY is None else (type(self), *[getattr(self, name) for name in self.KEY])


class RunStarted(Event, tag="run_started", frozen=True, kw_only=True):
    """The run with everything that decides how it goes."""

    KEY = ()
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
    sampling: dict[str, Any] = {}
    price_source: str = ""
    format: int = 0
    """The JOURNAL_FORMAT of the version that began the run. A run that is done again records what it did then."""


class RunResumed(Event, tag="run_resumed", frozen=True, kw_only=True):
    """The run goes on after a crash: `elapsed_s` of wall time were used before."""

    elapsed_s: float
    replayed: int


class SubcallStarted(Event, tag="subcall_started", frozen=True, kw_only=True):
    """A child session (`mode` rlm) or one plain completion (`mode` query) begins; `session` is the child's path."""

    KEY = ("session",)
    call_id: str
    parent_call_id: str
    depth: int
    objective: str
    input_ref_hash: str
    mode: Literal["rlm", "query"]
    shared: list[str] = []
    scope: list[str] = []
    """The places to which the child is limited; empty: it sees what its parent does."""
    budget: dict[str, Any] = {}


class SubcallEnded(Event, tag="subcall_ended", frozen=True, kw_only=True):
    """How a child ended and what it hands to its parent."""

    KEY = ("session",)
    call_id: str
    status: Literal["succeeded", "failed", "terminated_budget"]
    summary: str
    evidence_refs: list[dict[str, Any]] = []
    gaps: list[str] = []
    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: float = 0.0
    unpriced: int = 0
    error: dict[str, Any] | None = None


class StateChanged(Event, tag="state_changed", frozen=True, kw_only=True):
    """The session's loop moved (R130)."""

    KEY = ("session", "ordinal")
    turn: int
    state: str
    ordinal: int = 0


class TurnStarted(Event, tag="turn_started", frozen=True, kw_only=True):
    """A turn begins; `elapsed_s` is the time that its prompt shows. With `call_s`, the expected length of a call, it decides a forced
    finish. Without `call_s` an older version recorded the turn: its prompt showed the time of the turn before.
    """

    KEY = ("session", "turn")
    turn: int
    elapsed_s: float
    call_s: float | None = None
    forced: str | None = None
    left: dict[str, Any] = {}


class ModelAsked(Event, tag="model_asked", frozen=True, kw_only=True):
    """A request goes out; `messages` are only those after the first `kept` of the session's earlier request."""

    KEY = ("session", "turn", "ordinal")
    turn: int
    ordinal: int
    request_hash: str
    model: str
    kept: int
    messages: list[dict[str, str]]
    max_output_tokens: int | None = None
    schema_hash: str | None = None


class ModelReplied(Event, tag="model_replied", frozen=True, kw_only=True):
    """A reply, on disk before anyone uses it."""

    KEY = ("session", "turn", "ordinal")
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
    cost_usd: float | None = None
    latency_s: float = 0.0
    waited_s: float = 0.0
    too_long: bool = False
    cancelled: bool = False
    code: ErrorCode = ErrorCode.MODEL_OUTPUT_INVALID


class CodeStarted(Event, tag="code_started", frozen=True, kw_only=True):
    """A block is about to run with this clock."""

    KEY = ("session", "turn", "block")
    turn: int
    block: int
    code: str
    reasoning: str = ""
    clock: float = 0.0


class CodeRan(Event, tag="code_ran", frozen=True, kw_only=True):
    """What came of a block."""

    KEY = ("session", "turn", "block")
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


class HostReturned(Event, tag="host_returned", frozen=True, kw_only=True):
    """A host call and its result or error, on disk before the code sees it."""

    KEY = ("session", "turn", "ordinal")
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


class ToolIntercepted(Event, tag="tool_intercepted", frozen=True, kw_only=True):
    """Assign-only: these calls were lifted out of the block."""

    KEY = ("session", "turn", "block")
    turn: int
    block: int
    count: int
    names: list[str]


class ToolExecError(Event, tag="tool_exec_error", frozen=True, kw_only=True):
    """Assign-only: a lifted call failed."""

    KEY = ("session", "turn", "block")
    turn: int
    block: int
    name: str
    lineno: int
    message: str


class Cited(Event, tag="cited", frozen=True, kw_only=True):
    """A citation was noted, proved."""

    KEY = ("session", "turn", "ordinal")
    turn: int
    ordinal: int
    citation: dict[str, Any]


class Highlighted(Event, tag="highlighted", frozen=True, kw_only=True):
    """The code kept a remark."""

    KEY = ("session", "turn", "ordinal")
    turn: int
    ordinal: int
    text: str


class GateChecked(Event, tag="gate_checked", frozen=True, kw_only=True):
    """A final value was judged: `gate` is seen, schema, evidence or citations."""

    KEY = ("session", "turn", "gate")
    turn: int
    gate: str
    ok: bool
    reason: str = ""


class Compacted(Event, tag="compacted", frozen=True, kw_only=True):
    """Old turns became one-line summaries, or were `shortened` to what later ones referred to."""

    KEY = ("session", "turn")
    turn: int
    turns: int
    tokens_before: int
    tokens_after: int
    shortened: bool = False


class Noted(Event, tag="noted", frozen=True, kw_only=True):
    """Something a reader of the run should know: a warning, a skipped file, an unknown price."""

    KEY = ("session", "text")
    text: str
    level: Literal["info", "warning"] = "info"


class StatusChanged(Event, tag="status_changed", frozen=True, kw_only=True):
    """The run's status moved (R77)."""

    KEY = ("status",)
    status: str
    error: dict[str, Any] | None = None


class RunEnded(Event, tag="run_ended", frozen=True, kw_only=True):
    """The end: status, output, who judged, and the error if there is one."""

    KEY = ()
    status: str
    output: Any = None
    output_type: str | None = None
    output_hash: str = ""
    annotator_kind: str = "CODE"
    gaps: list[str] = []
    error: dict[str, Any] | None = None
    elapsed_s: float = 0.0
    unproved: bool = False
    """Citations were switched off, and there are none."""


class WroteBack(Event, tag="wrote_back", frozen=True, kw_only=True):
    """Annotations were written, or not."""

    status: Literal["succeeded", "partial", "failed"]
    annotation_ids: list[str] = []
    names: list[str] = []
    annotator_kinds: list[str] = []
    succeeded: int = 0
    failed: int = 0
    kept: int = 0
    """Annotations that were not written, because a model's or a person's stands there."""
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
    """The event of a line; msgspec.ValidationError or DecodeError when the line is not an event."""
    try:
        return _decoder.decode(line)
    except RecursionError:
        raise msgspec.DecodeError("it is nested too deeply") from None


def stamp(event: Event, seq: int, at: float) -> Event:
    """The event with its place and time in the stream."""
    return msgspec.structs.replace(event, seq=seq, at=at)


def as_dict(event: Event) -> dict[str, Any]:
    """The event as plain data."""
    return msgspec.to_builtins(event)
