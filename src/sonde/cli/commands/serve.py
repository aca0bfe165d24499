"""`sonde serve`: Sonde for editors and agents, over standard input and output."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import typer

from sonde.cli.options import (
    BudgetOptions,
    CommandOptions,
    ModelOptions,
    PlaceOptions,
    ReachOptions,
    settings_of,
    spread,
)
from sonde.errors import ConfigError, how_to_install


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Which protocol."""

    stdio: Annotated[
        bool, typer.Option("--stdio", help="JSON Lines, for the VS Code extension (docs/protocol.md).")
    ] = False
    mcp: Annotated[
        bool, typer.Option("--mcp", help="Model Context Protocol: tools ask, rca, comply, incident, runs, issues.")
    ] = False
    acp: Annotated[bool, typer.Option("--acp", help="Agent Client Protocol, for Zed, JetBrains and Neovim.")] = False

    writeback: Annotated[
        bool,
        typer.Option(
            "--writeback",
            help="With --mcp: tools may write annotations to your Phoenix server and change issues of a watch.",
        ),
    ] = False


def register(app: typer.Typer) -> None:
    app.command()(spread(serve))


@contextmanager
def _needing(extra: str) -> Generator[None]:
    """Around an import: says which extra is missing. Extra and package have the same name."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != extra:
            raise
        raise ConfigError(f"--{extra} needs the extra {extra}: {how_to_install(extra)}") from None


def serve(
    *,
    how: ServeOptions,
    command: CommandOptions,
    reach: ReachOptions,
    model: ModelOptions,
    budget: BudgetOptions,
    place: PlaceOptions,
) -> int:
    """Serve editors and agents on standard input and output until the input ends.

    Example: sonde serve --stdio --model openai:gpt-4o-mini
    """
    chosen = [name for name in ("stdio", "mcp", "acp") if getattr(how, name)]
    if len(chosen) != 1:
        raise ConfigError("choose one of --stdio, --mcp and --acp, for example: sonde serve --stdio")
    if how.mcp and command.allow_command:
        raise ConfigError("--allow-command is for --stdio and --acp; the tools of --mcp run no commands")
    if how.writeback and not how.mcp:
        raise ConfigError("--writeback is for --mcp; tasks of --stdio and --acp write no annotations")
    if not how.acp and (command.command_cwd or reach.command_read or reach.command_write):
        raise ConfigError(
            "--command-cwd, --command-read and --command-write are for --acp; an editor behind --stdio has settings"
        )
    settings = settings_of(model, budget, place, reach)
    commands = command.allow_command or []
    if how.mcp:
        with _needing("mcp"):
            from sonde.server.mcp import serve_mcp

        return serve_mcp(settings, writeback=how.writeback)
    from sonde.server.edit_tasks import EditRunner

    if how.acp:
        from sonde.api.edit_run import command_policy
        from sonde.engines.edit import EDIT_BUDGET

        with _needing("acp"):
            from sonde.server.acp import serve_acp

        runner = EditRunner(settings, commands, default=EDIT_BUDGET)
        return serve_acp(runner, command_policy(settings, commands, command.command_cwd or ()))
    from sonde.api.launch import sonde_version
    from sonde.server.messages import Hello
    from sonde.server.stdio import serve_stdio

    capabilities = ("edit", "cancel", "progress", *(["execute_command"] if commands else []))
    runner = EditRunner(settings, commands)
    return serve_stdio(runner, Hello(version=sonde_version(), capabilities=capabilities, model=settings.model))
