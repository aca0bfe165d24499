"""Canonical attributes: one flat table of dotted keys, equal whether they came through Phoenix or straight from a file.

Phoenix parses a few attributes that hold JSON text, explodes nested values into dotted keys, renumbers lists whose indices have gaps and
turns token counts into integers. We do the same to every source, so the results meet, except for what Phoenix drops without a word:
values beside an object in a list are kept. Gaps say what was lost on the way: cut values, renumbered indices, the first of two values
under one name. Nothing is executed or followed; whatever a trace says is data.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, cast

from sonde.contexts.traces.genai import LARGEST, maybe_json, openinference_of

MAX_VALUE_CHARS = 8 * 1024 * 1024
MAX_ATTRIBUTES = 20_000
MAX_KEY_CHARS = 1000
MAX_NAMES_CHARS = 2_000_000  # all names of one table; those below a long name repeat it
SHOWN_KEY_CHARS = 120  # of a key, in a gap
MAX_INDICES = 10  # in one key; later ones are only part of its name
MAX_GAPS = 100  # of one kind, in one span
MAX_DEPTH = 40
MAX_DOTS = 2 * MAX_DEPTH  # a key with more is only a name, and stays as it is
KIND_KEY = "openinference.span.kind"
JSON_TEXT = ("document.metadata", "llm.prompt_template.variables", "metadata", "tool.parameters")
TOKEN_COUNTS = "llm.token_count."
_INDEX = re.compile(r"\.\d+\.")
_ODD_KEY = re.compile(r"\s|\.\.|^\.|\.$|(?:^|\.)0\d|[^\x00-\x7f]")
_SCALARS = (str, int, bool)


@dataclass(slots=True)
class _Flat:
    """A table under construction and what went wrong with it."""

    table: dict[str, Any] = field(default_factory=dict[str, Any])
    gaps: list[str] = field(default_factory=list[str])
    names: int = 0
    indexed: bool = False
    genai: bool = False
    full: bool = False

    def add(self, key: str, value: Any, depth: int = 0) -> None:
        """Put one value, however deep, under its dotted key."""
        key = key[: MAX_KEY_CHARS + 1]  # one more than is kept, by which `_set` knows that it was cut
        match value:
            case None:
                return
            case str():
                if key.endswith(JSON_TEXT) and value and not value.isspace() and len(value) <= MAX_VALUE_CHARS:
                    parsed = maybe_json(value)
                    if parsed != value:
                        self.add(key, parsed, depth + 1)
                        return
                if len(value) > MAX_VALUE_CHARS:
                    self._tell(f"attribute {_short(key)} was cut from {len(value)} to {MAX_VALUE_CHARS} characters")
                    value = value[:MAX_VALUE_CHARS]
                self._set(key, _count(value) if key.startswith(TOKEN_COUNTS) else value)
            case Mapping() if depth > MAX_DEPTH:
                self._tell(f"attribute {_short(key)} is nested deeper than {MAX_DEPTH} levels and was left out")
                self._set(key, f"[nested {type(cast('Any', value)).__name__} left out]")
            case Mapping():
                for name, item in cast("Mapping[Any, Any]", value).items():
                    if self.full:
                        return
                    self.add(f"{key}.{name}", item, depth + 1)
            case list() | tuple():
                items = list(cast("Iterable[Any]", value))
                if not any(isinstance(item, Mapping) for item in items):
                    self._set(key, _plain(items))
                    return
                for index, item in enumerate(items):
                    if self.full:
                        return
                    self.add(f"{key}.{index}", item if isinstance(item, Mapping) else {"value": item}, depth + 1)
            case _:
                self._set(key, _count(value) if key.startswith(TOKEN_COUNTS) else _scalar(value))

    def _set(self, key: str, value: Any) -> None:
        if len(self.table) >= MAX_ATTRIBUTES:
            if not self.full:
                self.gaps.append(f"attributes were left out beyond the first {MAX_ATTRIBUTES}")
            self.full = True
            return
        self.names += len(key)
        if self.names > MAX_NAMES_CHARS:
            if not self.full:
                self.gaps.append(
                    f"attributes were left out whose names have more than {MAX_NAMES_CHARS} characters together"
                )
            self.full = True
            return
        if len(key) > MAX_KEY_CHARS:
            self._tell(f"the name of attribute {_short(key)} was cut to {MAX_KEY_CHARS} characters")
            key = key[:MAX_KEY_CHARS]
        known = _known(key)
        self.indexed = self.indexed or bool(known.indices)
        self.genai = self.genai or known.genai
        if known.clean in self.table and self.table[known.clean] != value:
            self._tell(f"attribute {_short(known.clean)} was given more than once; only the last value was kept")
        self.table[known.clean] = value

    def _tell(self, gap: str) -> None:
        if len(self.gaps) < MAX_GAPS:
            self.gaps.append(gap)
        elif len(self.gaps) == MAX_GAPS:
            self.gaps.append("more attributes were cut or left out than are listed here")


def canonical_attributes(raw: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The flat table of a span's attributes and the gaps found on the way. The kind stays under its own key."""
    flat = _Flat()
    for key, value in raw.items():
        flat.add(key, value)
    if flat.genai:
        for key, value in openinference_of(flat.table).items():
            flat.add(key, value)
    value = flat.table.get("input.value")
    if value and not isinstance(value, str):  # Phoenix shows such an input as JSON text
        flat.table |= {"input.value": json.dumps(value), "input.mime_type": "application/json"}
    if not flat.indexed:
        return flat.table, flat.gaps
    seen: dict[str, set[int]] = {}
    for key in flat.table:
        for prefix, index in _known(key).indices:
            seen.setdefault(prefix, set()).add(index)
    ranks: dict[str, dict[int, int]] = {}  # list indices without holes; each list that had some becomes a gap
    for prefix, indices in sorted(seen.items()):
        if max(indices) != len(indices) - 1:
            ranks[prefix] = {index: rank for rank, index in enumerate(sorted(indices))}
            shown = f"{len(indices)} items kept of indices {min(indices)}..{max(indices)}"
            if len(ranks) <= MAX_GAPS:
                flat.gaps.append(f"{prefix}: {shown}; the others were dropped by the source")
    if not ranks:
        return flat.table, flat.gaps
    if len(ranks) > MAX_GAPS:
        flat.gaps.append(f"{len(ranks) - MAX_GAPS} more lists have indices that were dropped by the source")
    renumbered: dict[str, Any] = {}
    for key, value in flat.table.items():
        pieces: list[str] = []
        at = 0
        for prefix, index in _known(key).indices:
            rank = ranks.get(prefix, {}).get(index)
            if rank is not None:
                begin = len(prefix) + 1
                pieces += [key[at:begin], str(rank)]
                at = key.index(".", begin)
        renumbered["".join([*pieces, key[at:]])] = value
    return renumbered, flat.gaps


