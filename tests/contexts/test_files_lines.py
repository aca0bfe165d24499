from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given, settings, strategies as st

from sonde.contexts.files import FilesContext
from sonde.contexts.files.text import BLOCK, LineIndex, Text, read_lines
from sonde.core.canonical import sha256_text

CHARACTERS = st.sampled_from(["a", "é", "€", "😀", "\n", "\n", "\r\n", "\r", "\t", " ", "\u2028", "\x0c", "\ufeff"])
TEXTS = st.lists(CHARACTERS, max_size=60).map("".join)


def lines_of(text: str) -> list[str]:
    """The rule in one line: only a newline ends a line, a carriage return before it belongs to it."""
    whole = text.replace("\r\n", "\n")
    return whole.removesuffix("\n").split("\n") if whole else []


@given(text=TEXTS.filter(lambda t: not t.startswith("\ufeff")))
def test_every_line_is_read_back_whatever_is_in_it(text: str) -> None:
    context = FilesContext(texts={"t": text})
    lines = lines_of(text)

    assert context.file_info("t").value["lines"] == len(lines)
    for number, line in enumerate(lines, 1):
        seen = context.read_file("t", number, number)
        assert seen.value == line
        assert context.reread(seen.excerpts[0]) == line
    assert context.read_file("t").value == "\n".join(lines)


@given(text=TEXTS.filter(lambda t: not t.startswith("\ufeff")))
def test_grep_finds_exactly_the_lines_that_reading_shows(text: str) -> None:
    context = FilesContext(texts={"t": text})

    found = context.grep("a|€", max_matches=100)

    expected = [(n, line) for n, line in enumerate(lines_of(text), 1) if "a" in line or "€" in line]
    assert [(row["line"], row["text"]) for row in found.value] == expected
    assert [e.hash for e in found.excerpts] == [sha256_text(line) for _, line in expected]


@example(text="\ufeff€", start=0, length=1)
@given(text=TEXTS, start=st.integers(0, 200), length=st.integers(1, 50))
def test_a_slice_holds_only_whole_characters_and_proves(text: str, start: int, length: int) -> None:
    context = FilesContext(texts={"t": text})
    if start >= len(text.encode()):
        return

    part = context.context_slice(start, length, "t")

    assert part.value in text.replace("\r\n", "\n") or "\r" in text
    assert all(sha256_text(context.reread(e) or "") == e.hash for e in part.excerpts)


@settings(max_examples=30, deadline=None)
@given(ends=st.lists(st.integers(1, 3 * BLOCK), max_size=8), tail=st.booleans())
def test_lines_are_found_across_blocks(ends: list[int], tail: bool) -> None:
    data = b"".join(b"x" * (n - 1) + b"\n" for n in ends) + b"tail" * tail
    text = Text.of_bytes(data)
    index = LineIndex.of(text)
    lines = lines_of(data.decode())

    assert index.total == len(lines)
    for number in range(1, index.total + 1):
        assert read_lines(text, index, number, number) == lines[number - 1]
        assert index.line_at(text, index.offset(text, number)) == number


@pytest.mark.parametrize("shift", [-1, 0, 1])
def test_a_line_end_at_the_border_of_a_piece_is_counted_once(tmp_path: Path, shift: int) -> None:
    piece = 8_388_608
    (tmp_path / "a.txt").write_bytes(b"x" * (piece - 1 + shift) + b"\r\nsecond\n" + b"y" * piece + b"\nlast needle")
    context = FilesContext(tmp_path)

    found = context.grep("second|needle")

    assert [(row["line"], row["text"]) for row in found.value] == [(2, "second"), (4, "last needle")]
    assert [context.reread(e) for e in found.excerpts] == ["second", "last needle"]
