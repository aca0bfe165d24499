"""`sonde view`: look at run folders in a local page."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from sonde.cli.options import PlaceOptions, settings_of, spread

RunToShow = Annotated[str | None, typer.Argument(metavar="RUN", help="The run to open; by default the list of runs.")]


def register(app: typer.Typer) -> None:
    app.command()(spread(view))


def view(
    run: RunToShow = None,
    *,
    port: Annotated[int, typer.Option(metavar="N", help="The port on loopback; 0 picks a free one.")] = 0,
    browser: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    place: PlaceOptions,
) -> None:
    """Look at runs in a local page, live while they run.

    It listens on this machine only, until Ctrl-C.
    """
    from sonde.api.trace_source import cache_folder
    from sonde.cli.interrupt import soft_stop
    from sonde.errors import ConfigError
    from sonde.runs.rundir import find_run
    from sonde.viewer.server import ViewerServer

    settings = settings_of(place)
    runs_dir = settings.runs_dir
    shown = find_run(runs_dir, run) if run is not None else None
    try:
        server = ViewerServer(runs_dir, port=port, named=[shown] if shown else (), cache=cache_folder(settings.environ))
    except (OSError, OverflowError) as error:
        raise ConfigError(f"port {port} cannot be used: {error}; --port 0 picks a free one") from error
    with soft_stop(said=None) as stop, server:
        address = server.url_of(shown.run_id) if shown else server.url
        print(address, flush=True)
        print("Ctrl-C stops it", file=sys.stderr)
        if browser:
            typer.launch(address)
        stop.wait()
