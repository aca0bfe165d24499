"""`sonde demo`: recorded investigations, played with everything but the model's words live."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sonde.cli.options import spread

if TYPE_CHECKING:
    from sonde.bench.demo import DemoScript


def register(app: typer.Typer) -> None:
    app.command()(spread(demo))


def demo(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Recordings; all of them when none is named.")
    ] = None,
    *,
    listed: Annotated[bool, typer.Option("--list", help="Only list the recordings.")] = False,
    folder: Annotated[Path, typer.Option(help="Where data and runs go.")] = Path("artifacts/demo"),
    code: Annotated[bool, typer.Option(help="Also answer the same questions with no model at all.")] = True,
) -> int:
    """Play recorded investigations: the words are a real model's, everything else happens now.

    No key is needed. The data is made from a seed, the code runs in the sandbox, tools and sub-calls are real, citations are proved again.
    """
    from sonde.bench import demo as recordings

    chosen = [recordings.load(name) for name in names or recordings.names()]
    if listed:
        for each in chosen:
            print(f"{each.name:12} {each.started['run_type']:5} {each.title} ({each.model}, {each.recorded})")
        return 0
    ends = [_play(each, folder, code=code) for each in chosen]
    print(f"\nLook at the runs: sonde view --runs-dir {folder / 'runs'}")
    return 0 if all(ends) else 1


def _play(recording: DemoScript, folder: Path, *, code: bool) -> bool:
    from sonde.api.settings import Settings
    from sonde.bench import demo as recordings
    from sonde.cli.live import open_view

    print(f"\n== {recording.title}\n   {recording.started['objective']}")
    print(f"   words of {recording.model}, recorded {recording.recorded}; all else is live\n")
    with open_view(sys.stderr) as view:
        finished = recordings.play(recording, folder, settings=Settings(), on_event=view.on_event)
    print(f"\n{finished.text.strip()}\n")
    where = finished.run_dir or ""
    print(f"{finished.status.value}, judged by {finished.annotator_kind}; {where}")
    if code and recording.started["run_type"] != "edit":
        print("\n-- the same with no model at all:\n")
        silent = recordings.without_model(recording, folder, settings=Settings())
        print(f"{silent.text.strip()[:1500]}\n{silent.status.value}, judged by {silent.annotator_kind}")
    return finished.status.value == recording.status
