"""The frame decoder: any bytes give a frame or BadFrame, and forged frames end the worker only."""

from __future__ import annotations

import json
import socket
import struct
import time

import pytest
from hypothesis import given, settings, strategies as st
from watching import RAW, kind, no_strays, run

from sonde.sandbox import Limits, Sandbox
from sonde.sandbox.base import OutOfTime
from sonde.sandbox.frames import BadFrame, CallBody, Channel, DoneBody, HungUp, ReadyBody, parse_body
from sonde.sandbox.worker.channel import Encoded

LIMIT = 100_000
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["raw", "call", "report", "final", "\0bytes"]), inner)
    ),
    max_leaves=8,
)


def feed(data: bytes) -> list[object]:
    """Everything a channel makes of the data, up to the exception that ends it."""
    near, far = socket.socketpair()
    with near, far:
        far.sendall(data)
        far.close()
        channel = Channel(near, LIMIT)
        channel.deadline = time.monotonic() + 60
        got: list[object] = []
        try:
            while True:
                got.append(channel.receive())
        except (BadFrame, HungUp) as end:
            return [*got, end]


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused_or_the_end(data: bytes) -> None:
    assert isinstance(feed(data)[-1], BadFrame | HungUp)


@settings(deadline=None)
@given(st.integers(0, 255), st.integers(0, 3), json_values, st.binary(max_size=8), st.integers(0, 2**32 - 1))
def test_well_formed_lies_are_refused(kind: int, sequence: int, value: object, raw: bytes, claimed: int) -> None:
    text = json.dumps(value).encode()
    for size in (len(text), claimed):
        outcome = feed(struct.pack("<BIII", kind, sequence, size, len(raw)) + text + raw)
        assert isinstance(outcome[-1], BadFrame | HungUp)
        assert all(isinstance(body, CallBody | DoneBody | ReadyBody) for body in outcome[:-1])


@given(st.integers(1, 3), st.binary(max_size=100), st.binary(max_size=20))
def test_the_body_parser_raises_nothing_else(kind: int, text: bytes, raw: bytes) -> None:
    try:
        parse_body(kind, text, raw)
    except BadFrame:
        return


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"))
    | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(plain, max_size=3), st.dictionaries(st.text("abc", min_size=1, max_size=3), plain, max_size=3))
def test_what_a_worker_encodes_is_what_arrives(args: list[object], named: dict[str, object]) -> None:
    encoded = Encoded(["name", args, named])
    text = f'{{"call":{encoded.text},"raw":{[len(piece) for piece in encoded.raw]}}}'

    body = parse_body(1, text.encode(), b"".join(encoded.raw))

    assert isinstance(body, CallBody) and body.call == ("name", args, named)


def test_an_unfinished_frame_is_out_of_time() -> None:
    near, far = socket.socketpair()
    with near, far:
        far.sendall(struct.pack("<BIII", 1, 1, 50, 0))
        channel = Channel(near, LIMIT)
        channel.deadline = time.monotonic() + 0.1
        with pytest.raises(OutOfTime):
            channel.receive()


CALL = b'{"call":["ask",[],{}],"raw":[]}'
FORGED = {
    "unknown kind": "frame(9, 1, b'{}')",
    "kind zero": "frame(0, 1, b'{}')",
    "a new worker's report": 'frame(3, 1, b\'{"report":{},"raw":[]}\')',
    "repeated sequence": f"frame(1, 1, {CALL!r}) + frame(1, 1, {CALL!r})",
    "skipped sequence": f"frame(1, 2, {CALL!r})",
    "reordered": f"frame(1, 2, {CALL!r}) + frame(1, 1, {CALL!r})",
    "oversized": "frame(1, 1, b'', text_size=2**32 - 1)",
    "oversized raw": "frame(1, 1, b'{}', raw_size=2**31)",
    "not json": "frame(2, 1, b'nonsense')",
    "pickle": "frame(2, 1, __import__('pickle').dumps({'a': 1}))",
    "wrong shape": 'frame(2, 1, b\'{"report": 3, "raw": []}\')',
    "missing fields": "frame(2, 1, b'{}')",
    "raw lengths that lie": 'frame(1, 1, b\'{"call":["ask",[],{}],"raw":[5]}\', b\'abc\')',
    "negative raw length": 'frame(1, 1, b\'{"call":["ask",[],{}],"raw":[-3, 6]}\', b\'abc\')',
    "raw index out of range": 'frame(1, 1, b\'{"call":["ask",[{"\\\\u0000bytes":7}],{}],"raw":[3]}\', b\'abc\')',
    "deep nesting": "frame(1, 1, b'{\"call\":[\"ask\",' + b'[' * 40000 + b']' * 40000 + b',{}],\"raw\":[]}')",
    "memory in small pieces": "frame(1, 1, b'{\"call\":[\"ask\",[' + b'[],' * 5_000_000 + b'0],{}],\"raw\":[]}')",
    "done twice": "frame(2, 1, DONE) + frame(2, 2, DONE)",
    "done and trailing bytes": "frame(2, 1, DONE) + b'x'",
    "call after done": f"frame(2, 1, DONE) + frame(1, 2, {CALL!r})",
    "not utf-8": 'frame(1, 1, b\'{"call":["\\xff",[],{}],"raw":[]}\')',
}


@pytest.mark.requirement("O13")
@pytest.mark.parametrize("name", FORGED)
def test_a_forged_frame_ends_the_worker_and_hurts_nobody(name: str) -> None:
    with Sandbox("open", host=lambda name, args: 1) as box:
        run(box, "kept = 1")
        result = box.execute(RAW + f"os.write(3, {FORGED[name]})\nwhile True: pass", wall_s=5)

        assert kind(result) in {"violation", "timeout"}
        assert run(box, "print(kept)") == "1\n"
        assert no_strays(box)


def test_calls_without_a_pause_are_stopped_in_time_too() -> None:
    with Sandbox("open", host=lambda name, args: None, limits=Limits(wall_s=0.5, host_calls=10**9)) as box:
        flood = f"n = 0\nwhile True:\n    n += 1\n    os.write(3, frame(1, n, {CALL!r}))"

        assert kind(box.execute(RAW + flood)) == "timeout"


def test_a_truncated_frame_and_a_quick_death_is_a_crash() -> None:
    with Sandbox("open") as box:
        result = box.execute(RAW + "os.write(3, frame(2, 1, DONE)[:20])\nos._exit(0)")

        assert kind(result) == "crash"


def test_a_host_call_where_there_is_no_host_is_a_violation() -> None:
    with Sandbox("open") as box:
        assert kind(box.execute(RAW + f"os.write(3, frame(1, 1, {CALL!r}))\nwhile True: pass")) == "violation"
