"""result.json and summary.md: exactly the fields that loops already read, and the failure classes with their exit codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from sonde.core.canonical import jsonable
from sonde.core.evidence import Citation
from sonde.core.markdown_safety import line
from sonde.errors import (
    BudgetExceeded,
    Cancelled,
    ModelOutputInvalid,
    SandboxUnavailable,
    SandboxViolation,
    SondeError,
    UsageError,
)
from sonde.rlms.files import Survey
from sonde.rlms.request import MissingRootCommand, Request

FALLBACK_SIGNAL = "file_reference"
SUMMARY_CITATIONS = 20
EXIT_CODES = {
    "missing_root_command": 2,
    "invalid_config": 2,
    "limit_exceeded": 2,
    "sandbox_violation": 1,
    "model_invocation_failed": 1,
    "worker_failure": 1,
    "missing_python": 1,
    "invalid_worker_output": 1,
}


def failure_class(error: SondeError) -> str:
    """The loop's word for one of our errors."""
    match error:
        case MissingRootCommand():
            return "missing_root_command"
        case SandboxUnavailable() | Cancelled():
            return "worker_failure"
        case UsageError():
            return "invalid_config"
        case SandboxViolation():
            return "sandbox_violation"
        case BudgetExceeded():
            return "limit_exceeded"
        case ModelOutputInvalid():
            return "model_invocation_failed"
        case _:
            return "worker_failure"


def exit_code(result: Mapping[str, Any]) -> int:
    """0 for a result that is ok; otherwise by its class."""
    return 0 if result.get("ok") is True else EXIT_CODES.get(str(result.get("error_code")), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """What an invocation took: counts and the last calls. The elapsed time is filled in at its end."""

    steps: int = 0
    subcalls: int = 0
    trace: Sequence[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])

    def stats(self) -> dict[str, Any]:
        """As result.json shows them."""
        return {
            "step_count": self.steps,
            "subcall_count": self.subcalls,
            "elapsed_seconds": 0.0,
        }


def now() -> str:
    """The time as every file shows it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def success(
    request: Request, survey: Survey, output: Mapping[str, Any], citations: Sequence[Citation], effort: Effort
) -> dict[str, Any]:
    """result.json of a run that has set its final value. A citation has the loop's fields and no others."""
    return {
        "ok": True,
        **_head(request),
        "stats": {**survey.metrics(), **effort.stats()},
        "signals": dict(survey.signals),
        "highlights": list(output["highlights"]),
        "citations": [
            {
                "path": citation.path,
                "start_line": citation.start_line,
                "end_line": citation.end_line,
                "signal": citation.signal[:48],
                "snippet": citation.snippet[:220],
            }
            for citation in citations
        ],
        "files": [asdict(row) for row in survey.rows],
        "trace": list(effort.trace),
        "final": jsonable(output["value"]),
        "metadata": dict(request.metadata),
    }


def _head(request: Request) -> dict[str, Any]:
    return {
        "generated_at": now(),
        "loop_id": request.loop_id,
        "role": request.role,
        "iteration": request.iteration,
        "format": request.format,
        "limits": asdict(request.limits),
    }


def failure(request: Request | None, error_code: str, error: str, effort: Effort | None = None) -> dict[str, Any]:
    """result.json of a run that has not; without a request the flags themselves were refused."""
    effort = effort or Effort()
    return {
        "ok": False,
        **(_head(request) if request else {"generated_at": now()}),
        "error": error,
        "error_code": error_code,
        "stats": effort.stats(),
        "trace": list(effort.trace),
        "metadata": dict(request.metadata) if request else {},
    }


def is_result(value: Any) -> bool:
    """Whether something a worker printed has the shape of a result."""
    match value:
        case {"ok": True, "stats": dict(), "citations": list(), "highlights": list()}:
            return True
        case {"ok": False, "stats": dict(), "error_code": str(), "error": str()}:
            return True
        case _:
            return False


def summary(result: Mapping[str, Any]) -> str:
    """summary.md."""
    cited = [
        f"- {line(row['path'])}:{row['start_line']} [{line(row['signal'])}]: {line(row['snippet'])}"
        for row in list(result.get("citations", ()))[:SUMMARY_CITATIONS]
    ]
    lines = [
        "# RLMS summary",
        "",
        f"- generated: {result.get('generated_at')}",
        f"- loop: {line(str(result.get('loop_id', '')))}",
        f"- role: {line(str(result.get('role', '')))}",
        f"- iteration: {result.get('iteration', '')}",
        f"- ok: {str(result.get('ok')).lower()}",
        "",
        "## Highlights",
        "",
        *([f"- {line(text)}" for text in result.get("highlights", ())] or ["- none"]),
        "",
        "## Citations",
        "",
        *(cited or ["- none"]),
    ]
    if not result.get("ok"):
        lines += ["", "## Error", "", f"{result.get('error_code')}: {line(str(result.get('error')))}"]
    return "\n".join(lines) + "\n"
