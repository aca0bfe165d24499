"""Removes what must not be written or shown, for journals, messages, errors and exports.

Known key values are found in every spelling in which they turn up: plain, in a URL, in base64, in a JSON text (`secret_forms`). Only an
export with `--redact` also loses what merely looks like a secret, by pattern (`redact_text`, `redact_value`). Text that UTF-8 cannot
hold is made writable.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import quote, quote_plus

import msgspec

from sonde.core.events import Event, as_dict, encode
from sonde.core.markdown_safety import words

REMOVED = "[key removed]"
SHORTEST_SECRET = 8  # "none", "test" or "ollama" are dummies; removing such words would falsify the content
REDACTED = "[redacted]"

SECRETS: Sequence[re.Pattern[str]] = [
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"),
    re.compile(r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{16,}"),
    re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,}|glpat-[A-Za-z0-9_-]{16,})"),
    re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    re.compile(r"\bAIza[A-Za-z0-9_-]{30,}"),
    re.compile(r"\bxox[abposr]-[A-Za-z0-9-]{10,}"),
    re.compile(r"\bhf_[A-Za-z0-9]{30,}"),
    re.compile(r"\beyJ[A-Za-z0-9_-]{8,2000}\.[A-Za-z0-9_-]{8,20000}\.[A-Za-z0-9_-]{8,}"),  # bounded: else quadratic
    re.compile(r"(?i)(?<=bearer )[A-Za-z0-9._~+/=-]{12,}"),
    re.compile(r"(?<=://)[^\s/:@'\"]{1,100}:[^\s/@'\"]{1,200}(?=@)"),
]
"""What is removed wherever it is."""

_NAMED = re.compile(
    r"""(?i)((?:password|passwd|secret|token|api[_-]?key|access[_-]?key|client[_-]?secret)["']?\s{0,4}[:=]\s{0,4}["']?)([^\s"',;]{4,})"""
)
"""A value after a telling name; the name stays."""

_TELLING = re.compile(r"(?i)(?:password|passwd|secret|token|api[_-]?key|access[_-]?key|authorization)$")
"""Names of fields whose whole text is removed."""


@dataclass(frozen=True, slots=True)
class SecretForms:
    """Key values in every spelling in which they turn up, longest first so that no part of one stays behind."""

    spellings: tuple[str, ...]
    encoded: tuple[bytes, ...]

    def remove(self, text: str) -> str:
        """The text without them."""
        for spelling in self.spellings:
            text = text.replace(spelling, REMOVED)
        return text


def secret_forms(secrets: Sequence[str]) -> SecretForms:
    """The spellings of these values: plain, in a URL, in base64, inside a JSON text."""
    found: set[str] = set()
    for secret in secrets:
        if len(secret) >= SHORTEST_SECRET:
            raw = secret.encode("utf-8", "surrogateescape")  # a variable of the environment need not be UTF-8
            plain = base64.b64encode(raw).decode()
            found |= {secret, quote(raw, safe=""), quote(raw), quote_plus(raw), plain.rstrip("=")}
            found |= {_quoted(secret), json.dumps(secret)[1:-1], words(secret)}
    spellings = tuple(sorted(found, key=lambda spelling: (-len(spelling), spelling)))
    return SecretForms(spellings, tuple(_quoted(spelling).encode() for spelling in spellings))


def _quoted(text: str) -> str:
    return msgspec.json.encode(without_surrogates(text)).decode()[1:-1]


def encodable(event: Event) -> tuple[Event, bytes]:
    """The event in a form that UTF-8 can hold, and its line: code can print a lone surrogate, a file cannot hold one."""
    try:
        return event, encode(event)
    except UnicodeEncodeError:
        event = rewrite_text(event, without_surrogates)
        return event, encode(event)


def clean_value(value: Any, forms: SecretForms) -> Any:
    """Plain data as an event that carries it will be written; the same object when nothing has to be removed."""
    try:
        line = msgspec.json.encode(value)
    except UnicodeEncodeError:
        value = rewrite_value(value, without_surrogates)
        line = msgspec.json.encode(value)
    return rewrite_value(value, forms.remove) if any(form in line for form in forms.encoded) else value


def is_same_but_for_keys(text: str, recorded: str) -> bool:
    """Whether this text, from a replay that may not know the keys, is the recorded one before they were removed."""
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


def without_surrogates(text: str) -> str:
    """The text with lone surrogates, which UTF-8 cannot hold, written as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def redact_text(text: str) -> str:
    """The text without what looks like a secret."""
    for pattern in SECRETS:
        text = pattern.sub(REDACTED, text)
    return _NAMED.sub(rf"\g<1>{REDACTED}", text)


def redact_value(value: Any, kept: Sequence[str] = ()) -> Any:
    """Plain data without what looks like a secret, and without the texts under a telling name. `kept` fields stay as they are."""
    if isinstance(value, list):
        return [redact_value(item) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return redact_text(value) if isinstance(value, str) else value
    clean: dict[Any, Any] = {}
    for name, item in cast("dict[Any, Any]", value).items():
        telling = isinstance(item, str) and _TELLING.search(str(name))
        shown = REDACTED if telling else redact_value(item)
        clean[redact_text(name) if isinstance(name, str) else name] = item if name in kept else shown
    return clean
