"""Values in a record that msgpack has no form for: their numbers, and how the supervisor reads them."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from msgspec import msgpack

PAIR, MOMENT, DATE, TIME, DURATION, DECIMAL = 1, 2, 3, 4, 5, 6


def unpacked(code: int, data: memoryview) -> Any:
    """The value of an extension; ValueError for one that is none of ours."""
    text = bytes(data)
    match code:
        case 1:
            return tuple(msgpack.decode(text, ext_hook=unpacked))
        case 2:
            return datetime.fromisoformat(text.decode())
        case 3:
            return date.fromisoformat(text.decode())
        case 4:
            return time.fromisoformat(text.decode())
        case 5:
            return timedelta(microseconds=int(text[:20]))
        case 6:
            return Decimal(text[:100].decode())
        case _:
            raise ValueError(f"an extension {code} that nobody has")
