"""What all sessions of one run share, as one value: models, tools, evidence, budget, the stream out and the recording in."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from sonde.contexts.base import Context
from sonde.core.budget import Budget
from sonde.core.calls import CallRef, shown_text
from sonde.core.cancellation import Stop
from sonde.core.deadline import Clock
from sonde.core.events import Event, Noted, WroteBack
from sonde.core.evidence import EvidenceLog, Excerpt
from sonde.errors import (
    BudgetExceeded,
    ErrorCode,
    RecursionLimitReached,
    RunError,
    ToolCallFailed,
    ToolResponseInvalid,
    WallTimeLimitReached,
)
from sonde.models.base import Model
from sonde.runs.recorder import Recorder
from sonde.runs.recording import EarlierRuns, Recording
from sonde.runtime.engine import Engine, Prover
from sonde.sandbox import Limits
from sonde.tools.registry import ToolRegistry

Mode = Literal["code", "actions", "guided"]
ModeChoice = Mode | Literal["auto"]
E = TypeVar("E", bound=Event)


class Cancelled(BudgetExceeded):
    """The user has stopped the run: it ends like one that ran out of time, with the best it has."""

    retryable = True


def by_user() -> Cancelled:
    """The user's own stop."""
    return Cancelled("cancelled by the user", limit="cancelled")


def reached_before(row: Mapping[str, Any] | None) -> RunError | None:
    """What ended a recorded session from outside its code, as an error again; None for what comes of its replies alone."""
    message = str((row or {}).get("message"))
    if message == by_user().message:
        return by_user()
    match (row or {}).get("code"):
        case ErrorCode.RECURSION_LIMIT_REACHED:
            return RecursionLimitReached(message, limit=_knob(message))
        case ErrorCode.WALL_TIME_LIMIT_REACHED:
            return WallTimeLimitReached(message, limit="max_wall_time_sec")
        case ErrorCode.TOOL_RESPONSE_INVALID:
            return ToolResponseInvalid(message)
        case ErrorCode.TOOL_CALL_FAILED:
            return ToolCallFailed(message)
        case _:
            return None


def _knob(message: str) -> str:
    return next((word.rstrip(":") for word in message.split() if word.startswith("max_")), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One job for an engine."""

    engine: Engine
    objective: str
    context: Context
    budget: Budget
    schema: Mapping[str, Any] | None = None
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    variables: Mapping[str, Any] = field(default_factory=dict[str, Any])
    input_ref: Mapping[str, Any] = field(default_factory=dict[str, Any])
    dataset_ref: Mapping[str, Any] = field(default_factory=dict[str, Any])
    earlier: str = ""
    played: EarlierRuns = field(default_factory=EarlierRuns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """The shared parts of a run. `model` None means that no model is there and the engine's fallback answers."""

    task: Task
    model: Model | None
    sub_model: Model | None
    registry: ToolRegistry
    recorder: Recorder
    recording: Recording
    clock: Clock
    run_id: str
    log: EvidenceLog = field(default_factory=EvidenceLog)
    cancel: Stop = field(default_factory=Stop)
    over: threading.Event = field(default_factory=threading.Event)
    noted: set[str] = field(default_factory=set[str])
    mode: Mode = "code"
    profile: str = "analysis"
    backend: str = "kernel"
    limits: Limits = field(default_factory=Limits)
    unsafe: bool = False
    seed: int = 0
    max_parallel: int = 16
    history_tokens: int = 60_000
    on_text: Callable[[str, str], None] | None = None
    writeback: Callable[[Any, str, str], WroteBack | None] | None = None

    @property
    def layers(self) -> list[str]:
        """What the record says about the sandbox, where it is not the usual one."""
        interpreter = [] if self.backend == "kernel" else [f"backend: {self.backend}", "NO KERNEL LAYERS"]
        return [*(["unsafe"] if self.unsafe else []), *interpreter]

    @property
    def prover(self) -> Prover:
        """Proves pointers against this run's log, its record, and the context as it is now."""
        return Prover(self.log, self.reread, self.recorder.returned)

    def reread(self, excerpt: Excerpt) -> str | None:
        """The text behind an excerpt: from the run's record for what a user's tool returned, from the context for all else."""
        if CallRef.read(excerpt.ref) is None:
            return self.task.context.reread(excerpt)
        event = self.recorder.returned(excerpt.ref)
        return None if event is None else shown_text(event.result)

    def emit(self, event: E) -> E:
        """Put an event on the stream; use what comes back: it is what was recorded. Nobody speaks after the end."""
        if self.over.is_set():
            raise Cancelled("the run is over", limit="cancelled")
        return self.recorder.emit(event)

    def note(self, text: str) -> None:
        """Tell the reader of the run something, once."""
        if text not in self.noted:
            self.noted.add(text)
            self.emit(Noted(text=text, level="warning"))

    def check_cancel(self) -> None:
        """Raise when the user has stopped the run."""
        if self.cancel.is_set():
            raise by_user()
