"""The live display on a terminal. Imported, and rich with it, only when there is a terminal to draw on.

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

from sonde.cli.progress import Branch, Progress
from sonde.cli.text import one_line, plural, printable, some_lines
from sonde.core.events import ROOT, Event, Noted

_MARKS = {"running": ("●", "cyan"), "succeeded": ("✓", "green"), "partial": ("◐", "yellow")}


class Screen:
    """A display that never scrolls the terminal; only warnings stay when it closes."""

    def __init__(self, stream: TextIO) -> None:
        self.progress = Progress()
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
            self.progress.add(event)
        if isinstance(event, Noted) and event.level == "warning":
            self._console.print(f"warning: {one_line(event.text, 200)}", markup=False, highlight=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()


def draw(progress: Progress, elapsed_s: float, height: int) -> RenderableType:
    """Head, tree, code, output, what is left; never taller than the terminal."""
    room = max(4, height - 6)
    tree = _tree(progress, max(2, room // 3))
    code = _block(progress.code, max(2, room // 3), python=True)
    output = _block(progress.output, max(2, room // 4), python=False)
    return Group(_head(progress, elapsed_s), tree, *code, *output, _foot(progress))


def _head(progress: Progress, elapsed_s: float) -> Text:
    head = Text(no_wrap=True, overflow="ellipsis")
    head.append(one_line(progress.question, 80), style="bold")
    head.append(f"  {printable(progress.model)}  {elapsed_s:.0f} s", style="dim")
    return head


def _foot(progress: Progress) -> Text:
    used = [plural(progress.tool_calls, "tool call"), plural(progress.citations, "citation")]
    foot = Text(f"{progress.left_line()} · {' · '.join(used)}", style="dim", no_wrap=True, overflow="ellipsis")
    if progress.notes:
        foot.append(f"\n{one_line(progress.notes[-1], 160)}", style="yellow")
    return foot


def _tree(progress: Progress, rows: int) -> Tree:
    """The sessions that matter most when there is no room for all: those that still run, then the latest."""
    shown = _chosen(progress, rows)
    root = Tree(_label(progress.branches[ROOT], progress), guide_style="dim")
    _grow(root, progress, ROOT, shown)
    return root


def _chosen(progress: Progress, rows: int) -> set[str]:
    sessions = [session for session in progress.branches if session != ROOT]
    newest_first = sorted(sessions, key=lambda s: progress.branches[s].status == "running")[::-1]
    return set(newest_first[: max(rows - 1, 1)])


def _grow(tree: Tree, progress: Progress, session: str, shown: set[str]) -> None:
    children = progress.branches[session].children
    for child in children:
        if child in shown:
            _grow(tree.add(_label(progress.branches[child], progress)), progress, child, shown)
    hidden = sum(child not in shown for child in children)
    if hidden:
        tree.add(Text(f"… {hidden} more", style="dim"))


def _label(branch: Branch, progress: Progress) -> Text:
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


def _block(text: str, rows: int, *, python: bool) -> list[RenderableType]:
    if not text.strip():
        return []
    shown = "\n".join(some_lines(text, rows, tail=not python))
    if python:
        body: RenderableType = Syntax(shown, "python", theme="ansi_dark", background_color="default", word_wrap=False)
    else:
        body = Text(shown, style="dim", no_wrap=True, overflow="ellipsis")
    return [Padding(body, (0, 0, 0, 2))]
