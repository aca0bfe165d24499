"""Events made fit to be written: without the known values of keys, and without text that UTF-8 cannot hold.

Values are found in the spellings in which they turn up: as they are, in a URL, in base64, in a JSON text. Nothing else is touched; taking
out what merely looks like a secret is for exports.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import quote, quote_plus

import msgspec

from sonde.core.events import Event, as_dict, encode

REMOVED = "[key removed]"
SHORTEST_SECRET = 8  # "none", "test" or "EMPTY" are dummies; taking such words out of content would falsify it


@dataclass(frozen=True, slots=True)
class SecretForms:
    """Key values in the spellings in which they turn up, longest first so that no part of one stays behind."""

    spellings: tuple[str, ...]
    encoded: tuple[bytes, ...]

    def remove(self, text: str) -> str:
        """The text without them."""
        for spelling in self.spellings:
            text = text.replace(spelling, REMOVED)
        return text


def secret_forms(secrets: Sequence[str]) -> SecretForms:
    """The spellings of these values: as they are, in a URL, in base64, inside a JSON text."""
    found: set[str] = set()
    for secret in secrets:
        if len(secret) >= SHORTEST_SECRET:
            raw = secret.encode("utf-8", "surrogateescape")  # a variable of the environment need not be UTF-8
            plain = base64.b64encode(raw).decode()
            found |= {secret, quote(raw, safe=""), quote(raw), quote_plus(raw), plain.rstrip("=")}
            found |= {_quoted(secret), json.dumps(secret)[1:-1]}
    spellings = tuple(sorted(found, key=lambda spelling: (-len(spelling), spelling)))
    return SecretForms(spellings, tuple(_quoted(spelling).encode() for spelling in spellings))


def _quoted(text: str) -> str:
    return msgspec.json.encode(_without_surrogates(text)).decode()[1:-1]


def encodable(event: Event) -> tuple[Event, bytes]:
    """The event in a form that UTF-8 can hold, and its line: code can print a lone surrogate, a file cannot hold one."""
    try:
        return event, encode(event)
    except UnicodeEncodeError:
        event = rewrite_text(event, _without_surrogates)
        return event, encode(event)


def clean_value(value: Any, forms: SecretForms) -> Any:
    """Plain data as an event that carries it will be written; the same object when there is nothing to take out."""
    try:
        line = msgspec.json.encode(value)
    except UnicodeEncodeError:
        value = rewrite_value(value, _without_surrogates)
        line = msgspec.json.encode(value)
    return rewrite_value(value, forms.remove) if any(form in line for form in forms.encoded) else value


def is_same_but_for_keys(text: str, recorded: str) -> bool:
    """Whether this text, of a replay that may not know the keys, is the recorded one before they were taken out."""
    at = 0
    for piece in recorded.split(REMOVED):
        at = text.find(piece, at)
        if at < 0:
            return False
        at += len(piece)
    return True


def rewrite_text(event: Event, change: Callable[[str], str]) -> Event:
    """The event with every text in it changed, keys of free data included; its type stays."""
    fields = {name: value if name == "type" else rewrite_value(value, change) for name, value in as_dict(event).items()}
    return msgspec.convert(fields, type(event))


def rewrite_value(value: Any, change: Callable[[str], str]) -> Any:
    """Plain data with every text in it changed, keys included."""
    match value:
        case str():
            return change(value)
        case dict():
            return {
                rewrite_value(key, change): rewrite_value(item, change)
                for key, item in cast("dict[Any, Any]", value).items()
            }
        case list() | tuple():
            return [rewrite_value(item, change) for item in cast("Sequence[Any]", value)]
        case _:
            return value


def _without_surrogates(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
