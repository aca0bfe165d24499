"""Big text for generated code: one sealed copy in memory, mapped by every state, never in a Python heap.

A single text becomes a str-like view, {name: text} a mapping; see `worker.views` for what code can do with them. Text must be
UTF-8; files are copied when shared, so a later change or loss of the file does not matter.
"""

from __future__ import annotations

import fcntl
import os
from array import array
from codecs import getincrementaldecoder
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sonde.errors import ConfigError

BLOCK = 65536
SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE

Text = str | bytes | Path
Shareable = Text | Mapping[str, Text]


@dataclass(slots=True, eq=False)
class Share:
    """A sealed file in memory and where each text lies in it: {name: (start, bytes, index)}."""

    name: str
    descriptor: int
    size: int
    entries: dict[str, tuple[int, int, bytes]]
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
    descriptor = os.memfd_create("sonde-share", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        entries, size = _copy_all(descriptor, name, texts, room)
        if size == 0:
            os.write(descriptor, b"\0")  # an empty file cannot be mapped
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return Share(name, descriptor, max(size, 1), entries, single)


def _copy_all(
    descriptor: int, name: str, texts: Mapping[str, Text], room: int
) -> tuple[dict[str, tuple[int, int, bytes]], int]:
    entries: dict[str, tuple[int, int, bytes]] = {}
    at = 0
    for key, text in texts.items():
        if not isinstance(key, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers are not all typed
            raise ConfigError(f"the keys of {name!r} must be str, not {type(key).__name__}")
        label = f"{name}[{key!r}]" if key else name
        size, index = _copy(descriptor, label, text, room - at)
        entries[key] = (at, size, index)
        at += size
    return entries, at


def _copy(descriptor: int, label: str, text: Text, room: int) -> tuple[int, bytes]:
    if isinstance(text, Path):
        return _copy_file(descriptor, label, text, room)
    if isinstance(text, str):
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(f"the text of {label} cannot be UTF-8: {error}") from None
        known_utf8 = True
    elif isinstance(text, bytes):  # pyright: ignore[reportUnnecessaryIsInstance] - callers are not all typed
        data, known_utf8 = text, False
    else:
        raise ConfigError(f"{label} must be str, bytes or a Path, not {type(text).__name__}")
    _check_room(label, len(data), room)
    index = _index(label, data, known_utf8)
    _write(descriptor, data)
    return len(data), index


def _copy_file(descriptor: int, label: str, path: Path, room: int) -> tuple[int, bytes]:
    try:
        with path.open("rb") as file:
            _check_room(label, os.fstat(file.fileno()).st_size, room)
            data = file.read(room + 1)
    except OSError as error:
        raise ConfigError(f"cannot share {label}: {error.strerror or error} ({path})") from None
    _check_room(label, len(data), room)
    index = _index(label, data, known_utf8=False)
    _write(descriptor, data)
    return len(data), index


def _check_room(label: str, size: int, room: int) -> None:
    if size > room:
        raise ConfigError(
            f"{label} takes {size} bytes but only {max(room, 0)} are left of Limits(shared_bytes=...); "
            "raise it, or give the code a tool that reads the file in pieces"
        )


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _index(label: str, data: bytes, known_utf8: bool) -> bytes:
    """Characters before each block of 64 KiB, and in all, as 64-bit numbers; nothing for ASCII."""
    if data.isascii():
        return b""
    counts = array("Q", [0])
    decoder = getincrementaldecoder("utf-8")()
    view = memoryview(data)
    try:
        for start in range(0, len(data), BLOCK):
            block = view[start : start + BLOCK]
            counts.append(counts[-1] + _starts(bytes(block)) if known_utf8 else counts[-1] + _starts_checked(decoder, block))
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{label} is not UTF-8 text ({error.reason}); decode it first, or share it as str") from None
    return counts.tobytes()


_CONTINUATION = bytes(range(0x80, 0xC0))


def _starts(block: bytes) -> int:
    """How many characters start in this block: bytes that continue none."""
    return len(block.translate(None, _CONTINUATION))


def _starts_checked(decoder: Any, block: memoryview) -> int:
    data = bytes(block)
    decoder.decode(data)
    return _starts(data)
