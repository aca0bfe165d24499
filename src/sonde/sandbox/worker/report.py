"""What a turn tells about itself: the fault with generated frames only, and the variables that changed."""

from __future__ import annotations

import linecache
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection
from types import FunctionType, ModuleType
from typing import Any

MESSAGE_CHARS = 4000
SHOWN_FRAMES = 24
SHOWN_VARIABLES = 200
TOLD_NAMES = 10_000
VIOLATION_EXIT = 98
"""How a worker ends whose code reached for a file where that is fatal."""
type_of: Callable[[Any], type[Any]] = type
SIZED = (str, bytes, bytearray, list, tuple, dict, set, frozenset, range, Counter, defaultdict, deque)


def describe(error: BaseException, filename: str, compiled: bool, modules: Collection[str]) -> dict[str, Any]:
    """The fault as the supervisor and, in the end, the model reads it. `modules` are those that code may import."""
    frames: list[tuple[str, int, str]] = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename.startswith("<turn "):  # generated code, not ours
            frames.append((code.co_filename, trace.tb_lineno, code.co_name))
        trace = trace.tb_next
    line = next((at for file, at, _ in reversed(frames) if file == filename), None)
    match error:
        case MemoryError():
            kind = "memory"
        case SyntaxError() if not compiled:
            kind, line = "syntax", error.lineno
        case ImportError():
            kind = "import"
        case _:
            kind = "error" if compiled else "syntax"
    message = _headline(error)[:MESSAGE_CHARS]
    return {
        "kind": kind,
        "message": message,
        "line": line,
        "hint": _hint(error, modules),
        "traceback": _format(error, frames, message)[-2 * MESSAGE_CHARS :],
    }


def _headline(error: BaseException) -> str:
    name = type(error).__name__
    try:
        text = error.msg if isinstance(error, SyntaxError) else str(error)
    except Exception as broken:
        text = f"<its message raised {type(broken).__name__}>"
    return f"{name}: {text}"[: 2 * MESSAGE_CHARS] if text else name


def _hint(error: BaseException, modules: Collection[str]) -> str | None:
    if isinstance(error, SystemExit):
        return "To finish with an answer call FINAL(value); to end the block just let it end."
    if isinstance(error, MemoryError):
        return (
            "Work on slices of the shared text instead of whole copies; `x = None` lets go of what is no longer needed."
        )
    if isinstance(error, TypeError) and "SharedText" in _headline(error):
        return "A shared text is not a plain str: give str(text) for all of it, or a slice, text[a:b]."
    if isinstance(error, NameError) and error.name in modules:
        return f"Nothing is imported beforehand: write `import {error.name}` first."
    return None


def _format(error: BaseException, frames: list[tuple[str, int, str]], message: str) -> str:
    lines = ["Traceback (most recent call last):"]
    for position, (file, line, name) in enumerate(frames):
        if SHOWN_FRAMES // 2 <= position < len(frames) - SHOWN_FRAMES // 2:
            if position == SHOWN_FRAMES // 2:
                lines.append(f"  ... {len(frames) - SHOWN_FRAMES} more frames ...")
            continue
        lines.append(f"  {file[1:-1]}, line {line}, in {name}")
        lines.append(f"    {linecache.getline(file, line).strip()[:200]}")
    if isinstance(error, SyntaxError) and error.lineno and error.text:
        lines.append(f"  line {error.lineno}\n    {error.text.strip()[:200]}")
    lines.append(message)
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None:
        lines.append(f"(after {_headline(cause)[:500]})")
    return "\n".join(lines)


class Variables:
    """The names generated code has bound, to tell after a turn which are new or changed.

    A value changed in place without changing its length is not noticed.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int]] = {}
        self._named: set[str] = set()

    def changed(self, namespace: dict[str, Any], hidden: frozenset[str]) -> list[tuple[str, str, int]]:
        """(name, type, size) of what is new or different since the last call; size is len() or -1."""
        now: dict[str, tuple[int, int]] = {}
        rows: list[tuple[str, str, int]] = []
        for name, value in namespace.items():
            if name.startswith("_") or name in hidden or issubclass(type(value), ModuleType):
                continue
            now[name] = mark = (id(value), sized(value))
            if self._seen.get(name) != mark:
                # The name of its type, without asking a class or a metaclass of the code.
                kind = type.__dict__["__name__"].__get__(type(value))[:100]
                rows.append((name[:200], "function" if type(value) is FunctionType else kind, mark[1]))
        self._seen = now
        return rows[:SHOWN_VARIABLES]

    def new_names(self, namespace: dict[str, Any]) -> list[str]:
        """Every name that was not there before, shown as a variable or not: the gate must know what later code may call."""
        new = [name for name in namespace if type(name) is str and name not in self._named and len(name) <= 100]
        self._named.update(new[:TOLD_NAMES])
        return new[:TOLD_NAMES]


def sized(value: Any) -> int:
    """Only types whose len() is ours to trust: a class of the code could loop in it."""
    kind = type_of(value)
    if not any(kind is each for each in SIZED):
        return -1
    try:
        return len(value)
    except OverflowError:  # range(10**30)
        return -1
