"""The live view: what a run does while it does it, drawn from its events alone.

`open_view(stream, ...)` gives a screen that redraws itself on a terminal, plain lines elsewhere, and nothing if silence is wanted.
`on_event` may be called from several threads. Text from models, tools and files is made harmless first.

`RunProgress` is the fold of the events that both views draw. It keeps the latest of everything; the history is in the journal.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol, TextIO

from sonde.cli.text import links_shown, one_line, printable, some_lines
from sonde.core import events
from sonde.core.canonical import plural
from sonde.core.events import ROOT, Event
from sonde.core.usage import Usage, used_by
from sonde.errors import ErrorCode

OnText = Callable[[str, str], None]
CODE_LINES = 16
OUTPUT_LINES = 10
WHY = {
    ErrorCode.MODEL_UNREACHABLE: "not reached",
    ErrorCode.MODEL_UNAUTHORIZED: "key refused",
    ErrorCode.MODEL_NOT_FOUND: "not found",
    ErrorCode.MODEL_RATE_LIMITED: "rate limited",
}
"""A failed attempt in two words; what to do about it is said once, when the run gives up."""


@dataclass(slots=True)
class Branch:
    """One session of the tree."""

    session: str
    objective: str
    mode: str = "rlm"
    status: str = "running"
    turn: int = 0
    children: list[str] = field(default_factory=list[str])


class RunProgress:
    """What a run looks like right now: the tree of sessions, the latest code and output, what is left.

    Feed it every event in order; read the fields.
    """

    def __init__(self) -> None:
        self.branches: dict[str, Branch] = {ROOT: Branch(ROOT, "")}
        self.model = ""
        self.question = ""
        self.budget: dict[str, Any] = {}
        self.priced = True
        self.used = Usage()
        self.citations = 0
        self.estimated = False
        self.doing = "starting"
        self.session = ROOT
        self.code = self.output = self.words = ""
        self.notes: list[str] = []
        self.status = "running"

    def add(self, event: Event) -> None:
        """Take one event in."""
        self.used += used_by(event)
        match event:
            case events.RunStarted():
                self.model, self.question, self.budget = event.model or "no model", event.objective, event.budget
                self.branches[ROOT].objective = event.objective
                self.priced = event.price_source != "unknown"
            case events.SubcallStarted():
                branch = self.branch(event.session)
                branch.objective, branch.mode = event.objective, event.mode
            case events.SubcallEnded():
                self.branch(event.session).status = event.status
            case events.TurnStarted():
                self.branch(event.session).turn = event.turn
                self.session, self.doing = event.session, "thinking"
                self.code = self.output = self.words = ""
            case events.ModelReplied():
                self.estimated |= event.estimated
            case events.ModelFailed():
                again = "" if event.wait_s is None else f", retrying in {event.wait_s:.1f} s"
                self.notes.append(f"attempt {event.attempt} failed{again}: {WHY.get(event.code, event.message)}")
            case events.CodeStarted():
                self.session, self.code, self.doing = event.session, event.code, "running code"
            case events.CodeRan():
                self.output, self.doing = output_of(event), "thinking"
            case events.HostReturned():
                self.doing = f"{event.name}()"
            case events.Cited():
                self.citations += 1
            case events.Noted():
                self.notes.append(event.text)
            case events.RunEnded():
                self.status = self.branches[ROOT].status = self.doing = event.status
            case _:
                pass

    def knows(self, event: Event) -> bool:
        """Whether this note was already shown."""
        return isinstance(event, events.Noted) and event.text in self.notes

    def hear(self, session: str, piece: str) -> None:
        """Take in a piece of a reply; only the end of the shown session's text is kept."""
        if session == self.session:
            self.words = (self.words + piece)[-4000:]

    def left(self) -> dict[str, float | None]:
        """Turns, tokens and money left for the whole run; None where there is no limit."""
        used = {
            "max_iterations": self.used.iterations,
            "max_tokens_total": self.used.tokens_total,
            "max_cost_usd": self.used.cost_usd,
        }
        limits = {name: self.budget.get(name) for name in used}
        return {name: None if limit is None else max(0, limit - used[name]) for name, limit in limits.items()}

    def left_line(self) -> str:
        """What is left, in words. No money is shown if a part of the cost is not known, or may not be."""
        left, about = self.left(), "about " if self.estimated else ""
        turns, tokens, money = left["max_iterations"], left["max_tokens_total"], left["max_cost_usd"]
        parts = [] if turns is None else [plural(int(turns), "turn")]
        if tokens is not None:
            parts.append(about + plural(int(tokens), "token"))
        known = self.used.cost is not None and (self.priced or self.used.tokens_total)
        if money is not None and known:
            parts.append(f"${money:.4f}")
        return (" · ".join(parts) + " left" if parts else "no limits") + ("" if known else " · cost unknown")

    def branch(self, session: str) -> Branch:
        """The session's place in the tree; an unannounced one hangs below the root."""
        known = self.branches.get(session)
        if known is None:
            known = self.branches[session] = Branch(session, "")
            parent = session.rpartition("/")[0]
            self.branches[parent if parent in self.branches else ROOT].children.append(session)
        return known


