"""The door: finds the command, runs it, and turns errors into a message and an exit code.

Exit codes: 0 succeeded or partial, 1 failed, 2 usage or configuration (`sonde rlms` keeps its own). Only the file of the typed command is
imported, and those files import nothing heavy, so `sonde --help` stays fast.
"""

from __future__ import annotations

import importlib
import io
import pkgutil
import sys
from collections.abc import Sequence
from typing import Annotated, Protocol, cast

import typer

from sonde.cli import commands
from sonde.cli.text import printable
from sonde.errors import SondeError, UsageError

ABOUT = """Lower a language model into data that does not fit in a prompt; bring back an answer in which every claim is cited and proved.

    sonde ask "Which service failed first?" logs/
"""
_ORDER = (
    "ask",
    "edit",
    "rca",
    "comply",
    "incident",
    "traces",
    "batch",
    "runs",
    "view",
    "resume",
    "replay",
    "branch",
    "diff",
    "export",
    "publish",
)


class CommandFile(Protocol):
    """What a file in `commands/` offers."""

    def register(self, app: typer.Typer) -> None:
        """Add the command."""
        ...


def command_names() -> list[str]:
    """The commands that exist, in the order of the help; those it does not know come last."""
    names = [module.name for module in pkgutil.iter_modules(commands.__path__)]
    return sorted(names, key=lambda name: (_ORDER.index(name) if name in _ORDER else len(_ORDER), name))


def build(names: Sequence[str]) -> typer.Typer:
    """The program with these commands."""
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, no_args_is_help=True, name="sonde")
    app.callback(help=ABOUT)(_root)
    for name in names:
        module = importlib.import_module(f"{commands.__name__}.{name}")
        cast("CommandFile", module).register(app)
    return app


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"sonde {version('sonde')}")
        raise typer.Exit


def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="The version.")] = False,
) -> None:
    del version  # its callback has answered


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Typer leaves by SystemExit with the exit code; what Sonde refuses comes back here."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that cannot show a character shows its number
            stream.reconfigure(errors="backslashreplace")
    names = command_names()
    try:
        build([words[0]] if words and words[0] in names else names)(words, prog_name="sonde")
    except UsageError as error:
        return _refuse(error, 2)
    except SondeError as error:
        return _refuse(error, 1)
    return 0


def _refuse(error: SondeError, code: int) -> int:
    print(f"sonde: {printable(error.message)}", file=sys.stderr)
    return code
