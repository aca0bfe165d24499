"""What a run looks like right now, as a fold of its events: the tree of sessions, the latest code and output, what is left.

Both live views draw this and read nothing else. It keeps the latest of everything, not the history: that is the journal's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sonde.core import events
from sonde.core.events import ROOT, Event
from sonde.core.plurals import plural


@dataclass(slots=True)
class Branch:
    """One session of the tree."""

    session: str
    objective: str
    mode: str = "rlm"
    status: str = "running"
    turn: int = 0
    children: list[str] = field(default_factory=list[str])


class Progress:
    """The fold. Feed it every event in order; read the fields."""

    def __init__(self) -> None:
        self.branches: dict[str, Branch] = {ROOT: Branch(ROOT, "")}
        self.model = ""
        self.question = ""
        self.budget: dict[str, Any] = {}
        self.turns = self.tool_calls = self.subcalls = self.tokens = self.citations = 0
        self.cost_usd = 0.0
        self.estimated = False
        self.doing = "starting"
        self.session = ROOT
        self.code = self.output = self.words = ""
        self.notes: list[str] = []
        self.status = "running"

    def add(self, event: Event) -> None:
        """Take one event in."""
        step = _STEPS.get(type(event))
        if step is not None:
            step(self, event)

    def knows(self, event: Event) -> bool:
        """Whether this is a remark that was made before."""
        return isinstance(event, events.Noted) and event.text in self.notes

    def hear(self, session: str, piece: str) -> None:
        """Take in a piece of a reply; those of the session that is shown are kept, and only their end."""
        if session == self.session:
            self.words = (self.words + piece)[-4000:]

    def left(self) -> dict[str, float | None]:
        """Turns, tokens and money left of the whole run; None where there is no limit."""
        used = {"max_iterations": self.turns, "max_tokens_total": self.tokens, "max_cost_usd": self.cost_usd}
        limits = {name: self.budget.get(name) for name in used}
        return {name: None if limit is None else max(0, limit - used[name]) for name, limit in limits.items()}

    def left_line(self) -> str:
        """What is left, in words."""
        left, about = self.left(), "about " if self.estimated else ""
        parts = [
            _some(left["max_iterations"], lambda turns: plural(int(turns), "turn")),
            _some(left["max_tokens_total"], lambda tokens: about + plural(int(tokens), "token")),
            "" if self.tokens and not self.cost_usd else _some(left["max_cost_usd"], lambda money: f"${money:.4f}"),
        ]
        return " · ".join(part for part in parts if part) + " left" if any(parts) else "no limits"

    def branch(self, session: str) -> Branch:
        """The session's place in the tree; one that nobody announced hangs below the root."""
        known = self.branches.get(session)
        if known is None:
            known = self.branches[session] = Branch(session, "")
            self.branches[self._parent(session)].children.append(session)
        return known

    def _parent(self, session: str) -> str:
        parent = session.rpartition("/")[0]
        return parent if parent in self.branches else ROOT


def _some(value: float | None, shown: Callable[[float], str]) -> str:
    return "" if value is None else shown(value)


def _run_started(progress: Progress, event: events.RunStarted) -> None:
    progress.model, progress.question, progress.budget = event.model or "no model", event.objective, event.budget
    progress.branches[ROOT].objective = event.objective


def _subcall_started(progress: Progress, event: events.SubcallStarted) -> None:
    branch = progress.branch(event.session)
    branch.objective, branch.mode = event.objective, event.mode
    progress.subcalls += 1


def _subcall_ended(progress: Progress, event: events.SubcallEnded) -> None:
    progress.branch(event.session).status = event.status


def _turn_started(progress: Progress, event: events.TurnStarted) -> None:
    progress.branch(event.session).turn = event.turn
    progress.turns += 1
    progress.session, progress.doing = event.session, "thinking"
    progress.code = progress.output = progress.words = ""


def _model_replied(progress: Progress, event: events.ModelReplied) -> None:
    progress.tokens += event.tokens_in + event.tokens_out
    progress.cost_usd += event.cost_usd or 0.0
    progress.estimated |= event.estimated


def _model_failed(progress: Progress, event: events.ModelFailed) -> None:
    again = "" if event.wait_s is None else f", the next follows in {event.wait_s:.1f} s"
    progress.tokens += event.tokens_in
    progress.notes.append(f"attempt {event.attempt} failed{again}: {event.message}")


def _code_started(progress: Progress, event: events.CodeStarted) -> None:
    progress.session, progress.code, progress.doing = event.session, event.code, "running code"


def _code_ran(progress: Progress, event: events.CodeRan) -> None:
    progress.output, progress.doing = output_of(event), "thinking"


def _host_returned(progress: Progress, event: events.HostReturned) -> None:
    progress.tool_calls += event.tool
    progress.doing = f"{event.name}()"


def _cited(progress: Progress, _event: events.Cited) -> None:
    progress.citations += 1


def _noted(progress: Progress, event: events.Noted) -> None:
    progress.notes.append(event.text)


def _run_ended(progress: Progress, event: events.RunEnded) -> None:
    progress.status = progress.branches[ROOT].status = event.status
    progress.doing = event.status


def output_of(event: events.CodeRan) -> str:
    """What a block printed, and its fault if it had one."""
    fault = f"{event.fault.get('kind', 'fault')}: {event.fault.get('message', '')}" if event.fault else ""
    return "\n".join(part.rstrip() for part in (event.stdout, event.stderr, fault) if part.strip())


_STEPS: dict[type[Event], Callable[[Progress, Any], None]] = {
    events.RunStarted: _run_started,
    events.SubcallStarted: _subcall_started,
    events.SubcallEnded: _subcall_ended,
    events.TurnStarted: _turn_started,
    events.ModelReplied: _model_replied,
    events.ModelFailed: _model_failed,
    events.CodeStarted: _code_started,
    events.CodeRan: _code_ran,
    events.HostReturned: _host_returned,
    events.Cited: _cited,
    events.Noted: _noted,
    events.RunEnded: _run_ended,
}