def output_of(event: events.CodeRan) -> str:
    """What a block printed, and its fault if it had one."""
    fault = f"{event.fault.get('kind', 'fault')}: {event.fault.get('message', '')}" if event.fault else ""
    return "\n".join(part.rstrip() for part in (event.stdout, event.stderr, fault) if part.strip())


class View(Protocol):
    """Takes events; what it does with them is its own business."""

    progress: RunProgress

    def on_event(self, event: Event) -> None:
        """Show one event."""
        ...

    @property
    def on_text(self) -> OnText | None:
        """Shows a piece of a reply that is still being written; None where nobody would see it."""
        ...


class Silent:
    """Counts and shows nothing: `--json` and `--quiet`."""

    on_text: OnText | None = None

    def __init__(self) -> None:
        self.progress = RunProgress()

    def on_event(self, event: Event) -> None:
        """Take it in."""
        self.progress.add(event)


class Lines:
    """A few plain lines per event: for logs, pipes and dumb terminals."""

    on_text: OnText | None = None

    def __init__(self, stream: TextIO) -> None:
        self.progress = RunProgress()
        self._stream = stream
        self._lock = threading.Lock()

    def on_event(self, event: Event) -> None:
        """Write what a reader of a log wants to know."""
        with self._lock:
            if self.progress.knows(event):
                return
            self.progress.add(event)
            for line in describe(event, self.progress):
                self._stream.write(f"{printable(line)}\n")
            self._stream.flush()


def describe(event: Event, progress: RunProgress) -> list[str]:
    """The lines of one event; most events have none."""
    place = "" if event.session == ROOT else f"{event.session} "
    match event:
        case events.TurnStarted():
            forced = f", told to finish: {event.forced}" if event.forced else ""
            return [f"{place}turn {event.turn} ({progress.left_line()}{forced})"]
        case events.CodeStarted():
            return [f"  | {line}" for line in some_lines(event.code, CODE_LINES)]
        case events.CodeRan():
            return [f"  > {line}" for line in some_lines(output_of(event), OUTPUT_LINES) if line]
        case events.SubcallStarted():
            return [f"  {event.session} starts: {one_line(event.objective, 100)}"]
        case events.SubcallEnded():
            return [f"  {event.session} {event.status}: {one_line(event.summary, 100)}"]
        case events.ModelFailed() if event.session != ROOT or event.wait_s is not None:  # the run's own error follows
            return [f"  {one_line(progress.notes[-1], 160)}"]
        case events.GateChecked() if not event.ok:
            return [f"  {event.gate} gate: {one_line(event.reason, 160)}"]
        case events.Compacted():
            return [f"  {plural(event.turns, 'old turn')} summarised"]
        case events.Noted():
            return [f"{event.level}: {one_line(event.text, 200)}"]
        case _:
            return []


def open_view(stream: TextIO, *, silent: bool = False) -> AbstractContextManager[View]:
    """The view that suits the stream."""
    if silent:
        return nullcontext(Silent())
    if not links_shown(stream):
        return nullcontext(Lines(stream))
    from sonde.cli.screen import Screen

    return Screen(stream)
