"""`sonde publish`: write the annotations of a finished investigation again."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from sonde.cli.options import PlaceOptions, RunName, settings_of, spread
from sonde.cli.text import one_line
from sonde.core.canonical import plural


def register(app: typer.Typer) -> None:
    app.command()(spread(publish))


def publish(
    run: RunName,
    *,
    source: Annotated[
        str | None, typer.Option(metavar="URL", help="Another Phoenix server that has the same traces.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    place: PlaceOptions,
) -> int:
    """Write a run's annotations to its Phoenix server; writing again replaces them. Exit code 1 if some could not be written.

    Example: sonde publish last
    """
    import sonde

    done = sonde.publish_run(run, source=source, settings=settings_of(place))
    if as_json:
        figures = {"writeback_status": done.status, "written": done.written, "failed": done.failed, "error": done.error}
        print(json.dumps({**figures, "status": str(done.record.status), "run_dir": str(done.run_dir)}, indent=2))
    else:
        print(
            f"{done.status}: {plural(done.written, 'annotation')} written, {done.failed} not; the run is {done.record.status}"
        )
    if done.error and not as_json:
        print(f"sonde: WRITEBACK_FAILED: {one_line(done.error, 600)}", file=sys.stderr)
    return 0 if done.status == "succeeded" else 1
