"""The live view: what a run does while it does it, drawn from its events alone.

`open_view(stream, ...)` gives a screen that redraws itself on a terminal, plain lines elsewhere, and nothing when asked for silence. Its
`on_event` may be called from several threads. Text of models, tools and files is made harmless first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, TextIO

from sonde.cli.progress import Progress, output_of
from sonde.cli.text import links_shown, one_line, some_lines
from sonde.core import events
from sonde.core.events import ROOT, Event
from sonde.core.plurals import plural

OnText = Callable[[str, str], None]
CODE_LINES = 16
OUTPUT_LINES = 10


class View(Protocol):
    """Takes events; what it does with them is its own business."""

    progress: Progress

    def on_event(self, event: Event) -> None:
        """Show one event."""
        ...

    @property
    def on_text(self) -> OnText | None:
        """Shows a piece of a reply that is still being written; None where nobody would see it."""
        ...


class Silent:
    """Counts, shows nothing: `--json` and `--quiet`."""

    on_text: OnText | None = None

    def __init__(self) -> None:
        self.progress = Progress()

    def on_event(self, event: Event) -> None:
        """Take it in."""
        self.progress.add(event)


class Lines:
    """One or a few plain lines an event: for logs, pipes and dumb terminals."""

    on_text: OnText | None = None

    def __init__(self, stream: TextIO) -> None:
        self.progress = Progress()
        self._stream = stream
        self._lock = threading.Lock()

    def on_event(self, event: Event) -> None:
        """Write what a reader of a log wants to know."""
        with self._lock:
            if self.progress.knows(event):
                return
            self.progress.add(event)
            for line in describe(event, self.progress):
                self._stream.write(f"{line}\n")
            self._stream.flush()


def describe(event: Event, progress: Progress) -> list[str]:
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
        case events.ModelFailed():
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
