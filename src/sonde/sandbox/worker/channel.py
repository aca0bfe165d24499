"""The worker's end of the private socket, and the format of a frame, which the supervisor's `frames` reads from here.

Promises to send whole frames in order. The supervisor relies on nothing of that: it checks every frame as if it were forged.

    out   kind (1) · sequence (4) · length of JSON (4) · length of raw bytes (4) · JSON · raw bytes
    in    length (8) · marshal
"""

from __future__ import annotations

import json
import marshal
import os
import struct
from collections.abc import Callable
from itertools import accumulate, count
from operator import sub
from typing import Any

SOCKET = 3
CALL, DONE, READY = 1, 2, 3
HEADER = struct.Struct("<BIII")
LENGTH = struct.Struct("<Q")
TEXT_BYTES = 16 << 20
"""Most JSON in one frame, whatever its limit: the supervisor may need twenty bytes of lists for each byte. Raw bytes cost no more."""
MOST_PARTS = 2_000_000
"""Most commas and brackets in that JSON: each may become an object of the supervisor, and millions of them take it seconds."""
BYTES_KEY = "\0bytes"
"""A JSON object with this one key stands for the raw bytes of that index; generated code may not use it as a key."""
DEEPEST = 200
"""Lists in lists in a frame. Answers have ten; at some hundreds, code that follows a value down runs out of stack."""
PEELED = 4
"""Levels that most values have; removing them whole is faster than counting them."""
NEITHER = bytes(set(range(256)) - set(b'[]{}"'))
SQUARE = bytes.maketrans(b"{}", b"[]")
STEPS = bytes.maketrans(b"[]", b"\2\0")
"""Up and down, one too high each: a byte cannot be negative."""

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
    view = memoryview(b"".join((HEADER.pack(kind, sequence, len(text), size), text, *raw)))
    while view:
        view = view[os.write(SOCKET, view) :]


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


def too_deep(text: bytes) -> bool:
    """Is this JSON nested deeper than DEEPEST? Found without recursion: whoever takes a value apart later has a stack to lose."""
    if text.count(b"[") + text.count(b"{") <= DEEPEST:
        return False
    if b"\\" in text:
        text = text.replace(rb"\\", b"").replace(rb"\"", b"")
    marks = text.translate(SQUARE, NEITHER).replace(b'""', b"")
    brackets = b"".join(marks.split(b'"')[::2])  # those outside of strings
    for _ in range(PEELED):
        brackets = brackets.replace(b"[]", b"")
    return max(map(sub, accumulate(brackets.translate(STEPS)), count(1)), default=0) > DEEPEST - PEELED
