"""The program: find the command, run it, turn errors into a message and an exit code.

`CODES` lists the exit codes. Only the file of the typed command is imported, and those files import nothing heavy, so `sonde --help`
stays fast.
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
from sonde.cli.options import SECTIONS, CommandList
from sonde.cli.text import clipped, indented, printable_lines
from sonde.errors import SondeError, UsageError

ABOUT = """Lower a language model into data that does not fit in a prompt; bring back an answer in which every citation is proved.

    sonde ask "Which service failed first?" logs/
"""
CODES = (
    "Exit codes: 0 succeeded or partial, 1 failed, 2 usage or configuration, 3 what --fail-on names (partial outcomes; failed "
    "controls; issues of a watch), 130 stopped by Ctrl-C and 143 by SIGTERM, also with a partial answer, 141 if the reader of a pipe "
    "left early; rlms has its own."
)
SHARED = {"view": "runs", "export": "runs", "publish": "runs", "demo": "bench", "man": "completion", "undo": "edit"}
"""Small commands that stand in the file of another command; every other file has the name of its command (`self_test` is `self-test`)."""

UNREAD = 141  # 128 + SIGPIPE, as shells say it
_NO_SUCH_PLACE = (errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP)


class CommandFile(Protocol):
    """What a file in `commands/` offers."""

    def register(self, app: typer.Typer) -> None:
        """Add the command."""
        ...


def command_names() -> list[str]:
    """All commands in the order of the help."""
    files = (module.name.replace("_", "-") for module in pkgutil.iter_modules(commands.__path__))
    names = [*files, *SHARED]
    order = [name for section in SECTIONS.values() for name in section]
    return sorted(names, key=lambda name: (order.index(name) if name in order else len(order), name))


def build(names: Sequence[str]) -> typer.Typer:
    """The program with these commands."""
    app = typer.Typer(
        cls=CommandList,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        no_args_is_help=True,
        epilog=CODES,
        name="sonde",
        add_completion=False,  # typer's starts Python at every Tab; `sonde completion` does not
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback(help=ABOUT)(_root)
    for file in dict.fromkeys(SHARED.get(name, name) for name in names):
        module = importlib.import_module(f"{commands.__name__}.{file.replace('-', '_')}")
        cast("CommandFile", module).register(app)
    return app


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"sonde {version('sonde-rlm')}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version  # its callback has answered


class _Unheard(io.FileIO):
    """Descriptor 2 when its reader may have left: messages about a run are lost, the run and its answer are not."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return memoryview(data).nbytes


class _Lost(io.FileIO):
    """Takes the place of a standard output that the caller has closed, and notes what is printed to it."""

    printed = False

    def write(self, data: Any, /) -> int:
        self.printed = True
        return super().write(data)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Typer leaves by SystemExit with the exit code; errors of Sonde and of the system are handled here."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["help"]:  # as other programs take it
        words = [*words[1:], "--help"]
    lost: _Lost | None = None
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # the caller closed it; fill its number, or one of our files would get it
            number = os.open(os.devnull, os.O_RDWR)
            if name == "stdout":
                lost = _Lost(number, "w")
                sys.stdout = io.TextIOWrapper(io.BufferedWriter(lost), encoding="utf-8")
            else:
                setattr(sys, name, os.fdopen(number, mode))
    if sys.stderr is sys.__stderr__ and not sys.stderr.isatty():
        said = io.BufferedWriter(_Unheard(sys.stderr.fileno(), "w", closefd=False))
        sys.stderr = io.TextIOWrapper(said, encoding=sys.stderr.encoding, line_buffering=True)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that cannot show a character shows its number
            stream.reconfigure(errors="backslashreplace")
    json = "--json" in words[: words.index("--") if "--" in words else None]
    try:
        names = command_names()
        try:
            build([words[0]] if words and words[0] in names else names)(words, prog_name="sonde", obj=words)
        finally:
            sys.stdout.flush()  # a full disk behind it can be reported here, but not when the interpreter exits
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # typer makes 1 of it
            return UNREAD
        misread = getattr(ended.__context__, "format_message", None)  # typer has said on stderr what it cannot read
        if json and misread is not None:
            _print_refusal(misread(), 2)
        if lost is not None and lost.printed and not ended.code:
            return _refuse("standard output is closed, so what was printed is lost", 1)
        raise
    except UsageError as error:
        return _refuse(error.message, 2, json=json)
    except SondeError as error:
        return _refuse(error.message, 1, json=json)
    except OSError as error:
        if error.filename and error.errno in _NO_SUCH_PLACE:
            return _refuse(f"{error.filename}: {error.strerror}; give another path", 2, json=json)
        if error.errno == errno.ENAMETOOLONG:
            return _refuse(f"{error.filename}: this name is too long for a file or folder", 2, json=json)
        # A full disk, or a reader that has left: what stdout still holds is dropped.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno == errno.EPIPE:
            return UNREAD
        where = f"{error.filename}: " if error.filename else "the output could not be written: "
        return _refuse(f"{where}{error.strerror or error}", 1)
    return 0


def _refuse(message: str, code: int, *, json: bool = False) -> int:
    with contextlib.suppress(OSError):
        print(f"sonde: {indented(clipped(message, 4000))}", file=sys.stderr)
    if json:
        _print_refusal(message, code)
    return code


def _print_refusal(message: str, code: int) -> None:
    """With --json, stdout gets an object even if all it can say is what went wrong."""
    from sonde.core.canonical import canonical_json

    with contextlib.suppress(OSError):
        print(canonical_json({"status": "failed", "error": {"message": printable_lines(message)}, "exit_code": code}))
        sys.stdout.flush()
