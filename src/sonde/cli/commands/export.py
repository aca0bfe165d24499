"""`sonde export`: a run as one file to share."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from sonde.cli.options import PlaceOptions, RunName, settings_of, spread
from sonde.errors import ConfigError

Output = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="FILE", help="The file to write; by default in this folder, named after the run."
    ),
]


def register(app: typer.Typer) -> None:
    app.command()(spread(export))


def export(
    run: RunName,
    *,
    output: Output = None,
    redact: Annotated[
        bool, typer.Option("--redact", help="Remove what looks like a secret; the run cannot be replayed then.")
    ] = False,
    html: Annotated[bool, typer.Option("--html", help="Write a page that shows the run in any browser.")] = False,
    place: PlaceOptions,
) -> None:
    """Write a run as one file to share.

    The file is a .tar.gz that `sonde runs import` unpacks elsewhere. With --html it is a page to look at.
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
        print("secrets were removed by pattern, which misses some: check the file before you share it", file=sys.stderr)
