"""`sonde export`: a run as one file that can be given away."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from sonde.cli.options import PlaceOptions, RunName, settings_of, spread
from sonde.errors import ConfigError

Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where it goes; otherwise here, named by the run.")
]


def register(app: typer.Typer) -> None:
    app.command()(spread(export))


def export(
    run: RunName,
    *,
    output: Output = None,
    redact: Annotated[
        bool, typer.Option("--redact", help="Take out what looks like a secret; not replayable.")
    ] = False,
    html: Annotated[bool, typer.Option("--html", help="One page that shows the run in any browser.")] = False,
    place: PlaceOptions,
) -> None:
    """Write a run as one file that can be given away.

    It is a .tar.gz; `sonde runs import` unpacks it elsewhere. With --html it is a page to look at.
    """
    from sonde.runs.export import export_run
    from sonde.runs.rundir import find_run

    settings = settings_of(place)
    found = find_run(settings.runs_dir, run)
    target = output or Path(f"{found.run_id}{'.html' if html else '.tar.gz'}")
    try:
        if html:
            from sonde.api.trace_source import cache_folder
            from sonde.viewer.onefile import export_html

            print(export_html(found, target, redact=redact, cache=cache_folder(settings.environ)))
        else:
            print(export_run(found, target, redact=redact))
    except OSError as error:
        raise ConfigError(f"{target} cannot be written: {error.strerror}; choose another place with -o FILE") from None
    if redact:
        print("redacted by pattern, which misses things: look before you publish", file=sys.stderr)
