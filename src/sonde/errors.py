"""Every error of Sonde, with the code, stage and retryability that the run record carries.

    SondeError
    ├── Fault                      goes back to the model; the run continues
    │   ├── CodeFault              the generated code failed: exception, gate refusal, timeout, memory
    │   ├── ToolFault              a tool refused its arguments or failed        TOOL_CALL_FAILED
    │   └── FormatFault            the reply had no usable form                  MODEL_OUTPUT_INVALID
    ├── RunError                   ends the run
    │   ├── SandboxViolation       SANDBOX_VIOLATION
    │   ├── SandboxLost            UNEXPECTED_RUNTIME_ERROR
    │   ├── ToolCallFailed         TOOL_CALL_FAILED
    │   ├── ToolResponseInvalid    TOOL_RESPONSE_INVALID
    │   ├── BudgetExceeded
    │   │   ├── RecursionLimitReached   RECURSION_LIMIT_REACHED  (every budget but time)
    │   │   ├── WallTimeLimitReached    WALL_TIME_LIMIT_REACHED
    │   │   └── Cancelled               the user has stopped the run
    │   ├── SchemaValidationFailed      SCHEMA_VALIDATION_FAILED
    │   ├── EvidenceValidationFailed    EVIDENCE_VALIDATION_FAILED
    │   ├── ModelOutputInvalid          MODEL_OUTPUT_INVALID
    │   │   └── ModelCallFailed         the same, or MODEL_UNREACHABLE, MODEL_UNAUTHORIZED, MODEL_NOT_FOUND, MODEL_RATE_LIMITED
    │   ├── WritebackFailed             WRITEBACK_FAILED
    │   └── UnexpectedRuntimeError      UNEXPECTED_RUNTIME_ERROR
    └── UsageError                 the caller's mistake, found before a model or code ran (exit code 2)
        ├── ConfigError            a setting, flag, file or model name is wrong
        └── SandboxUnavailable     this machine lacks a kernel layer; names it

Only the codes of the contract exist: ten, and four for a model that gives no reply. A message says what happened and what to do about it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

MESSAGE_CHARS = 4_000


class ErrorCode(StrEnum):
    """The closed list of codes that a run record may carry."""

    SANDBOX_VIOLATION = "SANDBOX_VIOLATION"
    TOOL_CALL_FAILED = "TOOL_CALL_FAILED"
    TOOL_RESPONSE_INVALID = "TOOL_RESPONSE_INVALID"
    RECURSION_LIMIT_REACHED = "RECURSION_LIMIT_REACHED"
    WALL_TIME_LIMIT_REACHED = "WALL_TIME_LIMIT_REACHED"
    SCHEMA_VALIDATION_FAILED = "SCHEMA_VALIDATION_FAILED"
    EVIDENCE_VALIDATION_FAILED = "EVIDENCE_VALIDATION_FAILED"
    MODEL_OUTPUT_INVALID = "MODEL_OUTPUT_INVALID"
    MODEL_UNREACHABLE = "MODEL_UNREACHABLE"
    MODEL_UNAUTHORIZED = "MODEL_UNAUTHORIZED"
    MODEL_NOT_FOUND = "MODEL_NOT_FOUND"
    MODEL_RATE_LIMITED = "MODEL_RATE_LIMITED"
    WRITEBACK_FAILED = "WRITEBACK_FAILED"
    UNEXPECTED_RUNTIME_ERROR = "UNEXPECTED_RUNTIME_ERROR"


WORTH_REPEATING = frozenset(
    {ErrorCode.RECURSION_LIMIT_REACHED, ErrorCode.WALL_TIME_LIMIT_REACHED, ErrorCode.WRITEBACK_FAILED}
)


class SondeError(Exception):
    """The root of everything Sonde raises on purpose."""

    code: ErrorCode = ErrorCode.UNEXPECTED_RUNTIME_ERROR
    stage: str = "run_engine"
    retryable: bool = False

    def __init__(self, message: str, *, stage: str | None = None, retryable: bool | None = None) -> None:
        super().__init__(message)
        self.message = message
        if stage is not None:
            self.stage = stage
        if retryable is not None:
            self.retryable = retryable

    def row(self) -> dict[str, str | bool]:
        """The error as a record carries it. By the contract, a run is retryable only after a budget or write-back error."""
        again = self.retryable and self.code in WORTH_REPEATING
        return {"code": self.code.value, "message": self.message, "stage": self.stage, "retryable": again}


class Fault(SondeError):
    """Something the model can fix: it sees the line and an example, and the run continues."""


class CodeFault(Fault):
    """The generated code failed or was refused."""

    code = ErrorCode.UNEXPECTED_RUNTIME_ERROR
    stage = "runtime_sandbox"


class ToolFault(Fault):
    """A tool refused its arguments, is unknown, or failed."""

    code = ErrorCode.TOOL_CALL_FAILED
    stage = "run_engine"


class FormatFault(Fault):
    """The reply could not be read as code or as an action."""

    code = ErrorCode.MODEL_OUTPUT_INVALID
    stage = "runtime_model"


class RunError(SondeError):
    """Ends the run; its code, stage and retryability go into the record."""


class SandboxViolation(RunError):
    """The code crossed the boundary, forged a frame, or proposed a forbidden action."""

    code = ErrorCode.SANDBOX_VIOLATION
    stage = "runtime_sandbox"


class SandboxLost(RunError):
    """The worker's state is gone and the session cannot continue."""

    code = ErrorCode.UNEXPECTED_RUNTIME_ERROR
    stage = "runtime_sandbox"


class ToolCallFailed(RunError):
    """A tool failed in a way that no other call can fix."""

    code = ErrorCode.TOOL_CALL_FAILED


