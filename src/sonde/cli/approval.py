"""Asks a person at a terminal about a change: shows the diff, takes yes, no with a reason, or all."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TextIO

from sonde.cli.text import printable, printable_lines
from sonde.contexts.workspace import Approval, Plan, accept, reject, visible

INTERRUPTIBLE = True  # Ctrl-C may raise KeyboardInterrupt while code of this module waits (cli/interrupt.py)

COLORS = {"+": "\x1b[32m", "-": "\x1b[31m", "@": "\x1b[36m"}
QUESTION = "Apply this change? [y]es, [n]o, [a]ll for this task: "


def approval(*, yes: bool, stdin: TextIO | None = None, stderr: TextIO | None = None) -> Callable[[Plan], Approval]:
    """Who approves: everything is accepted with --yes and rejected where nobody can answer; otherwise the person is asked."""
    if yes:
        return accept
    asked, shown = stdin or sys.stdin, stderr or sys.stderr
    return AtTerminal(asked.readline, shown, color=shown.isatty()) if asked.isatty() else reject


class AtTerminal:
    """Shows each plan and waits for an answer; remembers an `all`."""

    def __init__(self, readline: Callable[[], str], out: TextIO, *, color: bool = False) -> None:
        self._readline = readline
        self._out = out
        self._color = color
        self._all = False

    def __call__(self, plan: Plan) -> Approval:
        """What the person decides; the end of input is a no."""
        shown: list[str] = []
        for line in printable_lines(visible(plan.diff())).removesuffix("\n").split("\n"):
            color = COLORS.get(line[:1], "") if self._color and not line.startswith(("+++", "---")) else ""
            shown.append(f"{color}{line}\x1b[0m" if color else line)
        diff = "\n".join(shown)
        self._say(f"\n{diff}\n{printable(visible(plan.summary()))}\n")
        if self._all:
            return Approval(accepted=True)
        answer = self._ask(QUESTION).lower()
        self._all = answer in ("a", "all")
        if self._all or answer in ("y", "yes"):
            return Approval(accepted=True)
        return Approval(accepted=False, reason=self._ask("Why not? (goes back to the model) "))

    def _ask(self, question: str) -> str:
        self._say(question)
        return self._readline().strip()

    def _say(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
