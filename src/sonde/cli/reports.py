"""What `rca`, `comply` and `incident` share: where the traces are, one run after the other, and how reports are printed.

The report goes to stdout as Markdown, or with --json as exactly {report, annotator_kind, status, run_dir}: one object for one run, one
object a line for several. Progress goes to stderr.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sonde.cli.answer import error_line, summary_line
from sonde.cli.interrupt import soft_stop
from sonde.cli.options import OutputOptions
from sonde.cli.text import one_line, printable
from sonde.errors import UsageError

if TYPE_CHECKING:
    from sonde import Investigation, RunOptions, Settings
    from sonde.cli.foreground_run import Watch

TraceIds = Annotated[list[str], typer.Argument(metavar="TRACE_ID", help="One run for each.")]
Start = Callable[["RunOptions"], "Investigation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Where traces are."""

    source: Annotated[
        str | None,
        typer.Option(
            metavar="S",
            help="A trace file, a folder, or a Phoenix server [http://localhost:6006]; PHOENIX_API_KEY is sent.",
        ),
    ] = None
    project: Annotated[str | None, typer.Option(metavar="NAME", help="The project of the traces.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseOptions:
    """How the investigation is run."""

    no_writeback: Annotated[
        bool, typer.Option("--no-writeback", help="Write no annotations to the server; files never get any.")
    ] = False
    mode: Annotated[str | None, typer.Option(metavar="code|actions", help="The form of the model's replies.")] = None
    sandbox_profile: Annotated[
        str | None, typer.Option("--profile", metavar="P", help="Language rules: open, analysis, strict, assign-only.")
    ] = None
    unsafe: Annotated[
        bool, typer.Option("--unsafe", help="Run code even where the kernel cannot confine it; recorded.")
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions(OutputOptions):
    """What is printed."""

    json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print {report, annotator_kind, status, run_dir}: one object; for several runs one a line."
        ),
    ] = False


def investigate_each(output: OutputOptions, settings: Settings, how: CaseOptions, starts: Sequence[Start]) -> int:
    """Run them one after the other, printing each report as it comes; the worst exit code. One that is refused keeps no other back."""
    from sonde.cli.foreground_run import Watch
    from sonde.cli.live import open_view

    silent = output.json or output.quiet
    if not silent:
        for line in (settings.model_line(), *(f"note: {note}" for note in settings.notes)):
            print(printable(line), file=sys.stderr)
    found: list[Investigation] = []
    refused: list[str] = []
    with soft_stop() as cancel:
        for start in starts:
            try:
                with open_view(sys.stderr, silent=silent) as view:
                    found.append(start(options_of(settings, how, Watch(view, cancel))))
                _print(found[-1], output, several=len(starts) > 1, first=len(found) == 1)
            except UsageError as error:
                refused.append(error.message)
            if cancel.is_set():
                break
    if refused:
        raise UsageError("; ".join(dict.fromkeys(refused)))
    return 1 if any(each.status == "failed" for each in found) else 0


def options_of(settings: Settings, how: CaseOptions, watch: Watch) -> RunOptions:
    """The library's options for a run that a terminal watches."""
    return {
        "settings": settings,
        "unsafe": how.unsafe,
        "on_event": watch.view.on_event,
        "on_text": watch.view.on_text,
        "cancel": watch.cancel,
    }


def as_object(found: Investigation) -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "report": found.report,
        "annotator_kind": found.annotator_kind,
        "status": str(found.status),
        "run_dir": str(found.run_dir) if found.run_dir else None,
    }


def _print(found: Investigation, output: OutputOptions, *, several: bool, first: bool) -> None:
    if output.json:
        print(
            json.dumps(as_object(found), ensure_ascii=False, sort_keys=True, indent=None if several else 2), flush=True
        )
        return
    text = printable(found.text) if sys.stdout.isatty() else found.text
    print(("" if first else "\n") + (text.rstrip("\n") or "no report"), flush=True)
    wrong = error_line(found)
    if wrong is not None and (found.status == "failed" or not output.quiet):
        print(wrong, file=sys.stderr)
    if not output.quiet:
        for gap in found.gaps:
            if gap not in found.text and found.status != "failed":
                print(f"gap: {one_line(gap, 300)}", file=sys.stderr)
        print(f"judged by {found.annotator_kind} · {summary_line(found)}", file=sys.stderr)
