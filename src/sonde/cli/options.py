"""Options that several commands share, as values; `spread` shows their fields to typer as flags.

    def ask(question: str, run: RunOptions, output: OutputOptions) -> int: ...
    app.command()(spread(ask))

A flag that was not given is None, so that the environment, sonde.toml and the defaults can speak.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer

from sonde.cli.text import printable

if TYPE_CHECKING:
    from sonde.api.settings import Settings
    from sonde.sandbox.base import Limits

RunName = Annotated[str, typer.Argument(metavar="RUN", help="An id, its beginning, `last`, or a folder.")]
GivenAgain = Annotated[str | None, typer.Option(metavar="PATH|-", help="Data that the run did not store.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """Which model, and how to reach it."""

    model: Annotated[
        str | None, typer.Option(metavar="M", help="provider:name, command:PROGRAM, or an entry of [models].")
    ] = None
    sub_model: Annotated[str | None, typer.Option(metavar="M", help="The model of sub-calls; otherwise the same.")] = (
        None
    )
    base_url: Annotated[str | None, typer.Option(metavar="URL", help="The OpenAI-compatible server.")] = None
    timeout_s: Annotated[
        float | None, typer.Option("--model-timeout", metavar="S", help="Seconds one attempt may take.")
    ] = None
    count_wait: Annotated[
        bool | None,
        typer.Option("--count-wait/--no-count-wait", help="Whether waiting for a command model is the run's time."),
    ] = None
    max_parallel: Annotated[int | None, typer.Option(metavar="N", help="Model calls in flight at once.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetOptions:
    """One flag a knob."""

    max_iterations: Annotated[int | None, typer.Option(metavar="N", help="Turns of the whole run.")] = None
    max_depth: Annotated[int | None, typer.Option(metavar="N", help="Levels of sub-calls.")] = None
    max_tool_calls: Annotated[int | None, typer.Option(metavar="N", help="Tool calls of the whole run.")] = None
    max_subcalls: Annotated[int | None, typer.Option(metavar="N", help="Sub-calls of the whole run.")] = None
    max_tokens_total: Annotated[int | None, typer.Option(metavar="N", help="Tokens, both directions.")] = None
    max_tokens_per_subcall: Annotated[int | None, typer.Option(metavar="N", help="Tokens of one sub-call.")] = None
    max_cost_usd: Annotated[float | None, typer.Option(metavar="USD", help="Money, where prices are known.")] = None
    max_wall_time_sec: Annotated[float | None, typer.Option(metavar="S", help="Seconds on the clock.")] = None
    sampling_seed: Annotated[int | None, typer.Option("--seed", metavar="N", help="Seed of model and code.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UseOptions:
    """Which profile of sonde.toml holds."""

    use: Annotated[str | None, typer.Option(metavar="NAME", help="The [profile.NAME] of sonde.toml.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceOptions(UseOptions):
    """Where run folders are, and which profile of sonde.toml holds."""

    runs_dir: Annotated[Path | None, typer.Option(metavar="DIR", help="Where run folders are.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedAgain:
    """What a recorded run may use beyond the user's own settings."""

    backend: Annotated[str | None, typer.Option(metavar="B", help="Allow the backend that it was recorded with.")] = (
        None
    )
    limit: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=N", help="Allow a sandbox limit, e.g. memory=4GiB; can be repeated."),
    ] = None

    def limits(self) -> Limits:
        """The sandbox's limits with those that were given."""
        from sonde.sandbox.base import Limits

        given: dict[str, Any] = {}
        for text in self.limit or ():
            name, _, value = text.partition("=")
            if name not in Limits.__dataclass_fields__:
                raise typer.BadParameter(
                    f"--limit {text}: write NAME=N; there are {', '.join(Limits.__dataclass_fields__)}"
                )
            try:
                given[name] = value if name == "memory" else float(value) if name.endswith("_s") else int(value)
            except ValueError:
                raise typer.BadParameter(f"--limit {text}: {value!r} is not a number") from None
        return Limits(**given)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """What is printed."""

    json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the answer or report alone.")] = False


def settings_of(*groups: Any, **more: Any) -> Settings:
    """The settings of this process with the flags in these groups."""
    from sonde.api.settings import load_settings

    flags = {field.name: getattr(group, field.name) for group in groups for field in fields(group)}
    settings = load_settings(**flags, **more)
    if settings.ignored:
        print(f"note: {printable(settings.ignored)}", file=sys.stderr)
    return settings


def spread(command: Callable[..., int | None]) -> Callable[..., None]:
    """The command with each dataclass parameter shown as one parameter a field; what it returns is the exit code."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    plain = [p for p in inspect.signature(command).parameters.values() if p.name not in groups]
    shown = [p.replace(annotation=hints[p.name], kind=inspect.Parameter.KEYWORD_ONLY) for p in plain]
    for group in groups.values():
        shown += _parameters(group)
    for parameter in shown:
        _refuse_empty_paths(parameter.annotation)

    @functools.wraps(command)
    def run(**given: Any) -> None:
        values = {name: group(**{f.name: given.pop(f.name) for f in fields(group)}) for name, group in groups.items()}
        code = command(**given, **values)
        if code is not None:
            raise typer.Exit(code)

    run.__annotations__ = {p.name: p.annotation for p in shown}
    run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]  # where inspect looks first
    return run


def _parameters(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=hints[f.name])
        for f in fields(group)
    ]


def path(text: str | Path) -> Path:
    """The path that was given; an empty one would quietly be the current folder."""
    if not str(text).strip():
        raise typer.BadParameter("it is empty; give a path (. is the current folder)")
    return Path(text)


def filled(text: str) -> str:
    """A value that was given; an empty one, as of an unset shell variable, would quietly widen a query."""
    if not text.strip():
        raise typer.BadParameter("it is empty; give a value, or leave the option out")
    return text


def _refuse_empty_paths(hint: Any) -> None:
    kind, *described = get_args(hint) or (hint,)
    if Path in (kind, *get_args(kind), *(part for each in get_args(kind) for part in get_args(each))):
        for option in described:
            option.parser = path


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowOptions:
    """Which traces."""

    start: Annotated[
        str | None, typer.Option("--from", metavar="TIME", parser=filled, help="2026-11-01T00:00Z; from there on.")
    ] = None
    end: Annotated[
        str | None, typer.Option("--to", metavar="TIME", parser=filled, help="Up to there, not including it.")
    ] = None
    filter: Annotated[
        str | None,
        typer.Option(metavar="EXPR", parser=filled, help="Traces with a span that fits: status_code == 'ERROR'."),
    ] = None
