"""`sonde edit`: a task in a folder, done by patches that you approve."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from sonde.cli.options import (
    BudgetOptions,
    CommandOptions,
    ModelOptions,
    OutputOptions,
    PlaceOptions,
    ReachOptions,
    settings_of,
    spread,
)
from sonde.cli.text import printable

Task = Annotated[str, typer.Argument(metavar="TASK", help="What to do.")]
Folder = Annotated[Path, typer.Argument(metavar="PATH", help="The folder to work in.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class EditOptions:
    """Who approves, and what a task may spend."""

    yes: Annotated[bool, typer.Option("--yes", "-y", help="Apply every change without asking.")] = False
    large: Annotated[bool, typer.Option("--large", help="The larger budget: 200,000 tokens, 5 minutes.")] = False


def register(app: typer.Typer) -> None:
    app.command()(spread(edit))


def edit(
    task: Task,
    path: Folder = Path(),
    *,
    how: EditOptions,
    command: CommandOptions,
    reach: ReachOptions,
    model: ModelOptions,
    budget: BudgetOptions,
    place: PlaceOptions,
    output: OutputOptions,
) -> int:
    """Change files to do a task; you see every change as a diff and it is written only if you say yes.

    Example: sonde edit "Add a function that normalizes whitespace in sample.ts and update its test" examples/demo-workspace
    """
    from sonde.api.edit_run import edit as run_edit
    from sonde.cli.approval import approval
    from sonde.cli.foreground_run import print_answer
    from sonde.cli.interrupt import soft_stop
    from sonde.cli.live import Lines, Silent
    from sonde.contexts.workspace import reject
    from sonde.engines.edit import LARGE_BUDGET

    settings = settings_of(model, budget, place, reach)
    silent = output.json or output.quiet
    approve = approval(yes=how.yes)
    if not silent:
        print(printable(settings.model_line()), file=sys.stderr)
        if approve is reject and settings.model is not None:
            print(
                "note: nobody can be asked here, so no change will be written; --yes approves all changes",
                file=sys.stderr,
            )
    view = Silent() if silent else Lines(sys.stderr)
    with soft_stop() as cancel:
        done = run_edit(
            task,
            path,
            approve=approve,
            commands=command.allow_command or (),
            command_folders=command.command_cwd or (),
            settings=settings,
            budget=LARGE_BUDGET if how.large else None,
            on_event=view.on_event,
            cancel=cancel,
            **asdict(budget),  # typed limits also apply to the larger budget
        )
    print_answer(done, output, [path], changed=done.changed)
    return 1 if done.status == "failed" else 0
