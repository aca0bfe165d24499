"""Canonical forms: JSON and hashes that are the same everywhere, texts cut to size, counts in sentences.

Keys are sorted, spaces left out, UTF-8 kept, NaN and infinities refused (they are not JSON). Bytes, tuples, sets, dataclasses and dates
are not values of a run; `jsonable` turns the few that tools return into JSON-like ones.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

MOST_USD = 1e9  # of what is shown
MAX_JSON_ITEMS = 2_000_000
MOST_LEVELS = 100
ITEM_BYTES = 200
"""What an item takes when it is decoded, however short it is written; an object with one field is the largest."""
FEW_ITEMS = 10_000
"""Commas and brackets that are not worth a look at whether they stand in a string."""
CONTROLS = r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029"
"""For a class of a pattern: signs that steer a terminal or look like the end of a line. A tab, LF and CR are none of them."""
UNSEEN = (
    r"\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff"
    r"\uffa0\ufff0-\ufffb\U00013430-\U00013440\U00016fe4\U0001bca0-\U0001bca3\U0001d159\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
"""For a class of a pattern: signs that nobody sees or that turn others around. Unicode's Default_Ignorable_Code_Point and some more.
Approvals and pages write them out, masking and the search for instructions see through them.
"""
_SIGNS = (b",", b"[", b"{")
_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.?)*+"?', re.DOTALL)
_STRINGS_AND_BRACKETS = re.compile(_STRINGS.pattern + rb"|[\[\]{}]", re.DOTALL)


def canonical_json(value: Any) -> str:
    """The canonical text of a JSON-like value; ValueError for NaN, TypeError for anything that is not JSON-like."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def sha256_text(text: str) -> str:
    """Sha256 in hex of the text as UTF-8; lone surrogates are kept distinct rather than refused."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def hash_value(value: Any) -> str:
    """Sha256 of the canonical text."""
    return sha256_text(canonical_json(value))


def jsonable(value: Any) -> Any:
    """The JSON-like form of a value: tuples become lists, keys become text, bytes and others their repr."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else repr(value)
        case Mapping():
            items = cast("Mapping[Any, Any]", value)
            return {str(key): jsonable(item) for key, item in items.items()}
        case list() | tuple():
            return [jsonable(item) for item in cast("Iterable[Any]", value)]
        case set() | frozenset():
            return sorted((jsonable(item) for item in cast("Iterable[Any]", value)), key=canonical_json)
        case _:
            return repr(value)


def has_too_many_items(document: bytes | bytearray, most: int = MAX_JSON_ITEMS) -> bool:
    """Whether a JSON text would take hundreds of megabytes when it is decoded: 30 MB of `[],` take 800. Linear."""
    return sum(map(document.count, _SIGNS)) > most and items_in(document, most) > most


def items_in(document: bytes | bytearray, most: int | None = None) -> int:
    """How many values a JSON text holds. Counting stops soon after `most`. Linear."""
    found = end = 0
    # What is between two strings counts; a copy without them would take hundreds of megabytes itself.
    for text in _STRINGS.finditer(document):
        found += sum(document.count(sign, end, text.start()) for sign in _SIGNS)
        end = text.end()
        if most is not None and found > most:
            return found
    return found + sum(document.count(sign, end) for sign in _SIGNS)


def is_deep(document: bytes | bytearray) -> bool:
    """Whether values of a JSON text lie deeper than what is handed to other processes may. Linear."""
    level = 0
    for found in _STRINGS_AND_BRACKETS.finditer(document):
        level += {b"[": 1, b"{": 1, b"]": -1, b"}": -1}.get(found[0], 0)
        if level > MOST_LEVELS:
            return True
    return False


def json_value(document: bytes) -> Any:
    """The value of a JSON text from a stranger; ValueError if it is none, holds too many values or nests them too deeply."""
    if has_too_many_items(document):
        raise ValueError(f"it holds more than {MAX_JSON_ITEMS:,} values")
    if is_deep(document):
        raise ValueError(f"it is nested more than {MOST_LEVELS} levels deep")
    return json.loads(document)


def decoded_bytes(document: bytes | bytearray) -> int:
    """About how much memory a JSON text takes at most when it is decoded. A character beyond ASCII may make its text four times as long."""
    items = sum(map(document.count, _SIGNS))
    if items > FEW_ITEMS:
        items = items_in(document)
    plain = document.isascii() and b"\\u" not in document
    return items * ITEM_BYTES + len(document) * (1 if plain else 4)


def clip(text: str, limit: int) -> str:
    """The text, or its head and tail with the true length between them, never longer than `limit` (at least 40)."""
    if len(text) <= limit:
        return text
    marker = f" …[{len(text)} chars]… "
    room = max(limit - len(marker), 2)
    return text[: room - room // 3] + marker + text[len(text) - room // 3 :]


def cut(text: str, limit: int) -> str:
    """The text, or its beginning with a mark that the rest is missing; never longer than `limit`."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def plural(count: int, one: str, many: str = "") -> str:
    """`1 turn`, `2 turns`, `1 reply`, `2,000 replies`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def lapse(seconds: float) -> str:
    """`90 s`, `45 min`, `30 h`, `12 days`: how long something took or takes, for a sentence."""
    for unit, size, most in (("s", 1, 120), ("min", 60, 7_200), ("h", 3_600, 172_800)):
        if seconds < most:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:,.0f} days"


def percent(part: int, whole: int) -> str:
    """`32 %`, `3.2 %`; one spelling, so that a report does not give one share as two numbers."""
    share = 100 * part / max(1, whole)
    return f"{share:.0f} %" if share >= 10 or share == int(share) else f"{share:.1f} %"


def shown_cost(usd: float | None) -> str:
    """`$0.0123` for people; None is a cost that nobody knows. A stranger's run may name one that nobody can have: that is `$?`."""
    if usd is None:
        return "cost unknown"
    return f"${usd:.4f}" if 0 <= usd < MOST_USD else "$?"
