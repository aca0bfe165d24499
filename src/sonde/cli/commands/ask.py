"""`sonde ask`: a question over files, folders or standard input."""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sonde.cli.options import BudgetOptions, ModelOptions, OutputOptions, PlaceOptions, settings_of, spread

if TYPE_CHECKING:
    from sonde.api import Answer
    from sonde.cli.foreground_run import Watch

Question = Annotated[str, typer.Argument(metavar="QUESTION", help="What you want to know.")]
Paths = Annotated[list[str] | None, typer.Argument(metavar="PATH", help="Files and folders; - is standard input.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class AskOptions:
    """How the question is worked on."""

    code: Annotated[bool, typer.Option("--code", help="Treat the paths as source code: nav_outline and friends.")] = (
        False
    )
    schema: Annotated[Path | None, typer.Option(metavar="FILE", help="A JSON Schema that the answer must fit.")] = None
    continue_from: Annotated[
        str | None,
        typer.Option(
            "--continue", metavar="RUN", help="A follow-up with the variables and history of that run: an id or last."
        ),
    ] = None
    mode: Annotated[
        str | None,
        typer.Option(
            metavar="code|actions|guided",
            help="The form of the model's replies; otherwise what suits the model: guided for local:, code for others.",
        ),
    ] = None
    sandbox_profile: Annotated[
        str | None,
        typer.Option("--profile", metavar="P", help="Language rules: open, analysis, strict, assign-only."),
    ] = None
    backend: Annotated[
        str | None,
        typer.Option(metavar="kernel|monty", help="What runs the code; monty is an interpreter, no kernel layers."),
    ] = None
    unsafe: Annotated[
        bool, typer.Option("--unsafe", help="Run code even where the kernel cannot confine it; recorded.")
    ] = False


def register(app: typer.Typer) -> None:
    app.command()(spread(ask))


def _no_path() -> str:
    mode = os.fstat(sys.stdin.fileno()).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISREG(mode):
        return "standard input is not read: give - for it, for example: cat app.log | sonde ask 'QUESTION' -"
    return "no PATH was given, so there is no data to look at; for example: sonde ask 'QUESTION' logs/"


def ask(
    question: Question,
    paths: Paths = None,
    *,
    how: AskOptions,
    model: ModelOptions,
    budget: BudgetOptions,
    place: PlaceOptions,
    output: OutputOptions,
) -> int:
    """Answer a question over files; every citation is proved.

    Example: sonde ask "Which service logged the first error?" logs/
    """
    from sonde import api
    from sonde.cli.foreground_run import run_with_view
    from sonde.cli.inputs import read_schema, sources

    settings = settings_of(
        model, budget, place, mode=how.mode, sandbox_profile=how.sandbox_profile, backend=how.backend
    )
    schema = read_schema(how.schema) if how.schema else None
    context = sources(paths or [], code=how.code)
    roots = [Path(path) for path in paths or [] if path != "-"]
    if not (paths or how.continue_from or output.json or output.quiet):
        print(f"note: {_no_path()}", file=sys.stderr)

    def start(watch: Watch) -> Answer:
        return api.ask(
            question,
            *context,
            settings=settings,
            code=how.code,
            schema=schema,
            continue_from=how.continue_from,
            unsafe=how.unsafe,
            on_event=watch.view.on_event,
            on_text=watch.view.on_text,
            cancel=watch.cancel,
        )

    return run_with_view(output, settings, start, roots=roots)
