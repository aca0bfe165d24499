"""`sonde demo`: play recorded investigations; everything is live except the model's words."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from sonde.cli.options import spread


def register(app: typer.Typer) -> None:
    app.command()(spread(demo))


def demo(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Recordings; all of them if none is named.")
    ] = None,
    *,
    listed: Annotated[bool, typer.Option("--list", help="Only list the recordings.")] = False,
    folder: Annotated[Path, typer.Option(help="Where data and runs go.")] = Path("artifacts/demo"),
    code: Annotated[bool, typer.Option(help="Also answer the same questions without a model.")] = True,
) -> int:
    """Play recorded investigations: the words are a real model's, everything else happens now.

    No key is needed. The data comes from a seed, the code runs in the sandbox, tools and sub-calls are real, citations are proved again.
    """
    from sonde.api.settings import Settings
    from sonde.bench import demo as recordings
    from sonde.cli.live import open_view

    chosen = [recordings.load(name) for name in names or recordings.names()]
    if listed:
        for each in chosen:
            print(f"{each.name:12} {each.started['run_type']:5} {each.title} ({each.model}, {each.recorded})")
        return 0
    as_recorded = True
    for each in chosen:
        print(f"\n== {each.title}\n   {each.started['objective']}")
        print(f"   words of {each.model}, recorded {each.recorded}; all else is live\n")
        with open_view(sys.stderr) as view:
            result = recordings.play(each, folder, settings=Settings(), on_event=view.on_event)
        print(f"\n{result.text.strip()}\n")
        print(f"{result.status.value}, judged by {result.annotator_kind}; {result.run_dir or ''}")
        if code and each.started["run_type"] != "edit":
            print("\n-- the same without a model:\n")
            silent = recordings.without_model(each, folder, settings=Settings())
            print(f"{silent.text.strip()[:1500]}\n{silent.status.value}, judged by {silent.annotator_kind}")
        as_recorded = as_recorded and result.status.value == each.status
    print(f"\nLook at the runs: sonde view --runs-dir {folder / 'runs'}")
    return 0 if as_recorded else 1
