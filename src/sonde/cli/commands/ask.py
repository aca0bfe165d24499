"""`sonde ask`: a question over files, folders or standard input."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from sonde.cli.options import BudgetOptions, ModelOptions, OutputOptions, PlaceOptions, settings_of, spread

if TYPE_CHECKING:
    from sonde.api import Answer
    from sonde.cli.running import Watch

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
        str | None, typer.Option("--continue", metavar="RUN", help="A follow-up with that run's variables and history.")
    ] = None
    mode: Annotated[str | None, typer.Option(metavar="code|actions", help="The form of the model's replies.")] = None
    sandbox_profile: Annotated[
        str | None,
        typer.Option("--profile", metavar="P", help="Language rules: open, analysis, strict, assign-only."),
    ] = None
    unsafe: Annotated[
        bool, typer.Option("--unsafe", help="Run code even where the kernel cannot confine it; recorded.")
    ] = False


def register(app: typer.Typer) -> None:
    app.command()(spread(ask))


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
    """Answer a question over files of any size; every citation is proved.

    Example: sonde ask "Which service logged the first error?" logs/
    """
    from sonde import api
    from sonde.cli.running import run_with_view

    settings = settings_of(model, budget, place, mode=how.mode, sandbox_profile=how.sandbox_profile)
    schema = read_schema(how.schema) if how.schema else None
    context = sources(paths or [], code=how.code)
    roots = [Path(path) for path in paths or [] if path != "-"]

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


def sources(words: list[str], *, code: bool) -> list[Any]:
    """What `api.ask` takes as context: the paths, or one context of them together with standard input."""
    from sonde.errors import ConfigError

    paths = [word for word in words if word != "-"]
    for path in paths:
        if not Path(path).exists() and not any(sign in path for sign in "*?["):
            raise ConfigError(f"{path} does not exist; give files or folders, or - for standard input")
    if "-" not in words:
        return [Path(path) for path in paths]
    if code:
        raise ConfigError("--code works on files and folders; leave out -")
    from sonde.api.sources import STDIN_NAME
    from sonde.contexts.files import FilesContext

    return [FilesContext(paths, texts={STDIN_NAME: read_stdin()})]


def read_stdin() -> str:
    """All of standard input; bytes that are not UTF-8 are replaced."""
    from sonde.errors import ConfigError

    if sys.stdin.isatty():
        raise ConfigError(
            "- reads standard input, which is the keyboard here; try: some-program | sonde ask QUESTION -"
        )
    return sys.stdin.buffer.read().decode("utf-8", "replace")


def read_schema(path: Path) -> dict[str, Any]:
    """The JSON Schema in a file."""
    import json

    from sonde.errors import ConfigError

    try:
        schema = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"--schema {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"--schema {path} is not JSON: {error}") from error
    if not isinstance(schema, dict):
        raise ConfigError(f'--schema {path} must hold an object such as {{"type": "object", "properties": {{}}}}')
    return cast("dict[str, Any]", schema)
