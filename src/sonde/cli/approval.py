"""Asking a person at a terminal about a change: the diff, then yes, no with a reason, or all."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TextIO

from sonde.cli.text import printable
from sonde.contexts.workspace import Approval, Approve, Plan, accept, reject

INTERRUPTIBLE = True  # Ctrl-C may raise KeyboardInterrupt while code of this module waits (cli/interrupt.py)

COLORS = {"+": "\x1b[32m", "-": "\x1b[31m", "@": "\x1b[36m"}
QUESTION = "Apply this change? [y]es, [n]o, [a]ll of this task: "


def approval(*, yes: bool, stdin: TextIO | None = None, stderr: TextIO | None = None) -> Approve:
    """Who is asked: nobody with --yes, nobody where no person can answer (then nothing is written), else the person."""
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
        """The person's word; the end of input is a no."""
        self._say(f"\n{self._colored(plan.diff())}\n{printable(plan.summary())}\n")
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

    def _colored(self, diff: str) -> str:
        lines = printable(diff).splitlines()
        return "\n".join(self._line(line) for line in lines)

    def _line(self, line: str) -> str:
        color = COLORS.get(line[:1], "") if self._color and not line.startswith(("+++", "---")) else ""
        return f"{color}{line}\x1b[0m" if color else line
