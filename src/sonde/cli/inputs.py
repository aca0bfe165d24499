"""What commands read besides flags: paths, standard input, programs, schema files. A ConfigError says what to write instead."""

from __future__ import annotations

import codecs
import io
import itertools
import json
import os
import re
import select
import shutil
import stat
import sys
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from sonde.disk import open_exactly
from sonde.errors import ConfigError

if TYPE_CHECKING:
    from sonde.contexts.files import FilesContext
    from sonde.contexts.files.exclusion import Exclusion

PIECE_BYTES = 1 << 20
MAX_BYTES = 16 << 20
IN_MEMORY_PIECES = 32
HEAD_BYTES = 1 << 16
# Keys of spans in any spelling. Lines of a log may name a trace and a span too, but not when the span began.
SPAN_KEYS = (
    rb'trace_?id"\s*:',
    rb'"start_?time[a-z_]*"\s*:',
    rb'span_?id"\s*:|"(run_type|observations|parentObservationId)"\s*:',
)


def sources(words: list[str], *, code: bool = False, exclusion: Exclusion | None = None) -> list[Any]:
    """What `sonde.ask` takes as context: the paths, or one context of the paths and standard input."""
    paths = [word for word in words if word != "-"]
    for path in paths:  # an unreadable file would pass for one without an answer
        if not path.strip():
            raise ConfigError("a path is empty; give files or folders (. is this one), or - for standard input")
        try:
            exists = Path(path).exists()
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
        if exists and not os.access(path, os.R_OK):
            raise ConfigError(f"{path} cannot be read: permission denied")
        if not exists and not any(sign in path for sign in "*?["):
            raise ConfigError(f"{path} does not exist; give files or folders, or - for standard input")
    if "-" not in words:
        return [Path(path) for path in paths]
    if code:
        raise ConfigError("--code works on files and folders; leave out -")
    return [_with_stdin(paths, exclusion)]


def looks_like_traces(path: Path) -> bool:
    """Whether a JSON file begins as a file of traces does."""
    if path.suffix.lower() not in (".json", ".jsonl", ".ndjson") or not path.is_file():
        return False
    try:
        with os.fdopen(open_exactly(os.path.realpath(path)), "rb") as stream:
            head = stream.read(HEAD_BYTES)
    except OSError:
        return False  # whoever reads it next says why
    return all(re.search(key, head, re.IGNORECASE) for key in SPAN_KEYS)


def _with_stdin(paths: list[str], exclusion: Exclusion | None) -> FilesContext:
    """A context of the paths and standard input, which goes into a temporary file if it is large."""
    from sonde.api.sources import STDIN_NAME
    from sonde.contexts.files import FilesContext

    if sys.stdin.isatty():
        raise ConfigError(
            "- reads standard input, which is the keyboard here; try: some-program | sonde ask QUESTION -"
        )

    def decoded() -> Iterator[str]:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while data := sys.stdin.buffer.read(PIECE_BYTES):
            yield decoder.decode(data)
        yield decoder.decode(b"", final=True)

    pieces = decoded()
    head = "".join(itertools.islice(pieces, IN_MEMORY_PIECES))
    first_of_rest = next(pieces, None)
    if first_of_rest is None:
        return FilesContext(paths, texts={STDIN_NAME: head}, exclusion=exclusion)
    folder = tempfile.mkdtemp(prefix="sonde-stdin-")
    with Path(folder, STDIN_NAME).open("w", encoding="utf-8", newline="") as file:
        file.writelines(itertools.chain([head, first_of_rest], pieces))
    context = FilesContext([*paths, str(Path(folder, STDIN_NAME))], exclusion=exclusion)
    weakref.finalize(
        context, shutil.rmtree, folder, ignore_errors=True
    )  # when nobody holds the context, at exit at the latest
    return context


def piped(*, silent: bool) -> bool:
    """Whether something comes through a pipe or a redirected file. Waits for a pipe that has sent nothing yet, and refuses one that ends
    without a byte: whoever pipes a log wants to know that there was none.
    """
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # closed, or replaced by something that is not a file
        return False
    if stat.S_ISFIFO(mode) and not silent and not select.select([sys.stdin], [], [], 1.0)[0]:
        print("note: no PATH was given; waiting for standard input", file=sys.stderr)
    given = stat.S_ISFIFO(mode) or stat.S_ISREG(mode)
    if given and not cast("io.BufferedReader", sys.stdin.buffer).peek(1):
        raise ConfigError(
            "standard input was empty, so there is nothing to look at; give a PATH, or ask without data by < /dev/null"
        )
    return given


def unread() -> bool:
    """Whether something has come through a pipe by now; waits for nothing."""
    try:
        fifo = stat.S_ISFIFO(os.fstat(sys.stdin.fileno()).st_mode) and bool(select.select([sys.stdin], [], [], 0)[0])
    except (AttributeError, OSError, ValueError):  # closed, or replaced by something that is not a file
        return False
    return fifo and bool(cast("io.BufferedReader", sys.stdin.buffer).peek(1))


def one_source(word: str | None) -> Any:
    """The context behind one path or -; None when there is none."""
    return None if word is None else sources([word])[0]


def read_program(file: str) -> str:
    """The text of a program from a file or from standard input."""
    if not file.strip():
        raise ConfigError("the path of the program is empty; give one, or - for standard input")
    try:
        data = _bounded(sys.stdin.buffer, file) if file == "-" else _contents(Path(file))
        return data.decode("utf-8-sig")  # with or without a byte order mark, as Python reads it
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text (byte {error.start}); save it as UTF-8") from error


def _contents(path: Path) -> bytes:
    with path.open("rb") as file:
        return _bounded(file, str(path))


def _bounded(stream: BinaryIO, name: str) -> bytes:
    """All of a stream. An endless one, such as /dev/zero, is refused before it fills the memory."""
    data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{name} is larger than {MAX_BYTES >> 20} MiB, too much for a program or a schema")
    return data


def named_file(word: str) -> tuple[str, Path]:
    """The two halves of NAME=PATH."""
    name, equals, path = word.partition("=")
    if not equals or not name.isidentifier() or not path:
        raise ConfigError(f"--share {word}: write it as NAME=PATH, e.g. --share context=logs.txt")
    return name, Path(path)


def read_schema(path: Path) -> dict[str, Any]:
    """The JSON Schema in a file."""
    try:
        schema = json.loads(_contents(path).decode("utf-8"))
    except OSError as error:
        raise ConfigError(f"--schema {path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--schema {path} is not JSON: {error}") from error
    if not isinstance(schema, dict):
        raise ConfigError(f'--schema {path} must hold an object such as {{"type": "object", "properties": {{}}}}')
    return cast("dict[str, Any]", schema)
