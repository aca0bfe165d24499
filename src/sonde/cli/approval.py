"""Asks a person at a terminal about a change: shows the diff, takes yes, no with a reason, or all."""

from __future__ import annotations

import re
import select
import sys
from collections.abc import Callable
from typing import TextIO

from sonde.cli.text import printable_lines
from sonde.contexts.workspace import Approval, Plan, visible
from sonde.core.cancellation import WAIT_S

INTERRUPTIBLE = True  # Ctrl-C may raise KeyboardInterrupt while code of this module waits (cli/interrupt.py)

HEADING_LINES = 2
MARKS = {"+": "added", "-": "removed", " ": "unchanged"}
_LIKE_HEADING = re.compile(r" ?(?:---|\+\+\+)(?:\s+\S+\s*$|\s*(?:[ab]/|/dev/null))")
COLORS = {"+": "\x1b[32m", "-": "\x1b[31m", "@": "\x1b[36m"}
QUESTION = "Apply this change? [y]es, [n]o, [a]ll for this task: "
WHY = "Why not? (goes back to the model) "


def approval(
    *,
    yes: bool,
    silent: bool = False,
    question: str = QUESTION,
    why: str = WHY,
    stdin: TextIO | None = None,
    stderr: TextIO | None = None,
) -> Callable[[Plan], Approval]:
    """Who approves: everything is shown and accepted with --yes, and rejected where nobody can answer; otherwise the person is asked,
    and after a no `why`, unless that is empty.
    """
    asked, shown = stdin or sys.stdin, stderr or sys.stderr

    def accepted(plan: Plan) -> Approval:
        if not silent:
            shown.write(_shown(plan, color=shown.isatty()))
            shown.flush()
        return Approval(accepted=True)

    if yes:
        return accepted
    if not asked.isatty():
        return Unattended(shown, color=shown.isatty(), silent=silent)

    def readline() -> str:
        # Python does not hear a signal that arrives just before a read begins, so the waiting is done in short pieces.
        while not select.select([asked], [], [], WAIT_S)[0]:
            pass
        return asked.readline()

    return AtTerminal(readline, shown, color=shown.isatty(), question=question, why=why)


class Unattended:
    """Shows each plan, unless it is `silent`, and approves none: there is no terminal to ask at."""

    def __init__(self, out: TextIO, *, color: bool = False, silent: bool = False) -> None:
        self._out = out
        self._color = color
        self._silent = silent

    def __call__(self, plan: Plan) -> Approval:
        """A no that says why."""
        if not self._silent:
            self._out.write(_shown(plan, color=self._color))
            self._out.flush()
        return Approval(
            accepted=False,
            reason="there is no terminal to ask at; use --yes or run it in a terminal",
            asked=False,
        )


class AtTerminal:
    """Shows each plan and waits for an answer; remembers an `all`."""

    def __init__(
        self,
        readline: Callable[[], str],
        out: TextIO,
        *,
        color: bool = False,
        question: str = QUESTION,
        why: str = WHY,
    ) -> None:
        self._readline = readline
        self._out = out
        self._color = color
        self._question = question
        self._why = why
        self._all = False

    def __call__(self, plan: Plan) -> Approval:
        """What the person decides; the end of input is a no."""
        self._say(_shown(plan, color=self._color))
        if self._all:
            return Approval(accepted=True)
        answer = self._ask(self._question).lower()
        self._all = answer in ("a", "all")
        if self._all or answer in ("y", "yes"):
            return Approval(accepted=True)
        return Approval(accepted=False, reason=self._ask(self._why) if self._why else "you said no")

    def _ask(self, question: str) -> str:
        self._say(question)
        return self._readline().strip()

    def _say(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def _shown(plan: Plan, *, color: bool) -> str:
    """The diff and what it comes to. Only the first two lines of a file's diff are its heading; a line of the file that looks like one
    is marked.
    """
    lines: list[str] = []
    for change in plan.changes:
        diff = visible(change.diff).replace(
            "\r", "<U+000D>"
        )  # one before LF is there only where lines end in different ways
        for number, line in enumerate(printable_lines(diff).removesuffix("\n").split("\n")):
            paint = COLORS.get(line[:1], "") if color and number >= HEADING_LINES else ""
            marked = number >= HEADING_LINES and _LIKE_HEADING.match(line)
            text = f"({MARKS[line[0]]} line) {line}" if marked else line
            lines.append(f"{paint}{text}\x1b[0m" if paint else text)
    shown = "\n".join(lines)
    return f"\n{shown}\n{printable_lines(visible(plan.summary()))}\n"
