"""TRAIL's nested documents: a trace with `spans`, each with `child_spans`, a start and an ISO 8601 duration. `logs` are dropped."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, cast

from sonde.contexts.traces.importers import flat
from sonde.contexts.traces.span import Micros, Span, us_of

Json = dict[str, Any]
_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?")
_UNITS = (86_400_000_000, 3_600_000_000, 60_000_000, 1_000_000)


def recognise(record: Json) -> bool:
    """True for a document with a list of spans."""
    return isinstance(record.get("spans"), list)


def spans(record: Json) -> Iterator[Span | str]:
    """All spans, parents before children, without recursion: a hostile document may be thousands of levels deep."""
    stack: list[tuple[Json, str | None]] = [(raw, None) for raw in reversed(_spans_in(record, "spans"))]
    while stack:
        raw, parent = stack.pop()
        more: Json = {}
        if raw.get("trace_id") is None:
            more["trace_id"] = record.get("trace_id")
        if raw.get("parent_span_id") is None and raw.get("parent_id") is None:
            more["parent_id"] = parent
        try:
            if "duration" in raw:
                start = us_of(raw.get("timestamp"))
                more["end"] = None if start is None else Micros(start + duration_us(raw["duration"]))
            yield flat.span({key: raw[key] for key in raw if key not in {"child_spans", "logs"}}, **more)
        except (ValueError, TypeError) as broken:
            yield f"span {raw.get('span_id')}: {broken}"
        own = raw.get("span_id")
        stack.extend((child, None if own is None else str(own)) for child in reversed(_spans_in(raw, "child_spans")))


def duration_us(text: Any) -> int:
    """Microseconds of an ISO 8601 duration such as PT1M48.75533S; numbers are seconds."""
    if isinstance(text, (int, float)):
        return round(text * 1e6)
    match = _DURATION.fullmatch(str(text))
    if match is None:
        raise ValueError(f"{text!r} is not a duration such as PT1M48.5S")
    return sum(round(float(part) * unit) for part, unit in zip(match.groups(), _UNITS, strict=True) if part)


def _spans_in(record: Json, name: str) -> list[Json]:
    found = record.get(name)
    items = cast("list[Any]", found) if isinstance(found, list) else []
    return [cast("Json", item) for item in items if isinstance(item, dict)]
