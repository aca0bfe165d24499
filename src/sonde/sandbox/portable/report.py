"""What a turn in Monty tells: what it printed, the fault that ended it, and the variables it left."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

from sonde.sandbox.base import ExecFault, FaultKind, OutOfTime, OverQuota, Variable
from sonde.sandbox.output import Captured
from sonde.sandbox.policy import FINISH_NAMES
from sonde.sandbox.portable.dialogue import Dialogue, Rules, Stuck
from sonde.sandbox.portable.guard import Guard
from sonde.sandbox.worker.report import MESSAGE_CHARS, SHOWN_VARIABLES

UNSUPPORTED = "monty syntax parser does not yet support"
ELSEWHERE = "Write it without that, or run where the kernel backend works (--backend kernel)."
SUSPENDS = "cannot suspend in this synchronous context"
_FEED = re.compile(r"<python-input-\d+>")
_KINDS: dict[str, FaultKind] = {"MemoryError": "memory", "ImportError": "import", "ModuleNotFoundError": "import"}
_HINTS = {
    "SystemExit": "To finish with an answer call FINAL(value); to end the block just let it end.",
    "MemoryError": "Work on slices of the shared text instead of whole copies.",
}

Marks = dict[str, tuple[int, int]]
"""{name: (identity, length)} of the variables that were there."""

ASK = (
    "[(k, type(v).__name__, id(v), len(v) if isinstance(v, (str, bytes, list, tuple, dict, set, frozenset, range)) else -1)"
    " for k, v in locals().items()]"
)
HIDDEN = FINISH_NAMES | {"ToolError"}
NAME_CHARS = 200


class Printed:
    """What a turn prints: head, tail and the true length of each stream, in bounded memory."""

    def __init__(self, keep: int, *, counts: bool) -> None:
        self._keep = keep
        self.streams = {name: Captured("", "", 0, lines=0 if counts else -1) for name in ("stdout", "stderr")}

    def add(self, stream: str, text: str) -> None:
        """The next piece of one of them."""
        known = self.streams[stream]
        room = max(0, self._keep - len(known.head))
        tail = (known.tail + text[room:])[-self._keep :]
        total, lines = known.total + len(text), known.lines + (text.count("\n") if known.lines >= 0 else 0)
        self.streams[stream] = Captured(known.head + text[:room], tail, total, lines=lines)


def fault_of(monty: Any, error: Any) -> ExecFault:
    """The `ExecFault` that the author of the code reads, from an error of Monty."""
    message = str(error)[:MESSAGE_CHARS]
    if isinstance(error, monty.MontyCrashedError | monty.MontyDisconnectError):
        return ExecFault(kind="crash", message=f"the interpreter's process ended: {message}")
    inner = type(error.exception()).__name__
    frames: list[Any] = error.traceback() if hasattr(error, "traceback") else []
    # The outermost frame is in this turn's code; the fault is at its innermost line there.
    ours = [frame.line for frame in frames if frame.filename == frames[0].filename]
    line = int(ours[-1]) if ours else None
    if isinstance(error, monty.MontySyntaxError):
        return ExecFault(kind="syntax", message=f"SyntaxError: {message}", line=line)
    if UNSUPPORTED in message:
        lacks = message.partition(UNSUPPORTED)[2].strip()
        return ExecFault(kind="gate", message=f"the monty backend does not support {lacks}", line=line, hint=ELSEWHERE)
    if inner == "TimeoutError" and "time limit" in message:
        return ExecFault(kind="timeout", message=message, line=line)
    if SUSPENDS in message:
        hint = "Call it yourself, not through map, filter or sorted: [tool(row) for row in rows]"
    elif inner == "NotImplementedError" or "not yet supported" in message or "monty backend" in message:
        hint = ELSEWHERE
    else:
        hint = _HINTS.get(inner)
    traceback = _FEED.sub("<code>", str(error.display()))[-2 * MESSAGE_CHARS :]
    return ExecFault(kind=_KINDS.get(inner, "error"), message=message, line=line, hint=hint, traceback=traceback)


def survey(rules: Rules, guard: Guard, session: Any, before: Marks) -> tuple[Marks, tuple[Variable, ...]]:
    """The marks of all variables now, and the variables that changed since `before`.

    The interpreter itself is asked, so hostile code can lie here about its own variables; it can do nothing else with it.
    """
    silent = Dialogue(replace(rules, host=None, functions=None, sharing=()), guard, None, ())
    try:
        answer = silent.ask(session, ASK)
    except (rules.monty.MontyError, OutOfTime, OverQuota, Stuck):
        return before, ()  # the code has taken away the builtins that this needs
    hidden = HIDDEN | (rules.functions or frozenset())
    marks: Marks = {}
    changed: list[Variable] = []
    for row in cast("Iterable[Any]", answer) if isinstance(answer, list) else ():
        match row:
            case (str(name), str(kind), int(mark), int(size)) if isinstance(row, tuple):
                if name.startswith("_") or name in hidden or kind == "module":
                    continue
                marks[name] = (mark, size)
                if before.get(name) != (mark, size):
                    changed.append(Variable(name[:NAME_CHARS], kind[:NAME_CHARS], size if size >= 0 else None))
            case _:
                continue
    return marks, tuple(changed[:SHOWN_VARIABLES])
