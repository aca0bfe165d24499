"""The messages of the protocol: one JSON object per line, its `type` says which. The single source of the schemas and TypeScript types.

`id` names what the message is about: the task for new_task, cancel, progress, completion and error; the request for context.*,
tool.request and the tool.result that answers it; the sub-call; the message. `taskId` is the task that a runtime event belongs to,
`seq` counts the runtime's lines from 1, `parentId` is the sub-call (or task) in which an event happened. Unknown fields are ignored,
unknown types are answered with an error. See docs/protocol.md.

`Wire...` sets a class apart from another of Sonde's with the same name; schemas and TypeScript leave the prefix out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, field_validator
from pydantic.alias_generators import to_camel

from sonde.contexts.workspace.wire import BARE, TOOL_FAILED

PROTOCOL_VERSION = "1.0"
MAX_LINE_BYTES = 32 * 1024 * 1024
MAX_PROMPT = 1_000_000
SHOWN = 4000  # characters of a reply, a summary or an error

Id = Annotated[str, Field(min_length=1, max_length=1000)]
TaskId = Annotated[str, Field(min_length=1, max_length=200)]  # shorter: ids of requests and sub-calls begin with it
Text = Annotated[str, Field(max_length=1_000_000)]


class WirePart(BaseModel):
    """A value inside a message: snake_case here, camelCase on the wire, frozen."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore")


class WireCitation(WirePart):
    """Lines that support a claim; `hash` is the hash of their text when they were read."""

    path: str
    start_line: int
    end_line: int
    hash: str | None = None
    snippet: str | None = None


class WireProblem(WirePart):
    """Why a request failed: a code for programs and a sentence for people and models."""

    code: str
    message: str


class WireLimits(WirePart):
    """The budget of one task; missing limits have their defaults (2, 6, 1000, 6000, 60)."""

    max_depth: Annotated[int, Field(ge=0)] | None = None
    max_subcalls: Annotated[int, Field(ge=0)] | None = None
    max_tokens_per_subcall: Annotated[int, Field(ge=1)] | None = None
    max_total_tokens: Annotated[int, Field(ge=1)] | None = None
    timeout_seconds: Annotated[float, Field(gt=0)] | None = None


class WireUsage(WirePart):
    """What a task has spent so far."""

    iterations: int = 0
    tool_calls: int = 0
    subcalls: int = 0
    tokens: int = 0
    cost_usd: float | None = None
    seconds: float = 0.0


class PlannedChange(WirePart):
    """One file of an apply_patch request. `baseHash` is the sha256 of the text that read_file returned; null for a new file."""

    path: str
    action: Literal["add", "update", "delete", "move"]
    base_hash: str | None = None
    new_text: str | None = None
    target: str | None = None


class WireMessage(WirePart):
    """Fields that every line may have."""

    task_id: str | None = None
    seq: int | None = None
    parent_id: str | None = None


class Hello(WireMessage):
    """Runtime: the first line, sent unasked."""

    type: Literal["hello"] = "hello"
    protocol: str = PROTOCOL_VERSION
    version: str
    capabilities: tuple[str, ...] = ()
    model: str | None = None
    max_line_bytes: int = MAX_LINE_BYTES


class NewTask(WireMessage):
    """Host: do this task in that folder; `continue_from` is the id of an earlier run to go on from, for example after a limit."""

    type: Literal["new_task"] = "new_task"
    id: TaskId
    prompt: Annotated[str, Field(min_length=1, max_length=MAX_PROMPT)]
    workspace: str
    model: str | None = None
    limits: WireLimits | None = None
    continue_from: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{5,80}$")] | None = None


class Cancel(WireMessage):
    """Host: stop this task; it still ends with one completion."""

    type: Literal["cancel"] = "cancel"
    id: Id


