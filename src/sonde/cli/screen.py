"""The live display on a terminal. It is imported, and rich with it, only if there is a terminal to draw on.

`draw` is a pure function from progress to a picture; `Screen` shows it a few times a second and wipes it at the end.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.syntax import Syntax
from rich.text import Text
from rich.tree import Tree

from sonde.cli.live import Branch, RunProgress
from sonde.cli.text import one_line, printable, some_lines
from sonde.core.canonical import plural
from sonde.core.events import ROOT, Event, Noted

_MARKS = {"running": ("●", "cyan"), "succeeded": ("✓", "green"), "partial": ("◐", "yellow")}


class Screen:
    """A display that never scrolls the terminal; only warnings stay when it closes."""

    def __init__(self, stream: TextIO) -> None:
        self.progress = RunProgress()
        self._lock = threading.Lock()
        self._started = time.monotonic()
        self._console = Console(file=stream)
        self._live = Live(console=self._console, get_renderable=self._picture, transient=True, refresh_per_second=8)

    def _picture(self) -> RenderableType:
        with self._lock:
            return draw(self.progress, time.monotonic() - self._started, self._console.height)

    def on_event(self, event: Event) -> None:
        """Take it in; the display's own thread draws."""
        with self._lock:
            if self.progress.knows(event):
                return
            self.progress.add(event)
        if isinstance(event, Noted) and event.level == "warning":
            self._console.print(f"warning: {one_line(event.text, 200)}", markup=False, highlight=False)

    def on_text(self, session: str, piece: str) -> None:
        """Show a reply while it is being written."""
        with self._lock:
            self.progress.hear(session, piece)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()


def draw(progress: RunProgress, elapsed_s: float, height: int) -> RenderableType:
    """Head, tree, code, output, what is left; never taller than the terminal."""
    room = max(4, height - 4)
    code_rows = room // 3
    head = Text(no_wrap=True, overflow="ellipsis")
    head.append(one_line(progress.question, 80), style="bold")
    head.append(f"  {printable(progress.model)}  {elapsed_s:.0f} s", style="dim")
    # If not all sessions fit, those that still run come first, then the latest.
    sessions = [session for session in progress.branches if session != ROOT]
    latest = sorted(sessions, key=lambda session: progress.branches[session].status == "running")[::-1]
    tree = Tree(_label(progress.branches[ROOT], progress), guide_style="dim")
    drawn = _grow(tree, progress, ROOT, set(latest[: max(room - code_rows - room // 4 - 2, 0)]))
    if drawn < len(sessions):
        tree.add(Text(f"… {len(sessions) - drawn} more", style="dim"))
    code = _block(progress.code, code_rows, python=True) or _block(progress.words, code_rows)
    output = _block(progress.output, room // 4)
    used = [plural(progress.used.tool_calls, "tool call"), plural(progress.citations, "citation")]
    foot = Text(f"{progress.left_line()} · {' · '.join(used)}", style="dim", no_wrap=True, overflow="ellipsis")
    if progress.notes:
        foot.append(f"\n{one_line(progress.notes[-1], 160)}", style="yellow")
    return Group(head, tree, *code, *output, foot)


def _grow(tree: Tree, progress: RunProgress, session: str, shown: set[str]) -> int:
    """Hang the shown sessions below their parents; returns how many were drawn."""
    children = [child for child in progress.branches[session].children if child in shown]
    below = [_grow(tree.add(_label(progress.branches[child], progress)), progress, child, shown) for child in children]
    return len(children) + sum(below)


def _label(branch: Branch, progress: RunProgress) -> Text:
    mark, colour = _MARKS.get(branch.status, ("✗", "red"))
    label = Text(no_wrap=True, overflow="ellipsis")
    label.append(f"{mark} ", style=colour)
    if branch.session == ROOT:
        doing = f"turn {branch.turn}" if branch.turn else ""
        return label.append(f"{doing} {printable(progress.doing)}".strip())
    turn = f" turn {branch.turn}" if branch.turn and branch.mode == "rlm" else ""
    return label.append(f"{branch.session.removeprefix(ROOT + '/')}{turn} ").append(
        one_line(branch.objective, 70), style="dim"
    )


def _block(text: str, rows: int, *, python: bool = False) -> list[RenderableType]:
    if not text.strip():
        return []
    shown = "\n".join(some_lines(text, rows, tail=not python))
    if python:
        body: RenderableType = Syntax(shown, "python", theme="ansi_dark", background_color="default", word_wrap=False)
    else:
        body = Text(shown, style="dim", no_wrap=True, overflow="ellipsis")
    return [Padding(body, (0, 0, 0, 2))]
