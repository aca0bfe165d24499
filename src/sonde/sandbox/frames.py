"""The supervisor's end of the private socket. What comes from a worker is data to doubt, parsed by msgspec, never unpickled.

Promises that any byte string a worker can send gives either a frame or `BadFrame`, in memory bounded by the frame limit. What
goes to the worker is marshal, which the standard library reads fast.
"""

from __future__ import annotations

import marshal
import select
import socket
import time
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Annotated, Any, cast

import msgspec

from sonde.sandbox.base import OutOfTime
from sonde.sandbox.worker.channel import (
    BYTES_KEY,
    CALL,
    DEEPEST,
    DONE,
    HEADER,
    LENGTH,
    MOST_PARTS,
    READY,
    TEXT_BYTES,
    too_deep,
)

TICK_S = 0.05


class BadFrame(Exception):
    """The worker spoke out of turn; whatever it says from here on is not believed."""


class HungUp(Exception):
    """The worker's end is closed: it died, or closed it."""


Count = Annotated[int, msgspec.Meta(ge=-1, le=1 << 53)]
"""No length is larger. Without a bound, an integer may have 4,300 digits here: too large for whoever adds it or writes it down."""


class Stream(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    head: str
    tail: str
    total: Count
    lines: Count


class FaultReport(msgspec.Struct):
    kind: str
    message: str
    line: Count | None
    hint: str | None
    traceback: str


class TurnReport(msgspec.Struct):
    """What a worker says about a turn it finished."""

    out: Stream
    err: Stream
    fault: FaultReport | None
    variables: list[tuple[str, str, Count]]
    rebound: list[str]
    names: list[str] = []


class Readiness(msgspec.Struct):
    """What a fresh worker says before any code has run in it."""

    layers: list[str] = []
    missing: list[str] = []
    error: str = ""


class CallBody(msgspec.Struct):
    call: tuple[str, list[Any], dict[str, Any]]
    raw: list[int]


class DoneBody(msgspec.Struct):
    report: TurnReport
    raw: list[int]
    final: tuple[Any] | None = None


class ReadyBody(msgspec.Struct):
    report: Readiness
    raw: list[int]


Body = CallBody | DoneBody | ReadyBody
_decoders: dict[int, msgspec.json.Decoder[Any]] = {
    CALL: msgspec.json.Decoder(CallBody),
    DONE: msgspec.json.Decoder(DoneBody),
    READY: msgspec.json.Decoder(ReadyBody),
}


def parse_header(header: bytes, sequence: int, limit: int) -> tuple[int, int, int]:
    """(kind, length of JSON, length of raw bytes), each of them checked."""
    kind, given, text, raw = HEADER.unpack(header)
    if kind not in _decoders:
        raise BadFrame(f"unknown kind of frame {kind}")
    if given != sequence:
        raise BadFrame(f"frame {given} came where {sequence} was due")
    most = limit + TEXT_BYTES if kind == DONE else limit  # a report has limits of its own beside its final value
    if text + raw > most:
        raise BadFrame(f"a frame of {text + raw} bytes; the limit is {limit}")
    if text > TEXT_BYTES:
        raise BadFrame(f"{text} bytes of JSON in a frame; the limit is {TEXT_BYTES}")
    return kind, text, raw


def parse_body(kind: int, text: bytes | memoryview, raw: bytes | memoryview) -> Body:
    """The body of a frame, with its raw bytes put where the JSON refers to them."""
    if len(text) > MOST_PARTS and sum(map(bytes(text).count, (b",", b"[", b"{"))) > MOST_PARTS:
        raise BadFrame(f"a value of more than {MOST_PARTS} parts")
    if too_deep(bytes(text)):
        raise BadFrame(f"a value nested more than {DEEPEST} deep")
    try:
        body: Body = _decoders[kind].decode(text)
        if any(length < 0 for length in body.raw) or sum(body.raw) != len(raw):
            raise ValueError("the raw bytes do not match their lengths")  # noqa: TRY301 - told as those of the decoder, below
        if body.raw:
            # Each piece goes to one place, in order: a piece named a million times would be terabytes to whoever writes it down.
            ends = zip(accumulate(body.raw), body.raw, strict=True)
            pieces = enumerate(bytes(raw[end - length : end]) for end, length in ends)
            if isinstance(body, CallBody):
                name, args, named = body.call
                body.call = (name, _with_bytes(args, pieces), _with_bytes(named, pieces))
            elif isinstance(body, DoneBody) and body.final is not None:
                body.final = (_with_bytes(body.final[0], pieces),)
            if next(pieces, None) is not None:
                raise ValueError("raw bytes that nothing refers to")  # noqa: TRY301 - as above
    except (msgspec.MsgspecError, RecursionError, ValueError, IndexError, TypeError) as error:
        raise BadFrame(f"unreadable frame: {str(error)[:200]}") from None
    return body


def _with_bytes(value: Any, pieces: Iterator[tuple[int, bytes]]) -> Any:
    if isinstance(value, list):
        return [_with_bytes(each, pieces) for each in cast("list[Any]", value)]
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        if fields.keys() == {BYTES_KEY}:
            index, piece = next(pieces, (None, b""))
            if fields[BYTES_KEY] != index:
                raise ValueError("raw bytes out of order")
            return piece
        return {key: _with_bytes(each, pieces) for key, each in fields.items()}
    return value


def encode(value: Any) -> bytes:
    """A message for the worker; ValueError or TypeError when the value is not JSON-like or bytes."""
    try:
        body = marshal.dumps(value, 4)
    except ValueError:
        body = marshal.dumps(as_data(value), 4)
    return LENGTH.pack(len(body)) + body


def as_data(value: Any) -> Any:
    """Dataclasses as dicts, dates as text, and so on; ValueError or TypeError when there is no such form."""
    try:
        return msgspec.to_builtins(value, builtin_types=(bytes, bytearray))
    except RecursionError:
        raise ValueError("the value is nested too deeply") from None


class Channel:
    """The socket of one worker process, for one turn."""

    def __init__(self, wire: socket.socket, limit: int, on_tick: Callable[[], None] | None = None) -> None:
        wire.setblocking(False)
        self._wire = wire
        self._limit = limit
        self.on_tick = on_tick
        self._buffer = bytearray()
        self._poll = select.poll()
        self._poll.register(wire, select.POLLIN)
        self.sequence = 0
        self.deadline = float("inf")
        self._next_tick = time.monotonic() + TICK_S

    def receive(self) -> Body:
        """The next frame in order; HungUp, OutOfTime or BadFrame otherwise."""
        self._look()  # also for a worker that never lets us wait
        self.sequence += 1
        header = self._take(HEADER.size)
        kind, text, raw = parse_header(header, self.sequence, self._limit)
        data = self._take(text + raw)
        return parse_body(kind, memoryview(data)[:text], memoryview(data)[text:])

    def send(self, data: bytes) -> None:
        """All of it, while the deadline lasts."""
        view = memoryview(data)
        while view:
            try:
                view = view[self._wire.send(view) :]
            except BlockingIOError:
                self._wait(select.POLLOUT)
            except OSError:
                raise HungUp from None

    def drained(self) -> bool:
        """Has the worker said nothing beyond what was received?"""
        try:
            return not self._buffer and not self._wire.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False

    def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            try:
                data = self._wire.recv(min(max(size - len(self._buffer), 65536), 1 << 20))
            except BlockingIOError:
                self._wait(select.POLLIN)
                continue
            except OSError:
                raise HungUp from None
            if not data:
                raise HungUp
            self._buffer += data
            self._look()
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    def _wait(self, event: int) -> None:
        self._poll.modify(self._wire, event)
        while not self._poll.poll(min(self._look(), TICK_S) * 1000 + 0.5):
            pass

    def _look(self) -> float:
        """The seconds that are left, or OutOfTime; a tick when one is due."""
        now = time.monotonic()
        if now >= self.deadline:
            raise OutOfTime
        if now >= self._next_tick:
            self._next_tick = now + TICK_S
            if self.on_tick is not None:
                self.on_tick()
        return self.deadline - now

    def close(self) -> None:
        self._wire.close()
