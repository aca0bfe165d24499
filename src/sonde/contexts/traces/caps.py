"""Results small enough to hand over, with every cut marked where it happened and told beside the result."""

from __future__ import annotations

from typing import Any, cast

import msgspec

RESULT_BYTES = 900_000
_CLIPS = (65_536, 16_384, 4096, 1024, 256)


def fitted(value: Any, limit: int = RESULT_BYTES) -> tuple[Any, str | None]:
    """The value, or a copy with long texts cut (and, if that is not enough, rows left out), and a note of what was cut."""
    size = _size(value)
    if size <= limit:
        return value, None
    shorter = value
    for clip in _CLIPS:
        shorter = clipped(value, clip)
        if _size(shorter) <= limit:
            return (
                shorter,
                f"{size} bytes: texts were cut to {clip} characters; get_attribute(span_id, key, start) reads on",
            )
    return _fewer(shorter, size, limit)


def clipped(value: Any, limit: int) -> Any:
    """A copy in which no text is longer than about `limit` characters; each cut says how much there was."""
    match value:
        case str() if len(value) > limit:
            return f"{value[:limit]} …[cut: {limit} of {len(value)} characters]"
        case dict():
            return {key: clipped(item, limit) for key, item in cast("dict[str, Any]", value).items()}
        case list():
            return [clipped(item, limit) for item in cast("list[Any]", value)]
        case _:
            return value


def _fewer(value: Any, size: int, limit: int) -> tuple[Any, str]:
    """Rows from the front until the limit; of a span attributes and events, which leave each other room."""
    if isinstance(value, dict) and "attributes" in value:
        return _fewer_of_span(cast("dict[str, Any]", value), size, limit)
    rows: list[Any] = (
        list(cast("dict[str, Any]", value).items()) if isinstance(value, dict) else cast("list[Any]", value)
    )
    kept = _fitting(rows, limit)
    note = f"{size} bytes: {len(kept)} of {len(rows)} rows are shown, long texts cut"
    return (dict(kept) if isinstance(value, dict) else kept), note


def _fewer_of_span(value: dict[str, Any], size: int, limit: int) -> tuple[Any, str]:
    attributes, events = list(value["attributes"].items()), cast("list[Any]", value["events"])
    room = limit - _size({**value, "attributes": {}, "events": []})
    shown = _fitting(attributes, max(room * 3 // 4, room - _size(events)))
    told = _fitting(events, room - _size(dict(shown)))
    note = f"{size} bytes: {len(shown)} of {len(attributes)} attributes and {len(told)} of {len(events)} events are shown, long texts cut"
    return {**value, "attributes": dict(shown), "events": told}, note


def _fitting(rows: list[Any], room: int) -> list[Any]:
    kept: list[Any] = []
    for row in rows:
        room -= _size(row) + 4
        if room < 0:
            break
        kept.append(row)
    return kept


def _size(value: Any) -> int:
    return len(msgspec.json.encode(value))
