"""Counts in sentences that people read."""

from __future__ import annotations


def plural(count: int, one: str, many: str = "") -> str:
    """`1 turn`, `2 turns`, `1 reply`, `2,000 replies`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