class _KnownKey(NamedTuple):
    """What a key says by itself. The same few keys come with every span, so this is remembered."""

    clean: str
    indices: tuple[tuple[str, int], ...]
    genai: bool


@lru_cache(maxsize=8192)
def _known(key: str) -> _KnownKey:
    if _ODD_KEY.search(key):
        parts = [part.strip() for part in key.split(".")]
        key = ".".join(str(int(part)) if part.isdecimal() else part for part in parts if part) or key
    if key.count(".") > MAX_DOTS:
        return _KnownKey(key, (), genai=False)
    indices: list[tuple[str, int]] = []
    start = 0
    while len(indices) < MAX_INDICES and (match := _INDEX.search(key, start)) is not None:
        indices.append((key[: match.start()], int(match.group()[1:-1])))
        start = match.end() - 1  # from the closing dot on: in `a.0.1.b` two indices share one
    return _KnownKey(key, tuple(indices), key.startswith("gen_ai."))


def _short(key: str) -> str:
    """The key as it is kept, in short."""
    key = _known(key[:MAX_KEY_CHARS]).clean
    return key if len(key) <= SHOWN_KEY_CHARS else f"{key[:SHOWN_KEY_CHARS]}…"


def _count(value: Any) -> Any:
    """A whole number, from text too, and from the floats that data frames make of whole numbers."""
    try:
        return _scalar(int(value) if not isinstance(value, float) or value.is_integer() else value)
    except ValueError:
        return value


def _scalar(value: Any) -> Any:
    if isinstance(value, int) and abs(value) > LARGEST:
        return str(value)  # more than 64 bits: neither the index nor OTLP holds it
    if isinstance(value, _SCALARS):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    return str(value)


def _plain(value: Any) -> Any:
    """A list of plain values, as JSON can hold it."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in cast("Iterable[Any]", value)]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    return None if value is None else _scalar(value)