class ToolResponseInvalid(RunError):
    """A tool returned something that is not data."""

    code = ErrorCode.TOOL_RESPONSE_INVALID


class BudgetExceeded(RunError):
    """A limit was reached. `limit` is the name of the setting, `needed` what it would have to be for the refused call, if that is known.
    Retryable, because a larger budget may be enough.
    """

    code = ErrorCode.RECURSION_LIMIT_REACHED
    stage = "runtime_budget"
    retryable = True

    def __init__(self, message: str, *, limit: str, needed: float = 0.0) -> None:
        super().__init__(message)
        self.limit = limit
        self.needed = needed


class RecursionLimitReached(BudgetExceeded):
    """Iterations, depth, tool calls, sub-calls, tokens or cost are used up."""


class WallTimeLimitReached(BudgetExceeded):
    """Time is up."""

    code = ErrorCode.WALL_TIME_LIMIT_REACHED


class Cancelled(BudgetExceeded):
    """The user stopped the run; it ends like one that ran out of time, with the best it has."""


BY_USER = "cancelled by the user"


def by_user() -> Cancelled:
    """The user's own stop."""
    return Cancelled(BY_USER, limit="cancelled")


class SchemaValidationFailed(RunError):
    """The final output does not fit its schema, also after repair."""

    code = ErrorCode.SCHEMA_VALIDATION_FAILED
    stage = "runtime_validation"


class EvidenceValidationFailed(RunError):
    """A citation does not point at something this run has seen, or its text has changed."""

    code = ErrorCode.EVIDENCE_VALIDATION_FAILED
    stage = "runtime_validation"


class ModelOutputInvalid(RunError):
    """The model's replies could not be used, also after a nudge."""

    code = ErrorCode.MODEL_OUTPUT_INVALID
    stage = "runtime_model"


class ModelCallFailed(ModelOutputInvalid):
    """A model gave no reply; `code` says why. `retry_after` is how many seconds the server asks to wait, `tokens_in` what the attempt may
    have cost, `received` how many of these are of a reply that broke off,
    `waited_s` the part of its time that does not count as the run's, `returncode` how a program ended,
    `too_long` that the prompt is longer than the model reads, `attempts` how often it was asked in all.
    """

    def __init__(
        self,
        message: str,
        *,
        code: ErrorCode = ErrorCode.MODEL_OUTPUT_INVALID,
        retryable: bool = False,
        retry_after: float | None = None,
        tokens_in: int = 0,
        received: int = 0,
        waited_s: float = 0.0,
        returncode: int | None = None,
        too_long: bool = False,
        attempts: int = 1,
    ) -> None:
        super().__init__(message, retryable=retryable)
        self.code = code
        self.attempts = attempts
        self.returncode = returncode
        self.retry_after = retry_after
        self.tokens_in = tokens_in
        self.received = received
        self.waited_s = waited_s
        self.too_long = too_long


class WritebackFailed(RunError):
    """Annotations could not be written; the report stands and `sonde publish RUN` tries again."""

    code = ErrorCode.WRITEBACK_FAILED
    stage = "rca_writeback"
    retryable = True


class UnexpectedRuntimeError(RunError):
    """A bug in Sonde."""


def reached_before(row: Mapping[str, Any] | None) -> RunError | None:
    """The error that ended a recorded session from outside its code; None when its own replies ended it."""
    message = str((row or {}).get("message"))
    if message == BY_USER:
        return by_user()
    match (row or {}).get("code"):
        case ErrorCode.RECURSION_LIMIT_REACHED:
            knob = next((word.rstrip(":") for word in message.split() if word.startswith("max_")), "")
            return RecursionLimitReached(message, limit=knob)
        case ErrorCode.WALL_TIME_LIMIT_REACHED:
            return WallTimeLimitReached(message, limit="max_wall_time_sec")
        case ErrorCode.TOOL_RESPONSE_INVALID:
            return ToolResponseInvalid(message)
        case ErrorCode.TOOL_CALL_FAILED:
            return ToolCallFailed(message)
        case _:
            return None


class UsageError(SondeError):
    """The caller's mistake, found before a model or code ran. Exit code 2. An investigation that had asked its source by then (no such
    trace or project, a key that it refuses) leaves a failed run record.
    """

    def __init__(self, message: str, *, stage: str | None = None, retryable: bool | None = None) -> None:
        if len(message) > MESSAGE_CHARS:  # it repeats what somebody wrote: a path, a name
            half = MESSAGE_CHARS // 2
            message = f"{message[:half]} …[{len(message):,} characters]… {message[-half:]}"
        super().__init__(message, stage=stage, retryable=retryable)


class ConfigError(UsageError):
    """A setting, flag, file or model name is wrong; the message says which and what is allowed."""


class NotInSource(ConfigError):
    """The source of traces was read, and has no such trace or project, or none in the window."""

    code = ErrorCode.EVIDENCE_VALIDATION_FAILED


class SandboxUnavailable(UsageError):
    """This machine lacks a kernel layer that the sandbox needs; the message names it and the remedy."""

    stage = "runtime_sandbox"


def how_to_install(extra: str) -> str:
    """The command that adds an extra to this installation. Sonde is not on PyPI, so a checkout names itself."""
    checkout = Path(__file__).parents[2]
    if not (checkout / "pyproject.toml").is_file():
        return f"pip install 'sonde-rlm[{extra}]'"
    python = Path(sys.executable)
    uv = python.with_name("uv")  # `make venv` makes one without pip
    install = f"{uv} pip install --python {python}" if uv.is_file() else f"{python} -m pip install"
    return f"{install} -e '{checkout}[{extra}]'"
