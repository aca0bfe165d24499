"""Canonical attributes: one flat table of dotted keys, equal whether they came through Phoenix or straight from a file.

Phoenix parses a few attributes that hold JSON text, explodes nested values into dotted keys, renumbers lists whose indices have gaps and
turns token counts into integers. We do the same to every source, so the results meet. What is lost on the way is told as gaps: cut values,
renumbered indices, text that was not Unicode. Nothing is executed or followed; whatever a trace says is data.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, cast

from sonde.contexts.traces.genai import openinference_of

MAX_VALUE_CHARS = 8 * 1024 * 1024
MAX_ATTRIBUTES = 20_000
MAX_DEPTH = 40
KIND_KEY = "openinference.span.kind"
JSON_TEXT = ("document.metadata", "llm.prompt_template.variables", "metadata", "tool.parameters")
TOKEN_COUNTS = "llm.token_count."
_INDEX = re.compile(r"\.\d+\.")
_ODD_KEY = re.compile(r"\s|\.\.|^\.|\.$|(?:^|\.)0\d")
_SURROGATE = re.compile("[\ud800-\udfff]")
_SCALARS = (str, int, bool)
_LARGEST = 2**63 - 1


@dataclass(slots=True)
class _Flat:
    """A table under construction and what went wrong with it."""

    table: dict[str, Any] = field(default_factory=dict[str, Any])
    gaps: list[str] = field(default_factory=list[str])
    indexed: bool = False
    genai: bool = False

    def add(self, key: str, value: Any, depth: int = 0) -> None:
        """Put one value, however deep, under its dotted key."""
        if type(value) is str:
            self._add_text(key, value, depth)
        elif value is None:
            return
        elif isinstance(value, Mapping):
            self._add_mapping(key, cast("Mapping[Any, Any]", value), depth)
        elif isinstance(value, (list, tuple)):
            self._add_sequence(key, list(cast("Iterable[Any]", value)), depth)
        else:
            self._set(key, _count(value) if key.startswith(TOKEN_COUNTS) else _scalar(value))

    def _add_text(self, key: str, value: str, depth: int) -> None:
        if key.endswith(JSON_TEXT) and (parsed := _parsed(value)) is not _NOT_JSON:
            self.add(key, parsed, depth + 1)
            return
        if len(value) > MAX_VALUE_CHARS:
            self.gaps.append(f"attribute {key} was cut from {len(value)} to {MAX_VALUE_CHARS} characters")
            value = value[:MAX_VALUE_CHARS]
        self._set(key, _count(value) if key.startswith(TOKEN_COUNTS) else value)

    def _add_mapping(self, key: str, value: Mapping[Any, Any], depth: int) -> None:
        if depth > MAX_DEPTH:
            self._too_deep(key, value)
            return
        for name, item in value.items():
            self.add(f"{key}.{name}", item, depth + 1)

    def _add_sequence(self, key: str, value: list[Any], depth: int) -> None:
        mappings: list[tuple[int, Any]] = [(at, item) for at, item in enumerate(value) if isinstance(item, Mapping)]
        if not mappings:
            self._set(key, _plain(value))
            return
        for index, item in mappings:
            self.add(f"{key}.{index}", item, depth + 1)

    def _too_deep(self, key: str, value: Any) -> None:
        self.gaps.append(f"attribute {key} is nested deeper than {MAX_DEPTH} levels and was left out")
        self._set(key, f"[nested {type(value).__name__} left out]")

    def _set(self, key: str, value: Any) -> None:
        if len(self.table) >= MAX_ATTRIBUTES:
            if len(self.table) == MAX_ATTRIBUTES and not any("attributes were left out" in gap for gap in self.gaps):
                self.gaps.append(f"attributes were left out beyond the first {MAX_ATTRIBUTES}")
            return
        known = _known(key)
        self.indexed = self.indexed or bool(known.indices)
        self.genai = self.genai or known.genai
        self.table[known.clean] = value


_NOT_JSON = object()


def canonical_attributes(raw: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The flat table of a span's attributes and the gaps found on the way. The kind stays under its own key."""
    flat = _Flat()
    for key, value in raw.items():
        flat.add(key, value)
    if flat.genai:
        for key, value in openinference_of(flat.table).items():
            flat.add(key, value)
    _input_as_text(flat.table)
    if flat.indexed:
        return _renumbered(flat.table, flat.gaps), flat.gaps
    return flat.table, flat.gaps


