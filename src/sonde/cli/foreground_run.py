"""One run from the command line: model line, live view, Ctrl-C, answer, exit code. Shared by every command that ends in an answer.

The answer goes to stdout; the model line, progress, notes and errors go to stderr. With --json one object goes to stdout and nothing
goes anywhere else.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event as Flag
from typing import TYPE_CHECKING

from sonde.cli.answer import as_object, error_line, print_answer, summary_line
from sonde.cli.interrupt import soft_stop
from sonde.cli.live import View, open_view
from sonde.cli.options import OutputOptions
from sonde.cli.text import printable

if TYPE_CHECKING:
    from sonde import Result
    from sonde.api.settings import Settings


@dataclass(frozen=True, slots=True)
class Watch:
    """What a run is given by the terminal: where its events and text go, and how it is told to stop."""

    view: View
    cancel: Flag


def run_with_view(
    output: OutputOptions,
    settings: Settings,
    start: Callable[[Watch], Result],
    *,
    roots: Sequence[Path] = (),
    model_line: str | None = None,
) -> int:
    """Start it, show it, print what came of it; the exit code."""
    silent = output.json or output.quiet
    if not silent:
        for line in (model_line or settings.model_line(), *(f"note: {note}" for note in settings.notes)):
            print(printable(line), file=sys.stderr)
    with soft_stop() as cancel, open_view(sys.stderr, silent=silent) as view:
        answer = start(Watch(view, cancel))
    _print(answer, output, roots)
    return 1 if answer.status == "failed" else 0


def _print(answer: Result, output: OutputOptions, roots: Sequence[Path]) -> None:
    if output.json:
        from sonde.runs.rundir import pretty_json

        sys.stdout.write(pretty_json(as_object(answer)).decode())
        return
    print_answer(answer, sys.stdout, roots, quiet=output.quiet)
    wrong = error_line(answer)
    if wrong is not None and (answer.status == "failed" or not output.quiet):
        print(wrong, file=sys.stderr)
    if not output.quiet:
        print(summary_line(answer), file=sys.stderr)
