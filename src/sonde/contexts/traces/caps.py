"""Results small enough to hand over. Every cut is marked in place, and a note beside the result names it."""

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
    if isinstance(shorter, dict) and "attributes" in shorter:  # a span: its attributes and events leave each other room
        span = cast("dict[str, Any]", shorter)
        attributes, events = list(span["attributes"].items()), cast("list[Any]", span["events"])
        room = limit - _size({**span, "attributes": {}, "events": []})
        shown = _fitting(attributes, max(room * 3 // 4, room - _size(events)))
        told = _fitting(events, room - _size(dict(shown)))
        counts = f"{len(shown)} of {len(attributes)} attributes and {len(told)} of {len(events)} events"
        return {**span, "attributes": dict(shown), "events": told}, f"{size} bytes: {counts} are shown, long texts cut"
    is_dict = isinstance(shorter, dict)
    rows: list[Any] = list(cast("dict[str, Any]", shorter).items()) if is_dict else cast("list[Any]", shorter)
    kept = _fitting(rows, limit)
    return dict(kept) if is_dict else kept, f"{size} bytes: {len(kept)} of {len(rows)} rows are shown, long texts cut"


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
