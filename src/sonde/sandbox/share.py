"""Big text for generated code: one sealed copy in memory, mapped by every state, never in a Python heap.

A single text becomes a str-like view, {name: text} a mapping; see `worker.views` for what code can do with them. Text must be
UTF-8; files are copied when shared, so a later change or loss of the file does not matter.
"""

from __future__ import annotations

import contextlib
import os
import sys
from array import array
from codecs import getincrementaldecoder
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sonde.errors import ConfigError

if sys.platform != "win32":
    import fcntl

BLOCK = 1 << 16
CHUNK = 1 << 20
CONTINUATION = bytes(range(0x80, 0xC0))
"""Bytes of UTF-8 that start no character."""
CLEAN = (b"", 0)
"""The decoder is not in the middle of a character."""

Text = str | bytes | Path
Shareable = Text | Mapping[str, Text]
Entries = dict[str, tuple[int, int, bytes]]
"""{name: (start, bytes, index)}"""


@dataclass(slots=True, eq=False)
class Share:
    """A sealed file in memory and where each text lies in it."""

    name: str
    descriptor: int
    size: int
    entries: Entries
    single: bool
    holders: int = 1

    def to_wire(self, number: int) -> dict[str, Any]:
        return {
            "name": self.name,
            "fd": number,
            "size": self.size,
            "entries": self.entries,
            "single": self.single,
        }

    def release(self) -> None:
        self.holders -= 1
        if self.holders == 0:
            os.close(self.descriptor)


def make_share(name: str, content: Shareable, room: int) -> Share:
    """Copy the content; ConfigError when it is not UTF-8, cannot be read, or takes more than `room` bytes."""
    single = not isinstance(content, Mapping)
    texts: Mapping[str, Text] = {"": content} if single else content
    entries: Entries = {}
    size = 0
    with contextlib.ExitStack() as undo:
        descriptor = os.memfd_create("sonde-share", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        undo.callback(os.close, descriptor)
        for key, text in texts.items():
            if not isinstance(key, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers are not all typed
                raise ConfigError(f"the keys of {name!r} must be str, not {type(key).__name__}")
            index = Index(f"{name}[{key!r}]" if key else name, room - size)
            try:
                for chunk in _chunks(index.label, text):
                    index.add(chunk)
                    view = memoryview(chunk)
                    while view:
                        view = view[os.write(descriptor, view) :]
                entries[key] = (size, index.size, index.finish())
            except UnicodeError as error:
                raise ConfigError(f"{index.label} is not UTF-8 text ({error}); decode it before sharing") from None
            size += index.size
        if size == 0:
            os.write(descriptor, b"\0")  # an empty file cannot be mapped
        # Nobody may change it any more, not even we. The names exist on Linux only, so they are looked up here.
        seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        undo.pop_all()  # nothing went wrong
        return Share(name, descriptor, max(size, 1), entries, single)


def read_share(name: str, content: Shareable, room: int) -> tuple[str | dict[str, str], int]:
    """The content as plain text (or texts by name) and its size in bytes, for a backend that maps no memory."""
    texts: Mapping[str, Text] = content if isinstance(content, Mapping) else {"": content}
    pieces: dict[str, str] = {}
    size = 0
    for key, text in texts.items():
        data = b"".join(_chunks(f"{name}[{key!r}]" if key else name, text))
        size += len(data)
        if size > room:
            raise ConfigError(f"{name} takes more than the {max(room, 0)} bytes left of Limits(shared_bytes=...)")
        try:
            pieces[key] = data.decode()
        except UnicodeError as error:
            raise ConfigError(f"{name} is not UTF-8 text ({error}); decode it before sharing") from None
    return (pieces, size) if isinstance(content, Mapping) else (pieces[""], size)


def _chunks(label: str, text: Text) -> Iterator[bytes]:
    """The text as UTF-8, a piece at a time: each piece is checked and copied while it is in the processor's cache."""
    match text:
        case str():
            for start in range(0, len(text), CHUNK):
                yield text[start : start + CHUNK].encode()
        case bytes():
            for start in range(0, len(text), CHUNK):
                yield text[start : start + CHUNK]
        case Path():
            try:
                with text.open("rb") as file:
                    while chunk := file.read(CHUNK):
                        yield chunk
            except OSError as error:
                raise ConfigError(f"cannot share {label}: {error.strerror or error} ({text})") from None
        case _:
            raise ConfigError(f"{label} must be str, bytes or a Path, not {type(text).__name__}")


class Index:
    """Counts the characters before each block of 64 KiB, so that code can go from a character to its byte."""

    def __init__(self, label: str, room: int) -> None:
        self.label = label
        self.size = 0
        self._room = room
        self._ascii = True
        self._characters = 0
        self._before = array("Q")
        self._decoder = getincrementaldecoder("utf-8")()

    def add(self, chunk: bytes) -> None:
        """The next piece; UnicodeDecodeError when it is not UTF-8, ConfigError when it is too much."""
        if self.size + len(chunk) > self._room:
            raise ConfigError(
                f"{self.label} takes more than the {max(self._room, 0)} bytes left of Limits(shared_bytes=...); "
                "raise it, or give the code a tool that reads the file in pieces"
            )
        if not (chunk.isascii() and self._decoder.getstate() == CLEAN):
            self._ascii = False
            self._decoder.decode(chunk)
        view, at = memoryview(chunk), 0
        while at < len(chunk):
            if self.size % BLOCK == 0:
                self._before.append(self._characters)
            piece = bytes(view[at : at + BLOCK - self.size % BLOCK])
            self._characters += len(piece) if piece.isascii() else len(piece.translate(None, CONTINUATION))
            self.size += len(piece)
            at += len(piece)

    def finish(self) -> bytes:
        """The counts and the total as 64-bit numbers; nothing for ASCII, where bytes are characters."""
        self._decoder.decode(b"", final=True)
        return b"" if self._ascii else (self._before + array("Q", [self._characters])).tobytes()