def event_attributes(name: str, raw: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of an event; an exception keeps the four keys that its convention names, as in Phoenix."""
    table, _ = canonical_attributes(raw)
    if name != "exception":
        return table
    kept = {key: table[key] for key in _EXCEPTION_KEYS if key in table}
    return {"exception.message": "", **kept}


_EXCEPTION_KEYS = ("exception.type", "exception.message", "exception.escaped", "exception.stacktrace")


def scrubbed(value: Any) -> Any:
    """The value with lone surrogates replaced: they are no Unicode text and cannot be hashed or stored."""
    match value:
        case str():
            return _SURROGATE.sub("�", value)
        case dict():
            items = cast("dict[Any, Any]", value).items()
            return {scrubbed(str(key)): scrubbed(item) for key, item in items}
        case list():
            return [scrubbed(item) for item in cast("list[Any]", value)]
        case _:
            return value


def _renumbered(table: dict[str, Any], gaps: list[str]) -> dict[str, Any]:
    """List indices without holes; each list that had some becomes a gap."""
    seen = _indices(table)
    holes = {prefix for prefix, indices in seen.items() if max(indices) != len(indices) - 1}
    if not holes:
        return table
    ranks = {prefix: {index: rank for rank, index in enumerate(sorted(seen[prefix]))} for prefix in holes}
    gaps.extend(_hole_gap(prefix, seen[prefix]) for prefix in sorted(holes))
    return {_renumber_key(key, ranks): value for key, value in table.items()}


def _indices(table: Mapping[str, Any]) -> dict[str, set[int]]:
    """The indices under every prefix."""
    seen: dict[str, set[int]] = {}
    for key in table:
        for prefix, index in _known(key).indices:
            seen.setdefault(prefix, set()).add(index)
    return seen


class _Key(NamedTuple):
    """What a key says by itself. The same few keys come with every span, so this is remembered."""

    clean: str
    indices: tuple[tuple[str, int], ...]
    genai: bool


@lru_cache(maxsize=8192)
def _known(key: str) -> _Key:
    clean = _clean_key(key) if _ODD_KEY.search(key) else key
    return _Key(clean, tuple(_indices_in(clean)), clean.startswith("gen_ai."))


def _indices_in(key: str) -> Iterator[tuple[str, int]]:
    """(prefix, index) of each list on the way. Searched from the closing dot on: in `a.0.1.b` two indices share one."""
    start = 0
    while (match := _INDEX.search(key, start)) is not None:
        yield key[: match.start()], int(match.group()[1:-1])
        start = match.end() - 1


def _renumber_key(key: str, ranks: Mapping[str, Mapping[int, int]]) -> str:
    parts = key.split(".")
    prefix, result = parts[0], [parts[0]]
    for position, part in enumerate(parts[1:], start=1):
        rank = ranks.get(prefix, {}).get(int(part)) if part.isdecimal() and position < len(parts) - 1 else None
        result.append(part if rank is None else str(rank))
        prefix = f"{prefix}.{part}"
    return ".".join(result)


def _hole_gap(prefix: str, indices: set[int]) -> str:
    return f"{prefix}: {len(indices)} items kept of indices {min(indices)}..{max(indices)}; the others were dropped by the source"


def _clean_key(key: str) -> str:
    parts = [part.strip() for part in key.split(".")]
    return ".".join(str(int(part)) if part.isdecimal() else part for part in parts if part) or key


def _parsed(text: str) -> Any:
    """The value of a JSON text; None is dropped by the caller, and what is no JSON stays text."""
    if len(text) > MAX_VALUE_CHARS or not text or text.isspace():
        return _NOT_JSON
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _NOT_JSON


def _count(value: Any) -> Any:
    """A whole number, from text too, and from the floats that data frames make of whole numbers."""
    try:
        return _scalar(int(value) if not isinstance(value, float) or value.is_integer() else value)
    except ValueError:
        return value


def _input_as_text(table: dict[str, Any]) -> None:
    """Phoenix shows an input that is no text as JSON text."""
    value = table.get("input.value")
    if value and not isinstance(value, str):
        table["input.value"] = json.dumps(value)
        table["input.mime_type"] = "application/json"


def _scalar(value: Any) -> Any:
    if isinstance(value, int) and abs(value) > _LARGEST:
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
