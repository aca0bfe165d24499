"""result.json and summary.md: exactly the fields that loops already read, and the failure classes with their exit codes."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, cast

from sonde.core.evidence import Citation
from sonde.core.markdown_safety import code, fence, line, quiet, quoted_headings
from sonde.engines.rlms import MAX_CITATIONS, highlights_of
from sonde.errors import (
    BudgetExceeded,
    Cancelled,
    ModelOutputInvalid,
    SandboxUnavailable,
    SandboxViolation,
    SondeError,
    UsageError,
)
from sonde.rlms.files import SNIPPET_CHARS, Survey
from sonde.rlms.request import MissingRootCommand, Request

FALLBACK_SIGNAL = "file_reference"
SUMMARY_CITATIONS = 20
FINAL_CHARS = 4000
TRACE_ROWS = 8
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


class LoopFindings:
    """What an invocation has so far. It grows by notes: the worker makes them from its events and prints each as a line, so the wrapper has
    the same even if it must end the worker.
    """

    def __init__(self, tell: Callable[[str, Any], None] | None = None) -> None:
        self._tell = tell
        self.steps = 0
        self.subcalls = 0
        self.runs = 0
        self.trace: deque[Any] = deque(maxlen=TRACE_ROWS)
        self.highlights: list[str] = []
        self.left_off = 0
        self.citations: list[Any] = []
        self.final: Any = None
        self.survey: Mapping[str, Any] = {}

    def add(self, what: str, value: Any) -> None:
        """Take one note, and tell it on."""
        if self._tell is not None:
            self._tell(what, value)
        match what:
            case "step":
                self.steps = value
            case "subcall":
                self.subcalls += 1
            case "run":
                self.runs += 1
                self.trace.append(value)
            case "highlight":
                self.highlights.append(value)
            case "left_off":
                self.left_off = value
            case "citation" if value not in self.citations and len(self.citations) < MAX_CITATIONS:
                self.citations.append(value)
            case "final":
                self.final = value
            case "survey":
                self.survey = value
            case _:
                return


def citation_row(citation: Citation) -> dict[str, Any]:
    """A citation with the loop's fields and no others. The proof has cut a long snippet without a mark, so the mark is set here."""
    snippet = citation.snippet
    return {
        "path": citation.path,
        "start_line": citation.start_line,
        "end_line": citation.end_line,
        "signal": citation.signal[:48],
        "snippet": snippet if len(snippet) < SNIPPET_CHARS else f"{snippet[: SNIPPET_CHARS - 1]}…",
    }


def survey_note(survey: Survey) -> dict[str, Any]:
    """What is known of the files, as results carry it."""
    files = [asdict(row) for row in survey.rows]
    return {"metrics": survey.metrics(), "signals": dict(survey.signals), "files": files}


def now() -> str:
    """The time as every file shows it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def success(request: Request, kept: LoopFindings) -> dict[str, Any]:
    """result.json of a run that has set its final value."""
    return {"ok": True, **_head(request), **_body(request, kept)}


def failure(request: Request | None, error_code: str, error: str, kept: LoopFindings | None = None) -> dict[str, Any]:
    """result.json of a run that has failed, with all that it had by then; without a request the flags themselves were refused."""
    head = _head(request) if request else {"generated_at": now()}
    return {"ok": False, **head, "error": error, "error_code": error_code, **_body(request, kept or LoopFindings())}


def _head(request: Request) -> dict[str, Any]:
    return {
        "generated_at": now(),
        "loop_id": request.loop_id,
        "role": request.role,
        "iteration": request.iteration,
        "format": request.format,
        "limits": asdict(request.limits),
    }


def _body(request: Request | None, kept: LoopFindings) -> dict[str, Any]:
    """What both kinds of result have. The elapsed time is filled in at the end."""
    counts = {"step_count": kept.steps, "subcall_count": kept.subcalls, "cli_run_count": kept.runs}
    return {
        "stats": {**kept.survey.get("metrics", {}), **counts, "elapsed_seconds": 0.0},
        "signals": kept.survey.get("signals", {}),
        "highlights": highlights_of(kept.highlights, kept.final, kept.left_off),
        "citations": list(kept.citations),
        "files": kept.survey.get("files", []),
        "trace": list(kept.trace),
        "final": kept.final,
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
    """summary.md. What is cut or left out is marked; result.json has it all."""
    rows = list(result.get("citations", ()))
    cited = [
        f"- {code(row['path'] + ':' + str(row['start_line']))} [{line(row['signal'])}]: {line(row['snippet'])}"
        for row in rows[:SUMMARY_CITATIONS]
    ]
    if len(rows) > SUMMARY_CITATIONS:
        cited.append(f"- … and {len(rows) - SUMMARY_CITATIONS} more in result.json")
    lines = [
        "# RLMS Analysis",
        "",
        f"- Generated: {result.get('generated_at')}",
        f"- Loop: {line(str(result.get('loop_id', '')))}",
        f"- Role: {line(str(result.get('role', '')))}",
        f"- Iteration: {result.get('iteration', '')}",
        f"- OK: {str(result.get('ok')).lower()}",
        "",
        "## Highlights",
        *([f"- {line(text)}" for text in result.get("highlights", ())] or ["- (none)"]),
        "",
        "## Citations",
        *(cited or ["- (none)"]),
    ]
    final = result.get("final")
    if isinstance(final, dict):  # these two are shown above
        final = {
            key: item for key, item in cast("dict[str, Any]", final).items() if key not in ("highlights", "citations")
        }
    if final not in (None, {}):
        text = final if isinstance(final, str) else json.dumps(final, ensure_ascii=False, indent=1)
        shown = (
            quoted_headings(quiet(text[:FINAL_CHARS])) if isinstance(final, str) else fence(text[:FINAL_CHARS], "json")
        )
        more = ["", "… cut here; result.json has all of it"] if len(text) > FINAL_CHARS else []
        lines += ["", "## Final", shown, *more]
    if not result.get("ok"):
        lines += ["", "## Error", f"- {result.get('error_code')}: {line(str(result.get('error')))}"]
    return "\n".join(lines) + "\n"
