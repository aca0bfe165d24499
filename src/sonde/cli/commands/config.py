"""`sonde config`: every setting, its value, and where that came from; `sonde config trust` accepts the folder's sonde.toml."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sonde.cli.options import BudgetOptions, ModelOptions, PlaceOptions, settings_of, spread
from sonde.cli.text import printable

if TYPE_CHECKING:
    from sonde.api.settings import Settings


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

    Flags win over the environment, that over the profile and then the top of sonde.toml, that over defaults.
    """
    if action is not None:
        _trust(action)
        return
    settings = settings_of(model, budget, place)
    if json:
        from sonde.core.canonical import canonical_json

        rows = [{"name": name, "value": value, "source": source} for name, value, source in settings.rows()]
        print(canonical_json({"settings": rows, "models": _models(settings), "files": settings.files}))
        return
    for name, value, source in settings.rows():
        print(printable(f"{name:23} {value:34} {source}"))
    for name, spec in _models(settings).items():
        print(printable(f"{'models.' + name:23} {spec:34} {settings.models[name].source}"))
    print(f"files: {', '.join(settings.files) or 'none (sonde.toml here or above, ~/.config/sonde/sonde.toml)'}")
    for note in settings.notes:
        typer.echo(f"note: {note}", err=True)


def _trust(action: str) -> None:
    import os
    from pathlib import Path

    from sonde.api.config_file import project_file, trust

    if action != "trust":
        raise typer.BadParameter(
            f"{action!r} is not known here; `sonde config trust` accepts the sonde.toml of this folder"
        )
    path = project_file(Path.cwd())
    if path is None:
        raise typer.BadParameter("there is no sonde.toml here or above")
    trust(path, os.environ)
    print(printable(f"{path} is accepted as it is now; when it changes, accept it again"))


def _models(settings: Settings) -> dict[str, str]:
    return {name: entry.spec for name, entry in sorted(settings.models.items())}
