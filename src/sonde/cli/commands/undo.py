"""`sonde undo`: take back what an edit wrote."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from sonde.cli.options import PlaceOptions, settings_of, spread
from sonde.cli.text import printable, printable_lines


def register(app: typer.Typer) -> None:
    app.command()(spread(undo))


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
