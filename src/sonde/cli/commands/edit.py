"""`sonde edit`: a task in a folder, done by patches that you approve; `sonde undo` takes back what one wrote."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from sonde.cli.options import (
    BudgetOptions,
    CommandOptions,
    EndOptions,
    ExcludeOptions,
    ModelOptions,
    PlaceOptions,
    ReachOptions,
    Without,
    settings_of,
    spread,
)
from sonde.cli.text import printable, printable_lines

Task = Annotated[str, typer.Argument(metavar="TASK", help="What to do.")]
Folder = Annotated[Path, typer.Argument(metavar="PATH", help="The folder to work in.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class EditOptions:
    """Who approves, and what a task may spend."""

    yes: Annotated[bool, typer.Option("--yes", "-y", help="Apply every change without asking.")] = False
    large: Annotated[
        bool, typer.Option("--large", help="The larger budget: 1,000,000 tokens, 30 minutes, 90 sub-calls.")
    ] = False
    continue_from: Annotated[
        str | None,
        typer.Option("--continue", metavar="RUN", help="Go on from that run, an id or last: a limit has ended it."),
    ] = None
    packages: Annotated[
        str | None,
        typer.Option("--with", metavar="P,P", help="Installed packages that the code may import: numpy, pandas."),
    ] = None
    without: Without = ""


def register(app: typer.Typer) -> None:
    app.command()(spread(edit))
    app.command()(spread(undo))


def edit(
    typed: typer.Context,
    task: Task,
    path: Folder = Path(),
    *,
    how: EditOptions,
    leave_out: ExcludeOptions,
    command: CommandOptions,
    reach: ReachOptions,
    model: ModelOptions,
    budget: BudgetOptions,
    place: PlaceOptions,
    output: EndOptions,
) -> int:
    """Change files to do a task; you see every change as a diff and it is written only if you say yes.

    Example: sonde edit "Add a function that normalizes whitespace in sample.ts and update its test" examples/demo-workspace
    """
    from sonde.api.edit_run import edit as run_edit
    from sonde.api.follow_up import with_earlier_models
    from sonde.cli.approval import Unattended, approval
    from sonde.cli.foreground_run import print_answer, print_model_line, print_way_on, warn_of_stranger
    from sonde.cli.interrupt import soft_stop
    from sonde.cli.live import Lines, Silent
    from sonde.engines.edit import EDIT_BUDGET, EDIT_MAXIMA, LARGE_BUDGET

    settings = settings_of(model, budget, place, reach, packages=how.packages)
    if how.continue_from is not None:
        warn_of_stranger(settings.find_run(how.continue_from), settings)
        settings = with_earlier_models(settings, how.continue_from)
    limits = settings.budget(LARGE_BUDGET if how.large else EDIT_BUDGET, EDIT_MAXIMA)
    silent = output.json or output.quiet
    approve = approval(yes=how.yes, silent=silent)
    unattended = isinstance(approve, Unattended) and settings.model is not None
    if not silent:
        print_model_line(settings)
        print(f"limits: {limits.in_words()}", file=sys.stderr)
        if unattended:
            print(
                "note: there is no terminal to ask at, so changes are shown and not written; --yes approves all of them",
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
            exclude=leave_out.exclude or (),
            gitignore=not leave_out.no_ignore,
            continue_from=how.continue_from,
            settings=settings,
            without=how.without,
            budget=limits,
            on_event=view.on_event,
            cancel=cancel,
        )
    print_answer(done, output, [path])
    if output.quiet and not output.json and unattended and not done.changed:
        print("sonde: nothing was written: nobody could be asked here; --yes approves all changes", file=sys.stderr)
    if not silent:
        print_way_on(done, typed.find_root().obj, limits, EDIT_MAXIMA)
    return cancel.exit_code(output.exit_code([done.status]))


def undo(
    run: Annotated[
        str, typer.Argument(metavar="[RUN]", help="The edit: id or its beginning, folder, or last.")
    ] = "last",
    path: Annotated[
        Path | None, typer.Argument(metavar="[PATH]", help="The folder to put right; by default this one.")
    ] = None,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")] = False,
    place: PlaceOptions,
) -> int:
    """Take back what an edit wrote, all of it or nothing; you see the change and it is written only if you say yes.

    Example: sonde undo last demo-workspace --yes
    """
    from sonde.api.edit_run import undo as take_back
    from sonde.cli.approval import approval
    from sonde.contexts.workspace import visible

    approve = approval(yes=yes, question="Take this back? [y]es, [n]o: ", why="")
    done = take_back(run, path, approve=approve, settings=settings_of(place))
    if not done.applied:
        print(f"sonde: nothing was written: {printable(done.summary)}", file=sys.stderr)
        return 1
    print(printable_lines(visible(done.summary)))
    return 0
