"""`sonde ask`: a question over files, folders, standard input or traces."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sonde.cli.options import (
    BudgetOptions,
    DryRun,
    EndOptions,
    ExcludeOptions,
    ModelOptions,
    PlaceOptions,
    TrustRun,
    WindowOptions,
    Without,
    filled,
    settings_of,
    spread,
)
from sonde.cli.text import printable
from sonde.core.canonical import plural
from sonde.core.deadline import Deadline, SystemClock
from sonde.errors import ConfigError

if TYPE_CHECKING:
    from sonde import Answer, Result
    from sonde.api.sources import Opened
    from sonde.cli.foreground_run import RunHooks
    from sonde.contexts.files.exclusion import Exclusion

Question = Annotated[str, typer.Argument(metavar="QUESTION", help="What you want to know.")]
Paths = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="PATH", help="Files, folders, quoted globs; - is standard input. Without a path, a pipe is read."
    ),
]
_GIVE_A_PATH = "give a PATH, for example: sonde ask 'QUESTION' logs/"


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedTraces(WindowOptions):
    """Which traces the question is about."""

    source: Annotated[
        list[str] | None,
        typer.Option(
            metavar="S",
            parser=filled,
            help="Traces to ask about: a trace file, a folder, or a server, e.g. http://localhost:6006; repeatable.",
        ),
    ] = None
    project: Annotated[str | None, typer.Option(metavar="NAME", parser=filled, help="The project of the traces.")] = (
        None
    )

    @property
    def given(self) -> bool:
        """Whether something was said about traces."""
        return any((self.source, self.project, self.start, self.since, self.end, self.filter))


@dataclass(frozen=True, slots=True, kw_only=True)
class AskOptions:
    """How the question is answered."""

    code: Annotated[bool, typer.Option("--code", help="Treat the paths as source code: nav_outline and friends.")] = (
        False
    )
    schema: Annotated[Path | None, typer.Option(metavar="FILE", help="A JSON Schema for the answer.")] = None
    no_citations: Annotated[
        bool, typer.Option("--no-citations", help="Accept an answer without proof; the run is shown as unproved.")
    ] = False
    continue_from: Annotated[
        str | None,
        typer.Option(
            "--continue",
            metavar="RUN",
            help="Ask a follow-up with the variables and history of that run: an id or last.",
        ),
    ] = None
    trust_run: TrustRun = False
    mode: Annotated[
        str | None,
        typer.Option(
            metavar="code|actions|guided",
            help="The form of the model's replies. Default: guided for local: models, code for others.",
        ),
    ] = None
    sandbox_profile: Annotated[
        str | None,
        typer.Option(
            "--profile", metavar="P", help="Language rules: open, general, analysis, strict, assign-only. [general]"
        ),
    ] = None
    packages: Annotated[
        str | None,
        typer.Option("--with", metavar="P,P", help="Installed packages that the code may import: numpy, pandas."),
    ] = None
    backend: Annotated[
        str | None,
        typer.Option(metavar="kernel|monty", help="What runs the code; monty is an interpreter without kernel layers."),
    ] = None
    unsafe: Annotated[
        bool, typer.Option("--unsafe", help="Run code even if the kernel cannot confine it; the record says so.")
    ] = False
    without: Without = ""
    dry_run: DryRun = False


def register(app: typer.Typer) -> None:
    app.command()(spread(ask))


def ask(
    typed: typer.Context,
    question: Question,
    paths: Paths = None,
    *,
    how: AskOptions,
    leave_out: ExcludeOptions,
    traces: AskedTraces,
    model: ModelOptions,
    budget: BudgetOptions,
    place: PlaceOptions,
    output: EndOptions,
) -> int:
    """Answer a question over files or traces; every citation is proved.

    Example: sonde ask "Which service logged the first error?" logs/

    Example: sonde ask "Why do checkouts fail?" --source traces.jsonl --last 24h
    """
    import sonde
    from sonde.api.follow_up import with_earlier_models
    from sonde.api.sources import parsed_without
    from sonde.cli.foreground_run import print_way_on, run_with_view, warn_of_stranger
    from sonde.cli.inputs import piped, read_schema
    from sonde.engines.ask import ASK

    settings = settings_of(
        model,
        budget,
        place,
        mode=how.mode,
        sandbox_profile=how.sandbox_profile,
        packages=how.packages,
        backend=how.backend,
    )
    if how.trust_run and how.continue_from is None:
        raise ConfigError("--trust-run is for --continue RUN")
    if how.continue_from is not None:
        warn_of_stranger(settings.find_run(how.continue_from), settings)
        settings = with_earlier_models(settings, how.continue_from)
    schema = read_schema(how.schema) if how.schema else None
    silent = output.json or output.quiet
    words = list(paths or [])
    asked = [word for word in words if " " in word and not os.path.exists(word)]  # noqa: PTH110  # a question may be too long for a Path
    if len(asked) == 1 and os.path.exists(question):  # noqa: PTH110  # the same
        turned = shlex.join(["sonde", "ask", *asked, question, *(word for word in words if word not in asked)])
        raise ConfigError(f"{question} is a path, and the question comes first: {turned}")
    if not (words or how.continue_from or traces.given) and os.path.exists(question):  # noqa: PTH110  # the same
        raise ConfigError(
            f"{question} is a path; the question comes first: sonde ask 'QUESTION' {shlex.quote(question)}"
        )
    if not (words or how.continue_from or how.code or traces.given):
        words = ["-"] if piped(silent=silent) else []
        if not words and settings.model is None:
            raise ConfigError(f"no data to look at and no model to ask; {_GIVE_A_PATH}")
        if not words and not silent:
            print(f"note: no PATH was given, so the model has no data to look at; {_GIVE_A_PATH}", file=sys.stderr)
    elif words == ["-"] and not how.code:
        piped(silent=True)  # refuses an empty one
    exclusion = leave_out.exclusion()
    lacking = parsed_without(settings.backend, unsafe=how.unsafe, without=how.without)
    loading = Deadline(SystemClock(), settings.budget(ASK.budget, ASK.maxima).max_wall_time_sec)
    context = _opened(words, exclusion, loading, code=how.code, without=lacking, silent=silent)
    if not context and not how.code and (leave_out.exclude or leave_out.no_ignore):
        raise ConfigError("--exclude and --no-ignore are about files: give a PATH, too")
    asking: dict[str, Any] = {
        "code": how.code,
        "schema": schema,
        "exclude": leave_out.exclude or (),
        "gitignore": not leave_out.no_ignore,
        "citations": not how.no_citations,
        "continue_from": how.continue_from,
        "trust_run": how.trust_run,
        "source": traces.source or None,
        "project": traces.project,
        "start": traces.begin,
        "end": traces.end,
        "filter_expr": traces.filter,
    }
    if how.dry_run:
        from sonde.api.ask_run import question_spec
        from sonde.api.estimate import estimate
        from sonde.cli.foreground_run import print_estimate

        del asking["exclude"], asking["gitignore"]
        asking["exclusion"] = exclusion
        with question_spec(
            question, context, settings, {"unsafe": how.unsafe, "without": how.without}, **asking
        ) as spec:
            return print_estimate([estimate(spec, settings)], settings, spec.budget, as_json=output.json)
    roots = [Path(word) for word in words if word != "-"]

    def start(hooks: RunHooks) -> Answer:
        return sonde.ask(
            question, *context, settings=settings, unsafe=how.unsafe, without=how.without, **asking, **hooks
        )

    def way_on(answer: Result) -> None:
        print_way_on(answer, typed.find_root().obj, settings.budget(ASK.budget, ASK.maxima), ASK.maxima)

    return run_with_view(output, settings, start, roots=roots, way_on=way_on)


def _opened(
    words: list[str], exclusion: Exclusion, loading: Deadline, *, code: bool, without: str, silent: bool
) -> list[Opened]:
    """The context of the typed paths, if there are any. Says what is not read, or read in a way that may surprise."""
    from sonde.api.sources import open_context
    from sonde.cli.inputs import looks_like_traces, sources, unread

    context = sources(words, code=code, exclusion=exclusion)
    if not context:
        return []
    opened = open_context(context, code=code, without=without, exclusion=exclusion, loading=loading)
    notes: list[str] = []
    if "-" not in words and unread():
        notes.append("note: standard input is not read; add - to the paths if you mean it")
    if (spans := next((word for word in words if looks_like_traces(Path(word))), None)) is not None:
        notes.append(f"note: {spans} looks like traces; --source {shlex.quote(spans)} asks about them")
    if opened.left_out:
        notes.append(f"skipped: {opened.left_out}")
    if lacking := getattr(opened.context, "lacking", ""):
        notes.append(f"note: {lacking}")
    if opened.markup:
        pages = f"{plural(opened.markup, 'web page')} in a git repository {'is' if opened.markup == 1 else 'are'} read"
        notes.append(f"note: {pages} with the markup; a copy outside of it is read as text")
    for note in () if silent else notes:
        print(printable(note), file=sys.stderr)
    return [opened]
