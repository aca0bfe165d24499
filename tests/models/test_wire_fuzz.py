"""Whatever a server sends, reading it ends in a completion or in an error that says so."""

from __future__ import annotations

import itertools
import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, strategies as st

from sonde.models.completion import ChatCompletion, ErrorInBody, NotACompletion, read_completion, read_stream
from sonde.models.http_errors import error_detail, refused_parameter, retry_after

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
KEYS = st.sampled_from(
    [
        "choices",
        "delta",
        "message",
        "content",
        "finish_reason",
        "usage",
        "error",
        "model",
        "id",
        "text",
        "code",
        "param",
        "refusal",
        "prompt_tokens",
        "completion_tokens",
        "prompt_tokens_details",
        "cached_tokens",
    ]
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)
BODIES = VALUES.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=60)


def read(chunks: list[bytes]) -> tuple[ChatCompletion, list[str]]:
    completion, pieces = ChatCompletion(), list[str]()
    read_stream(chunks, completion, pieces.append)
    return completion, pieces


@given(body=BODIES)
def test_any_body_is_a_completion_or_a_known_error(body: bytes) -> None:
    completion = ChatCompletion()
    with suppress(NotACompletion, ErrorInBody):
        read_completion(body, completion)
    completion.text.encode()


@given(bodies=st.lists(BODIES, max_size=4), done=st.booleans())
def test_any_stream_is_a_completion_or_a_known_error(bodies: list[bytes], done: bool) -> None:
    stream = b"".join(b"data: " + body + b"\n\n" for body in bodies) + (b"data: [DONE]\n" if done else b"")
    completion, pieces = ChatCompletion(), list[str]()
    with suppress(NotACompletion, ErrorInBody):
        read_stream([stream], completion, pieces.append)
    completion.text.encode()


@given(text=st.text(), cuts=st.lists(st.integers(0, 400), max_size=8))
def test_a_stream_reads_alike_however_the_network_cuts_it(text: str, cuts: list[int]) -> None:
    chosen: dict[str, Any] = {"choices": [{"delta": {"content": text}, "finish_reason": "stop"}]}
    stream = b"data: " + json.dumps(chosen).encode() + b"\r\n\r\ndata: [DONE]\r\n\r\n"
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    chunks = [stream[start:end] for start, end in itertools.pairwise(edges)]

    assert read(chunks)[0].text == text


def test_a_character_that_comes_in_two_halves_is_whole() -> None:
    halves = [rb'{"choices": [{"delta": {"content": "\ud83d"}}]}', rb'{"choices": [{"delta": {"content": "\ude00!"}}]}']
    completion, pieces = read([b"data: " + half + b"\n\n" for half in halves] + [b"data: [DONE]\n\n"])

    assert completion.text == "\U0001f600!"
    assert all(piece.encode() for piece in pieces)


def test_a_body_nested_without_end_is_no_crash() -> None:
    with pytest.raises(NotACompletion):
        read_completion(b"[" * 200_000, ChatCompletion())
    with pytest.raises(NotACompletion):
        read([b'data: {"a":' + b"[" * 200_000 + b"\n"])


@given(body=BODIES, wish=st.text(max_size=30))
def test_any_refusal_can_be_told(body: bytes, wish: str) -> None:
    from datetime import UTC, datetime

    assert len(error_detail(body)) <= 500
    assert refused_parameter(body, ["temperature", "response_format"]) in {None, "temperature", "response_format"}
    pause = retry_after({"retry-after": wish}, datetime.now(UTC))
    assert pause is None or pause >= 0


@pytest.mark.parametrize(
    "values",
    [
        b"[]," * 1_100_000 + b"[]",
        pytest.param(b'{"":{}},' * 1_100_000 + b"{}", marks=pytest.mark.long),
        b"0," * 2_000_001 + b"0",
    ],
)
def test_a_reply_of_millions_of_values_is_refused_before_it_takes_memory(values: bytes) -> None:
    body = b'{"choices": [' + values + b"]}"

    with pytest.raises(NotACompletion, match="too many values"):
        read_completion(body, ChatCompletion())
    with pytest.raises(NotACompletion, match="too many values"):
        read_stream([b"data: " + body + b"\n"], ChatCompletion(), lambda _: None)


def test_a_long_text_full_of_signs_is_no_bomb() -> None:
    completion = ChatCompletion()
    text = "[{," * 1_000_000 + '\\"'

    read_completion(json.dumps({"choices": [{"message": {"content": text}}]}).encode(), completion)

    assert completion.text == text
