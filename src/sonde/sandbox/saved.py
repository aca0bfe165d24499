"""A saved state as a file: one JSON object with a version and a checksum, written whole or not at all.

    {"format": "sonde state", "version": 1, "sha256": "<of the bytes of body>", "body": {...}}

Promises that a file that was cut off, changed, written by a newer Sonde or by something else is refused with the reason. The
checksum finds accidents, not forgers: whoever can write the file can make it fit. That costs nothing, because the content is
data to doubt all the same: this process checks its outer form and never builds objects from it; a confined worker does that,
under the rules of its own profile. No pickle anywhere.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sonde.errors import ConfigError, RunError
from sonde.sandbox.base import Variable
from sonde.sandbox.worker.json_depth import DEEPEST, too_deep

FORMAT = "sonde state"
VERSION = 1
MAX_BYTES = 32 << 20
LARGEST_FILE = 128 << 20
TOO_DEEP = f"it is nested more than {DEEPEST} deep"
OUTER_BYTES = 8 << 20
"""Most of a state that this process takes apart itself: names, reasons and sources. A byte of JSON can become twenty of objects."""
NAME_CHARS = 200
REASON_CHARS = 500
MOST_SHOWN = 10_000


class StateRefused(ConfigError):
    """The file is no state that could be loaded: the message says why and what to do."""


class StateNotSaved(RunError):
    """The state could not be saved; the box itself is as it was."""

    stage = "runtime_sandbox"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A variable that was not carried, and why."""

    name: str
    type: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} ({self.type}): {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """What a file of a state holds."""

    path: Path
    size: int
    sha256: str
    variables: tuple[Variable, ...]
    left_out: tuple[LeftOut, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What a loaded box has of the saved state, and what it lacks, since saving or since loading."""

    names: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()


class Definition(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    number: int
    name: str
    source: str
    future_annotations: bool


class Answer(msgspec.Struct, forbid_unknown_fields=True):
    """What a worker says when it is asked for its state; `graph` is JSON that only a worker takes apart."""

    variables: list[tuple[str, str, int]]
    left_out: list[tuple[str, str, str]]
    definitions: list[Definition]
    graph: bytes


class Told(msgspec.Struct, forbid_unknown_fields=True):
    """What a worker says when it was given a state."""

    names: list[str]
    problems: list[tuple[str, str]]


class Body(msgspec.Struct, forbid_unknown_fields=True):
    variables: list[tuple[str, str, int]]
    left_out: list[tuple[str, str, str]]
    definitions: list[Definition]
    graph: msgspec.Raw

    def shown(self) -> tuple[Variable, ...]:
        """The variables it says it holds, in bounded form."""
        return tuple(
            Variable(name[:NAME_CHARS], kind[:NAME_CHARS], size if size >= 0 else None)
            for name, kind, size in self.variables[:MOST_SHOWN]
        )

    def missing(self) -> tuple[LeftOut, ...]:
        """The variables it says it lacks."""
        return tuple(
            LeftOut(name[:NAME_CHARS], kind[:NAME_CHARS], reason[:REASON_CHARS])
            for name, kind, reason in self.left_out[:MOST_SHOWN]
        )


class Outline(msgspec.Struct, forbid_unknown_fields=True):
    """A body that is only measured."""

    variables: msgspec.Raw
    left_out: msgspec.Raw
    definitions: msgspec.Raw
    graph: msgspec.Raw


class Envelope(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    version: int
    sha256: str
    body: msgspec.Raw


class Marked(msgspec.Struct):
    """What every version of the file says about itself."""

    format: str
    version: int


def restored(body: Body, told: Told) -> Restored:
    """What a box has of this state after what its worker told."""
    kinds = {name: kind for name, kind, _ in body.variables}
    lost = [
        LeftOut(name[:NAME_CHARS], kinds.get(name, "?")[:NAME_CHARS], reason[:REASON_CHARS])
        for name, reason in told.problems[:MOST_SHOWN]
    ]
    return Restored(names=tuple(told.names[:MOST_SHOWN]), left_out=(*body.missing(), *lost))


def write(path: Path, answer: Answer, *, max_bytes: int, clean: Callable[[str], str] | None) -> Saved:
    """Check what the worker said and write it; StateNotSaved when it is not a state, or too large."""
    try:
        body = _body(answer, clean or str)
        content = msgspec.json.encode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise StateNotSaved(
            f"the worker gave something that is no state ({str(error)[:200]}); nothing was saved"
        ) from None
    if len(content) - len(bytes(body.graph)) > OUTER_BYTES:
        raise StateNotSaved(f"names and sources of the state take more than {OUTER_BYTES} bytes; delete some functions")
    if len(content) > max_bytes:
        raise StateNotSaved(
            f"the state takes {len(content)} bytes, at most {max_bytes} are saved; delete large variables"
        )
    checksum = hashlib.sha256(content).hexdigest()
    whole = msgspec.json.encode(Envelope(FORMAT, VERSION, checksum, msgspec.Raw(content))) + b"\n"
    _write_atomically(path, whole)
    return Saved(path=path, size=len(whole), sha256=checksum, variables=body.shown(), left_out=body.missing())


def _body(answer: Answer, clean: Callable[[str], str]) -> Body:
    graph = clean(answer.graph.decode()).encode()
    if too_deep(graph):
        raise ValueError(TOO_DEEP)
    msgspec.json.decode(graph, type=msgspec.Raw)  # it is JSON, and still is after the cleaning
    return Body(
        variables=answer.variables,
        left_out=[(name, kind, clean(reason)) for name, kind, reason in answer.left_out],
        definitions=[
            Definition(each.number, each.name, clean(each.source), each.future_annotations)
            for each in answer.definitions
        ],
        graph=msgspec.Raw(graph),
    )


def saved_state(path: str | Path) -> Saved:
    """What a file of a state holds, without building anything of it; StateRefused as for `Sandbox.load`."""
    return read(path)[0]


def read(path: str | Path) -> tuple[Saved, Body]:
    """The state in a file; StateRefused when it is not one that this version can load."""
    content = _content(Path(path))
    if too_deep(content):
        raise StateRefused(f"{path} is not a state as Sonde writes it: {TOO_DEEP}")
    try:
        marked = msgspec.json.decode(content, type=Marked)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise StateRefused(f"{path} is not a saved state, or was cut off; box.save(path) writes one") from None
    if marked.format != FORMAT:
        raise StateRefused(f"{path} is not a saved state: its format is {marked.format[:80]!r}, not {FORMAT!r}")
    if marked.version != VERSION:
        raise StateRefused(
            f"{path} is a state of version {marked.version}; this Sonde reads version {VERSION}. "
            "Load it with the Sonde that wrote it"
        )
    return _checked(Path(path), content)


def _checked(path: Path, content: bytes) -> tuple[Saved, Body]:
    try:
        envelope = msgspec.json.decode(content, type=Envelope)
        held = bytes(envelope.body)
        if hashlib.sha256(held).hexdigest() != envelope.sha256:
            raise StateRefused(f"{path} does not fit its checksum: it was changed after it was written")
        if len(held) - len(bytes(msgspec.json.decode(held, type=Outline).graph)) > OUTER_BYTES:
            raise StateRefused(f"{path} holds more than {OUTER_BYTES} bytes of names and sources")
        body = msgspec.json.decode(held, type=Body)
        bytes(body.graph).decode()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StateRefused(f"{path} is not a state as Sonde writes it: {str(error)[:200]}") from None
    saved = Saved(path=path, size=len(content), sha256=envelope.sha256, variables=body.shown(), left_out=body.missing())
    return saved, body


def _content(path: Path) -> bytes:
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:  # a pipe would hold us
            known = os.fstat(file.fileno())
            if not stat.S_ISREG(known.st_mode):
                raise StateRefused(f"{path} is not a file that holds a state")
            if known.st_size > LARGEST_FILE:
                raise StateRefused(f"{path} has {known.st_size} bytes; a state has at most {LARGEST_FILE}")
            return file.read(LARGEST_FILE + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise StateRefused(f"cannot read the state in {path}: {reason}") from None


def _write_atomically(path: Path, content: bytes) -> None:
    beside = ""
    try:
        fd, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(beside).replace(path)
    except OSError as error:
        raise StateNotSaved(f"the state cannot be written to {path}: {error.strerror}") from None
    finally:
        with contextlib.suppress(OSError):  # renamed, or never made
            Path(beside).unlink()
