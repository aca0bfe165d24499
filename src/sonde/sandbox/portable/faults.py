"""From what Monty raises to the `ExecFault` that the author of the code reads."""

from __future__ import annotations

import re
from typing import Any

from sonde.sandbox.base import ExecFault, FaultKind
from sonde.sandbox.worker.report import MESSAGE_CHARS

UNSUPPORTED = "monty syntax parser does not yet support"
ELSEWHERE = "Write it without that, or run where the kernel backend works (--backend kernel)."
_FEED = re.compile(r"<python-input-\d+>")
_KINDS: dict[str, FaultKind] = {"MemoryError": "memory", "ImportError": "import", "ModuleNotFoundError": "import"}
SUSPENDS = "cannot suspend in this synchronous context"
_HINTS = {
    "SystemExit": "To finish with an answer call FINAL(value); to end the block just let it end.",
    "MemoryError": "Work on slices of the shared text instead of whole copies.",
}


def fault_of(monty: Any, error: Any) -> ExecFault:
    """The fault behind an error that the code can be told about."""
    if isinstance(error, monty.MontyCrashedError | monty.MontyDisconnectError):
        return ExecFault(kind="crash", message=f"the interpreter's process ended: {str(error)[:MESSAGE_CHARS]}")
    inner = type(error.exception()).__name__
    message = str(error)[:MESSAGE_CHARS]
    line = _line(error)
    if isinstance(error, monty.MontySyntaxError):
        return ExecFault(kind="syntax", message=f"SyntaxError: {message}", line=line)
    if UNSUPPORTED in message:
        lacks = message.partition(UNSUPPORTED)[2].strip()
        return ExecFault(kind="gate", message=f"the monty backend does not support {lacks}", line=line, hint=ELSEWHERE)
    if inner == "TimeoutError" and "time limit" in message:
        return ExecFault(kind="timeout", message=message, line=line)
    kind: FaultKind = _KINDS.get(inner, "error")
    hint = _hint(inner, message)
    return ExecFault(kind=kind, message=message, line=line, hint=hint, traceback=_traceback(error))


def _hint(inner: str, message: str) -> str | None:
    if SUSPENDS in message:
        return "Call it yourself, not through map, filter or sorted: [tool(row) for row in rows]"
    gap = inner == "NotImplementedError" or "not yet supported" in message or "monty backend" in message
    return ELSEWHERE if gap else _HINTS.get(inner)


def _line(error: Any) -> int | None:
    """The innermost line in the code of this turn, which is where the outermost frame is."""
    frames: list[Any] = error.traceback() if hasattr(error, "traceback") else []
    ours = [frame.line for frame in frames if frame.filename == frames[0].filename]
    return int(ours[-1]) if ours else None


def _traceback(error: Any) -> str:
    return _FEED.sub("<code>", str(error.display()))[-2 * MESSAGE_CHARS :]
