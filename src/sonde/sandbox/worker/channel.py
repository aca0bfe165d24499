"""The worker's end of the private socket: frames out as JSON and raw bytes, answers in by marshal.

Promises to send whole frames in order. Promises the supervisor nothing: it checks every frame as if it were forged.

    out   kind (1) · sequence (4) · length of JSON (4) · length of raw bytes (4) · JSON · raw bytes
    in    length (8) · marshal
"""

from __future__ import annotations

import json
import marshal
import os
import struct
from collections.abc import Callable
from typing import Any

from .json_depth import DEEPEST, too_deep

SOCKET = 3
CALL, DONE, READY = 1, 2, 3
HEADER = struct.Struct("<BIII")
LENGTH = struct.Struct("<Q")
TEXT_BYTES = 16 << 20
"""Most JSON in one frame, as in the supervisor's `frames`."""
MOST_PARTS = 2_000_000
"""Most commas and brackets in it, as there."""
BYTES_KEY = "\0bytes"
"""A JSON object with this one key stands for the raw bytes of that index; generated code may not use it as a key."""

Plain = Callable[[Any], Any]


class Encoded:
    """A value as JSON text, with the raw bytes it refers to."""

    __slots__ = ("raw", "text")

    def __init__(self, value: Any, plain: Plain | None = None, raw: list[bytes] | None = None) -> None:
        self.raw: list[bytes] = [] if raw is None else raw

        def default(item: Any) -> Any:
            if isinstance(item, bytes | bytearray | memoryview):
                self.raw.append(bytes(item))  # pyright: ignore[reportUnknownArgumentType] - any buffer will do
                return {BYTES_KEY: len(self.raw) - 1}
            if plain is None:
                raise TypeError(f"a {type(item).__name__} is not JSON-like: pass str, numbers, lists, dicts or bytes")
            return plain(item)

        self.text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=default)

    def check(self, limit: int) -> None:
        """ValueError when it takes more than that."""
        size = len(self.text) + sum(map(len, self.raw))
        if size > limit:
            raise ValueError(f"the value takes {size} bytes, the limit is {limit}: pass less, or in pieces")


def send(kind: int, sequence: int, fields: dict[str, Encoded], limit: int) -> None:
    """One frame of named values; ValueError, before a byte is sent, when it is over the limit."""
    raw = [piece for value in fields.values() for piece in value.raw]
    named = [f'"{name}":{value.text}' for name, value in fields.items()]
    named.append(f'"raw":{json.dumps([len(piece) for piece in raw])}')
    text = ("{" + ",".join(named) + "}").encode("utf-8", "replace")
    size = sum(map(len, raw))
    if len(text) > MOST_PARTS and sum(map(text.count, (b",", b"[", b"{"))) > MOST_PARTS:
        raise ValueError(f"the value has more than {MOST_PARTS} parts: pass less, or as bytes")
    if too_deep(text):
        raise ValueError(f"the value is nested more than {DEEPEST} deep: pass it flatter")
    for taken, most in ((len(text), TEXT_BYTES), (len(text) + size, limit)):
        if taken > most:
            raise ValueError(f"the value takes {taken} bytes, the limit is {most}: pass less, or in pieces")
    _write(b"".join((HEADER.pack(kind, sequence, len(text), size), text, *raw)))


def receive() -> Any:
    """The next message of the supervisor."""
    (length,) = LENGTH.unpack(_read(LENGTH.size))
    return marshal.loads(_read(length))  # the supervisor is trusted, and only it writes here


def _read(size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        got = os.readv(SOCKET, [view])
        if not got:
            os._exit(0)  # the supervisor has hung up
        view = view[got:]
    return data


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(SOCKET, view) :]
