"""`sonde edit`: a task in a folder, done by patches that you approve."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sonde.cli.options import BudgetOptions, ModelOptions, OutputOptions, PlaceOptions, settings_of, spread
from sonde.cli.text import printable

if TYPE_CHECKING:
    from sonde import Edited

Task = Annotated[str, typer.Argument(metavar="TASK", help="What shall be done.")]
Folder = Annotated[Path, typer.Argument(metavar="PATH", help="The folder to work in.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class EditOptions:
    """Who approves, and what a task may spend and run."""

    yes: Annotated[bool, typer.Option("--yes", "-y", help="Apply every change without asking.")] = False
    large: Annotated[bool, typer.Option("--large", help="The larger budget: 200,000 tokens, 5 minutes.")] = False
    allow_command: Annotated[
        list[str] | None, typer.Option(metavar="PREFIX", help="A command that the task may run; can be repeated.")
    ] = None
    command_cwd: Annotated[
        list[str] | None, typer.Option(metavar="DIR", help="A folder of PATH in which commands may run, besides PATH.")
    ] = None


def register(app: typer.Typer) -> None:
    app.command()(spread(edit))


def edit(
    task: Task,
    path: Folder = Path(),
    *,
    how: EditOptions,
    model: ModelOptions,
    budget: BudgetOptions,
    place: PlaceOptions,
    output: OutputOptions,
) -> int:
    """Change files to do a task; every change is shown as a diff and written only after your yes.

    Example: sonde edit "Add a function that normalizes whitespace in sample.ts and update its test" examples/demo-workspace
    """
    from sonde.api.edit_run import edit as run_edit
    from sonde.cli.approval import approval
    from sonde.cli.interrupt import soft_stop
    from sonde.cli.live import Lines, Silent
    from sonde.contexts.workspace import reject
    from sonde.engines.edit import LARGE_BUDGET

    settings = settings_of(model, budget, place)
    silent = output.json or output.quiet
    approve = approval(yes=how.yes)
    if not silent:
        print(printable(settings.model_line()), file=sys.stderr)
        if approve is reject and settings.model is not None:
            print(
                "note: nobody can be asked here, so no change will be written; --yes approves them all", file=sys.stderr
            )
    view = Silent() if silent else Lines(sys.stderr)
    with soft_stop() as cancel:
        done = run_edit(
            task,
            path,
            approve=approve,
            commands=how.allow_command or (),
            command_folders=how.command_cwd or (),
            settings=settings,
            budget=LARGE_BUDGET if how.large else None,
            on_event=view.on_event,
            cancel=cancel,
            **asdict(budget),  # a limit that was typed holds within the larger budget too
        )
    _print(done, output, path)
    return 1 if done.status == "failed" else 0


def _print(done: Edited, output: OutputOptions, path: Path) -> None:
    from sonde.cli.answer import as_object, error_line, print_answer, summary_line

    if output.json:
        from sonde.runs.rundir import pretty_json

        sys.stdout.write(pretty_json({**as_object(done), "changed": list(done.changed)}).decode())
        return
    print_answer(done, sys.stdout, [path], quiet=output.quiet)
    wrong = error_line(done)
    if wrong is not None and (done.status == "failed" or not output.quiet):
        print(wrong, file=sys.stderr)
    if not output.quiet:
        print(printable(f"changed: {', '.join(done.changed) or 'nothing'}"), file=sys.stderr)
        print(summary_line(done), file=sys.stderr)
