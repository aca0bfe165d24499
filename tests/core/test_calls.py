"""Refs of calls: what is one, what is none."""

from __future__ import annotations

import pytest

from sonde.core.calls import CallRef

BASE = "tool:price:0a1b2c3d-4e5f6071"


@pytest.mark.parametrize(
    ("ref", "lines", "shown"),
    [
        (BASE, (0, 0), "a\nb\nc"),
        (f"{BASE}:2", (2, 2), "b"),
        (f"{BASE}:2-3", (2, 3), "b\nc"),
        (f"{BASE}:2-4", (2, 4), None),
    ],
)
def test_a_ref_means_a_text_or_lines_of_it(ref: str, lines: tuple[int, int], shown: str | None) -> None:
    read = CallRef.read(ref)

    assert read is not None
    assert (read.tool, read.start_line, read.end_line) == ("price", *lines)
    assert read.cut("a\nb\nc") == shown


@pytest.mark.parametrize(
    "ref", ["", "a.py:1-2", f"{BASE}:", f"{BASE}:-1", f"{BASE}:{'9' * 5_000}", f"{BASE}:1-{'9' * 5_000}"]
)
def test_anything_else_is_no_ref(ref: str) -> None:
    assert CallRef.read(ref) is None
