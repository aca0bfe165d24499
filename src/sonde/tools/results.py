"""What a tool returned, as plain data: one form, one order, one size limit.

The form is what canonical JSON keeps, so a replayed run sees exactly what the first one saw. Dataclasses, dates, enums
and tuples become their JSON-like forms; bytes, NaN and objects without one are refused, and the error names the place.
Rows with a time are sorted by it. A result over the size limit is cut, and a note says how to get the rest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

from sonde.core.canonical import canonical_json
from sonde.errors import ToolResponseInvalid

_TIMES = ("start_time", "timestamp")
_NAMES = ("trace_id", "span_id", "id", "name")

Rows = list[dict[str, Any]]


def plain(tool_name: str, value: Any) -> Any:
    """The value as canonical JSON reads it back; ToolResponseInvalid if it has no such form."""
    if value is None or type(value) in (str, bool, int):
        return value
    try:
        return json.loads(data_text(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolResponseInvalid(
            f"tool {tool_name} returned what is not data: {_offender(value, 'its result') or 'its result'}: {error}. "
            "A tool returns None, text, numbers, lists or dicts of them."
        ) from None


def data_text(value: Any) -> str:
    """Canonical JSON of the value's plain form; TypeError or ValueError if it has none."""
    try:
        return canonical_json(value)
    except TypeError:
        simpler = msgspec.to_builtins(
            value, str_keys=True, order="deterministic", builtin_types=(bytes, bytearray, memoryview)
        )
        return canonical_json(simpler)


def in_order(value: Any) -> Any:
    """The value with every list of timed rows sorted by time, then by id; other lists keep their order."""
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value)
        return {key: in_order(item) for key, item in items.items()}
    if not isinstance(value, list) or not value or not isinstance(value[0], (dict, list)):
        return cast("Any", value)
    rows = [in_order(item) for item in cast("list[Any]", value)]
    field = next((name for name in _TIMES if all(isinstance(row, dict) and name in row for row in rows)), None)
    return sorted(rows, key=lambda row: _row_key(row, field)) if field else rows


def fit(value: Any, max_bytes: int) -> tuple[Any, str | None]:
    """The value cut to `max_bytes` of JSON, and a note on what was cut; None if all of it fits."""
    size = size_of(value)
    if size <= max_bytes:
        return value, None
    if isinstance(value, str):
        kept = value[:max_bytes]
        while size_of(kept) > max_bytes:
            kept = kept[: min(len(kept) - 1, len(kept) * max_bytes // size_of(kept))]
        return kept, _cut(size, max_bytes, f"the first {len(kept):,} of {len(value):,} characters")
    if isinstance(value, list):
        rows = cast("list[Any]", value)
        kept = rows[: _fitting(rows, max_bytes)]
        return kept, _cut(size, max_bytes, f"the first {len(kept):,} of {len(rows):,} items")
    items = list(cast("dict[str, Any]", value).items())
    kept = dict(items[: _fitting(items, max_bytes)])
    return kept, _cut(size, max_bytes, f"{len(kept):,} of {len(items):,} keys ({', '.join(list(kept)[:8]) or 'none'})")


def size_of(value: Any) -> int:
    """Bytes of the value's canonical JSON."""
    return len(canonical_json(value).encode("utf-8", "surrogatepass"))


def _offender(value: Any, where: str) -> str | None:
    """The first place in a value that is not JSON-like, such as `its result['rows'][3] (bytes)`."""
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value)
        return _first(_offender(item, f"{where}[{key!r}]") for key, item in items.items())
    if isinstance(value, (list, tuple)):
        parts = cast("Iterable[Any]", value)
        return _first(_offender(item, f"{where}[{number}]") for number, item in enumerate(parts))
    try:
        data_text(value)
    except (TypeError, ValueError):
        return f"{where} ({type(value).__name__})"
    return None


def _first(found: Iterable[str | None]) -> str | None:
    return next((item for item in found if item), None)


def _row_key(row: Mapping[str, Any], field: str) -> tuple[bool, str, str]:
    moment = row[field]
    shown = f"{moment:030.9f}" if isinstance(moment, (int, float)) else str(moment)
    return moment is None, shown, "\0".join(str(row.get(name, "")) for name in _NAMES)


def _fitting(items: list[Any], max_bytes: int) -> int:
    """How many items from the front fit into the limit, brackets and commas included."""
    used = 2
    for count, item in enumerate(items):
        used += size_of(item) + 1
        if used > max_bytes:
            return count
    return len(items)


def _cut(size: int, max_bytes: int, kept: str) -> str:
    return (
        f"the result was {size:,} bytes, more than the {max_bytes:,} one call may return: only {kept} came back. "
        "Ask for less at a time (a narrower pattern, a smaller range, a lower limit) to get the rest."
    )
