"""`sonde config`: every setting, its value, and where that came from; `sonde config trust` accepts the folder's sonde.toml."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from sonde.cli.options import BudgetOptions, ModelOptions, PlaceOptions, settings_of, spread
from sonde.cli.text import escaped_json, printable


def register(app: typer.Typer) -> None:
    app.command()(spread(config))


def config(
    action: Annotated[
        str | None, typer.Argument(metavar="[trust]", help="trust: accept the sonde.toml found here, as it is now.")
    ] = None,
    *,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    model: ModelOptions,
    budget: BudgetOptions,
    place: PlaceOptions,
) -> None:
    """Show every setting and where it came from.

    Flags win over the environment, the environment over sonde.toml (the preset first, then the top), sonde.toml over defaults.
    """
    if action is not None:
        from sonde.api.config_file import project_file, trust

        if action != "trust":
            raise typer.BadParameter(
                f"unknown action {action!r}; `sonde config trust` accepts this folder's sonde.toml"
            )
        if json or any(value is not None for each in (model, budget, place) for value in asdict(each).values()):
            raise typer.BadParameter("`sonde config trust` takes no options; leave them out")
        path = project_file(Path.cwd())
        if path is None:
            raise typer.BadParameter("no sonde.toml here or above")
        trust(path, os.environ)
        print(printable(f"{path} is accepted as it is now; if it changes, accept it again"))
        return
    settings = settings_of(model, budget, place)
    from sonde.api.trace_source import cache_folder
    from sonde.contexts.traces.cache import cached_bytes

    folder = cache_folder(settings.environ)
    taken, most = cached_bytes(folder) if folder else 0, settings.trace_cache_gb
    models = {
        name: entry.spec + (f", price {entry.price}" if entry.price else "")
        for name, entry in sorted(settings.models.items())
    }
    if json:
        from sonde.core.canonical import canonical_json

        rows = [{"name": name, "value": value, "source": source} for name, value, source in settings.rows()]
        cache = {"path": str(folder) if folder else None, "bytes": taken, "limit_bytes": int(most * 1e9)}
        shown = {"settings": rows, "models": models, "files": settings.files, "trace_cache": cache}
        print(escaped_json(canonical_json(shown)))
        return
    for name, value, source in settings.rows():
        print(printable(f"{name:23} {value:34} {source}"))
    print("limits by default are those of ask; edit, rca, comply and incident have their own: see their --help")
    for name, spec in models.items():
        print(printable(f"{'models.' + name:23} {spec:34} {settings.models[name].source}"))
    files = ", ".join(settings.files) or "none (sonde.toml here or above, ~/.config/sonde/sonde.toml)"
    print(printable(f"files: {files}"))
    clear = "; `sonde traces clear` removes them" if taken else ""
    shown = (
        f"{folder} ({taken / 1e9:.2f} GB of {most:g} GB{clear})"
        if folder
        else "none: HOME and XDG_CACHE_HOME name no place that can be written"
    )
    print(printable(f"indexes of trace files: {shown}"))
    for note in settings.notes:
        print(printable(f"note: {note}"), file=sys.stderr)
