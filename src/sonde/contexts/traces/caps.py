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
    """Rows, or attributes, from the front until the limit."""
    rows: list[Any] = (
        list(cast("dict[str, Any]", value).items()) if isinstance(value, dict) else cast("list[Any]", value)
    )
    if isinstance(value, dict) and "attributes" in value:
        inner, note = _fewer(value["attributes"], size, limit - 1000)
        return {**cast("dict[str, Any]", value), "attributes": inner, "events": []}, note
    kept: list[Any] = []
    room = limit
    for row in rows:
        room -= _size(row) + 4
        if room < 0:
            break
        kept.append(row)
    note = f"{size} bytes: {len(kept)} of {len(rows)} rows are shown, long texts cut"
    return (dict(kept) if isinstance(value, dict) else kept), note


def _size(value: Any) -> int:
    return len(msgspec.json.encode(value))