class WireToolResult(WireMessage):
    """Host: the one answer to a tool.request, context.read or context.search with the same id.

    An error may be a plain text or lack its code, and an output may be a bare text or list: every host is understood at once.
    """

    type: Literal["tool.result"] = "tool.result"
    id: Id
    ok: bool
    output: dict[str, Any] | None = None
    error: WireProblem | None = None

    @field_validator("output", mode="before")
    @classmethod
    def _named(cls, given: Any) -> Any:
        return cast("Any", given) if given is None or isinstance(given, dict) else {BARE: given}

    @field_validator("error", mode="before")
    @classmethod
    def _in_words(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return None if given is None else {"code": TOOL_FAILED, "message": str(given)}
        fields = cast("Mapping[str, Any]", given)
        message = fields.get("message") or fields.get("code") or json.dumps(dict(fields))
        return {"code": str(fields.get("code") or TOOL_FAILED), "message": str(message)}


class ContextRead(WireMessage):
    """Runtime: asks for lines of a file; answered by tool.result {content, startLine, endLine, totalLines}."""

    type: Literal["context.read"] = "context.read"
    id: Id
    path: str
    start_line: int | None = None
    end_line: int | None = None
    rationale: str | None = None


class ContextSearch(WireMessage):
    """Runtime: asks for lines that contain a text; answered by tool.result {matches[{path, line, text}], truncated?}."""

    type: Literal["context.search"] = "context.search"
    id: Id
    query: str
    path: str | None = None


class SubcallStart(WireMessage):
    """Runtime: a sub-call begins; `parentId` is the sub-call or task above it."""

    type: Literal["subcall.start"] = "subcall.start"
    id: Id
    intent: Text
    scope: Text = ""


class SubcallEnd(WireMessage):
    """Runtime: a sub-call has ended."""

    type: Literal["subcall.end"] = "subcall.end"
    id: Id
    summary: Text
    citations: tuple[WireCitation, ...] = ()
    usage: WireUsage | None = None


class ToolRequest(WireMessage):
    """Runtime: asks the host to run a tool. `approval` means that the user must be asked first."""

    type: Literal["tool.request"] = "tool.request"
    id: Id
    name: str
    params: dict[str, Any] = Field(default_factory=dict[str, Any])
    approval: bool | None = None


class AssistantMessage(WireMessage):
    """Runtime: something the model says; the parts of one message share its id and have `partial` set."""

    type: Literal["assistant.message"] = "assistant.message"
    id: Id
    content: Text
    partial: bool | None = None


class WireProgress(WireMessage):
    """Runtime: where a task stands; a busy host may drop it."""

    type: Literal["progress"] = "progress"
    id: Id
    note: str = ""
    usage: WireUsage = WireUsage()
    limits: WireLimits | None = None


class Completion(WireMessage):
    """Runtime: the end of a task, sent once. `succeeded` has at least one citation; `limit` names the limit that was reached, if any."""

    type: Literal["completion"] = "completion"
    id: Id
    status: Literal["succeeded", "partial", "failed", "terminated_budget", "cancelled"]
    summary: Text
    citations: tuple[WireCitation, ...] = ()
    usage: WireUsage | None = None
    limit: str | None = None
    run_dir: str | None = None


class ErrorMessage(WireMessage):
    """Runtime: something went wrong. `id` is that of the task or the line it is about, null if it had none; `recoverable`: carry on."""

    type: Literal["error"] = "error"
    id: str | None = None
    error: Text
    recoverable: bool
    code: str | None = None


HostMessage = Annotated[NewTask | Cancel | WireToolResult, Field(discriminator="type")]
RuntimeMessage = Annotated[
    Hello
    | ContextRead
    | ContextSearch
    | SubcallStart
    | SubcallEnd
    | ToolRequest
    | AssistantMessage
    | WireProgress
    | Completion
    | ErrorMessage,
    Field(discriminator="type"),
]
TaskEvent = (
    ContextRead
    | ContextSearch
    | SubcallStart
    | SubcallEnd
    | ToolRequest
    | AssistantMessage
    | WireProgress
    | ErrorMessage
)

HOST: TypeAdapter[NewTask | Cancel | WireToolResult] = TypeAdapter(HostMessage)
RUNTIME: TypeAdapter[TaskEvent | Hello | Completion] = TypeAdapter(RuntimeMessage)


def encode(message: WireMessage) -> bytes:
    """The message as one line; unset fields are left out, except the null `id` of an error."""
    fields = message.model_dump(by_alias=True, exclude_none=True)
    if isinstance(message, ErrorMessage):
        fields["id"] = message.id
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"
