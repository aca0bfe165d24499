"""The program: finds the command, runs it, and turns errors into a message and an exit code.

Exit codes: 0 succeeded or partial, 1 failed, 2 usage or configuration (`sonde rlms` keeps its own). Only the file of the typed command is
imported, and those files import nothing heavy, so `sonde --help` stays fast.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import os
import pkgutil
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Protocol, cast

import typer

from sonde.cli import commands
from sonde.cli.text import clipped, printable
from sonde.errors import SondeError, UsageError

ABOUT = """Lower a language model into data that does not fit in a prompt; bring back an answer in which every citation is proved.

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

_NO_SUCH_PLACE = (errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP)


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
    app = typer.Typer(
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        no_args_is_help=True,
        name="sonde",
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback(help=ABOUT)(_root)
    for name in names:
        module = importlib.import_module(f"{commands.__name__}.{name}")
        cast("CommandFile", module).register(app)
    return app


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"sonde {version('sonde-rlm')}")
        raise typer.Exit


def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="The version.")] = False,
) -> None:
    del version  # its callback has answered


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Typer leaves by SystemExit with the exit code; what Sonde or the system refuses comes back here."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    _fill_closed_streams()
    _keep_on_unheard()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that cannot show a character shows its number
            stream.reconfigure(errors="backslashreplace")
    json = "--json" in words[: words.index("--") if "--" in words else None]
    try:
        _run_command(words)
    except SystemExit as ended:
        misread = getattr(ended.__context__, "format_message", None)  # typer has said on stderr what it cannot read
        if json and misread is not None:
            _print_refusal(misread(), 2)
        raise
    except UsageError as error:
        return _refuse(error.message, 2, json=json)
    except SondeError as error:
        return _refuse(error.message, 1, json=json)
    except OSError as error:
        return _unwritable(error, json=json)
    return 0


def _run_command(words: list[str]) -> None:
    names = command_names()
    try:
        build([words[0]] if words and words[0] in names else names)(words, prog_name="sonde")
    finally:
        sys.stdout.flush()  # here a full disk behind it can still be told; at the interpreter's end it could not


def _fill_closed_streams() -> None:
    """A caller may have closed one of the three: then it is nowhere, so that no file of ours gets its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


class _Unheard(io.FileIO):
    """Descriptor 2 when whoever read it may have left: what is said about a run is lost, the run and its answer are not."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return memoryview(data).nbytes


def _keep_on_unheard() -> None:
    if sys.stderr is sys.__stderr__ and not sys.stderr.isatty():
        said = io.BufferedWriter(_Unheard(sys.stderr.fileno(), "w", closefd=False))
        sys.stderr = io.TextIOWrapper(said, encoding=sys.stderr.encoding, line_buffering=True)


def _unwritable(error: OSError, *, json: bool) -> int:
    """A place that cannot be used; or a disk that is full, a reader that has gone: then what stdout still holds is dropped."""
    if error.filename and error.errno in _NO_SUCH_PLACE:
        return _refuse(f"{error.filename}: {error.strerror}; give another path", 2, json=json)
    if error.errno == errno.ENAMETOOLONG:
        return _refuse(f"{error.filename}: no name of a file or folder is that long", 2, json=json)
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if error.errno == errno.EPIPE:
        return 1
    where = f"{error.filename}: " if error.filename else "the output could not be written: "
    return _refuse(f"{where}{error.strerror or error}", 1)


def _refuse(message: str, code: int, *, json: bool = False) -> int:
    with contextlib.suppress(OSError):
        print(f"sonde: {clipped(printable(message), 4000)}", file=sys.stderr)
    if json:
        _print_refusal(message, code)
    return code


def _print_refusal(message: str, code: int) -> None:
    """Whoever asked for an object gets one, also when there is nothing else to tell."""
    from sonde.core.canonical import canonical_json

    with contextlib.suppress(OSError):
        print(canonical_json({"status": "failed", "error": {"message": printable(message)}, "exit_code": code}))
        sys.stdout.flush()
