"""Reads what servers call a chat completion, whole or as a stream, tolerating what they do differently.

Tolerated: missing or wrong usage, chunks without choices, null deltas, content as a list of parts, comments and
keep-alives, a stream without `[DONE]`. Not tolerated: a stream that ends before the reply did, because half a program
must not run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from sonde.core.canonical import clip, has_too_many_items
from sonde.models.base import OnText, TokenUsage, mend

MAX_BODY_BYTES = 32 * 1024 * 1024
MAX_ERROR_BYTES = 1024 * 1024
SEEN_BYTES = 4096
MAX_TOKENS = 10**12
NAME_CHARS = 200
"""Of a name that a server chooses (model, id, reason of the end): each is recorded with every reply."""


class NotACompletion(Exception):
    """The body is something else. `cut` says that it was one as far as it went; `seen` is how it begins."""

    def __init__(self, message: str, *, cut: bool = False, seen: bytes = b"") -> None:
        super().__init__(message)
        self.cut = cut
        self.seen = seen[:SEEN_BYTES]

    def told(self, clean: Callable[[str], str]) -> str:
        """What is wrong, with a glimpse of what came; `clean` removes keys before the cut: half a key would no longer be found."""
        glimpse = clean(self.seen.decode("utf-8", "replace"))[:80]
        return f"{self}: {glimpse!r}" if glimpse else str(self)


class ErrorInBody(Exception):
    """A status of 200 around an error object, as some gateways send it."""

    def __init__(self, error: object) -> None:
        super().__init__("error in body")
        self.error = error


@dataclass(slots=True, kw_only=True)
class ChatCompletion:
    """What has been read so far."""

    pieces: list[str] = field(default_factory=list[str])
    finish_reason: str | None = None
    usage: TokenUsage | None = None
    model: str | None = None
    request_id: str | None = None
    done: bool = False

    @property
    def text(self) -> str:
        return mend("".join(self.pieces))


def read_completion(body: bytes, completion: ChatCompletion) -> None:
    """Fill `completion` from one whole body."""
    if has_too_many_items(body):
        raise NotACompletion("the body holds too many values", seen=body)
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise NotACompletion("the body is not JSON", seen=body) from None
    if not isinstance(value, dict):
        raise NotACompletion("the body is not an object", seen=body)
    document = cast("dict[str, Any]", value)
    choice = _take(completion, document)
    if choice is None:
        raise NotACompletion("the body has no choices", seen=body)
    completion.pieces.append(_content(choice.get("message")) or str(choice.get("text") or ""))
    completion.done = True


def read_stream(chunks: Iterable[bytes], completion: ChatCompletion, on_text: OnText) -> None:
    """Fill `completion` from server-sent events, passing each piece to `on_text`."""
    for line in _lines(chunks):  # an event is one data line in this protocol
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            completion.done = True
            break
        if not data.startswith(b"{"):
            continue  # a keep-alive
        if has_too_many_items(data):
            raise NotACompletion("an event of the stream holds too many values", seen=data)
        try:
            event = cast("dict[str, Any]", json.loads(data))
        except (ValueError, RecursionError):
            raise NotACompletion("an event of the stream is not JSON", cut=True, seen=data) from None
        choice = _take(completion, event)
        if choice is not None and (piece := _content(choice.get("delta") or choice.get("message"))):
            completion.pieces.append(piece)
            on_text(mend(piece))
    if not completion.done and completion.finish_reason is None:
        raise NotACompletion("the stream ended in the middle of the reply", cut=True)


def _take(completion: ChatCompletion, document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Take over everything but the text; return the first choice, if any."""
    if document.get("error"):
        raise ErrorInBody(document["error"])
    completion.usage = read_usage(document.get("usage")) or completion.usage
    completion.model = _string(document.get("model")) or completion.model
    completion.request_id = _string(document.get("id")) or completion.request_id
    choices = document.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return None
    choice = cast("Mapping[str, Any]", choices[0])
    completion.finish_reason = _string(choice.get("finish_reason")) or completion.finish_reason
    return choice


def read_usage(value: object) -> TokenUsage | None:
    """The counts, or None when they are missing or cannot be true."""
    if not isinstance(value, Mapping):
        return None
    usage = cast("Mapping[str, Any]", value)
    sent, got = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if type(sent) is not int or type(got) is not int or not (0 < sent < MAX_TOKENS and 0 <= got < MAX_TOKENS):
        return None  # true and false are ints to Python
    details = usage.get("prompt_tokens_details")
    cached = cast("Mapping[str, Any]", details).get("cached_tokens") if isinstance(details, Mapping) else None
    if type(cached) is not int:
        cached = usage.get("prompt_cache_hit_tokens")  # DeepSeek's name for it
    return TokenUsage(sent, got, cached_in=min(max(cached, 0), sent) if type(cached) is int else 0)


def _content(message: object) -> str:
    """The text of a message or delta; a list of parts is joined, a refusal is a text too."""
    if not isinstance(message, Mapping):
        return ""
    fields = cast("Mapping[str, Any]", message)
    content = fields.get("content") or fields.get("refusal") or ""
    if isinstance(content, list):
        parts = cast("list[object]", content)
        return "".join(
            str(cast("Mapping[str, Any]", part).get("text") or "") for part in parts if isinstance(part, dict)
        )
    return str(content)


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    rest: list[bytes] = []
    for chunk in chunks:
        *whole, last = chunk.split(b"\n")
        for line in whole:
            yield b"".join([*rest, line])
            rest.clear()
        rest.append(last)
    yield b"".join(rest)


def _string(value: object) -> str | None:
    return clip(value, NAME_CHARS) if isinstance(value, str) else None
