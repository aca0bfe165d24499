"""Parts of one text, by lines or by bytes, each with the excerpt that cites it."""

from __future__ import annotations

from sonde.contexts.files.file_list import Entry
from sonde.contexts.files.text import LineIndex, Text, read_lines
from sonde.core.canonical import sha256_text
from sonde.core.evidence import EvidenceKind, Excerpt, Observed

READ_BYTES = 500_000
"""The most that one call returns: half of what the registry lets through, since JSON adds escapes."""


def read(entry: Entry, text: Text, index: LineIndex, first: int, last: int) -> Observed:
    """Whole lines, as many as one call returns; the rest is named."""
    begin, end = index.offset(text, first), index.offset(text, last + 1)
    if end - begin <= READ_BYTES:
        return _cited(entry, first, last, text.decode(text.read(begin, end - begin)).removesuffix("\n"))
    cut_at = text.read(begin, READ_BYTES).rfind(b"\n")
    if cut_at < 0:
        return slice_bytes(entry, text, index, begin, READ_BYTES)
    fitting = index.line_at(text, begin + cut_at)
    cut = (
        f"stopped after line {fitting:,} of {index.total:,} ({READ_BYTES:,} bytes a call); "
        f"go on with read_file({entry.path!r}, start_line={fitting + 1})."
    )
    return _cited(entry, first, fitting, read_lines(text, index, first, fitting), cut)


def _cited(entry: Entry, first: int, last: int, shown: str, cut: str | None = None) -> Observed:
    return Observed(shown, (Excerpt.of_lines(entry.path, first, last, shown),), cut)


def slice_bytes(entry: Entry, text: Text, index: LineIndex, begin: int, length: int) -> Observed:
    """Part of a text by bytes. Its lines are cited if they are short, else exactly these bytes."""
    begin = max(begin, text.start)  # after a byte order mark
    end = min(begin + length, text.size)
    if text.encoding == "utf-8":  # no character is cut: the range begins earlier and ends earlier
        for _ in range(3):  # a character has at most three bytes after its first; more of them are not UTF-8
            begin -= begin > text.start and _continues(text, begin)
            end -= begin < end < text.size and _continues(text, end)
        for _ in range(4):  # less than a character was asked for: it comes whole
            end += begin == end < text.size or (end - begin < 4 and end < text.size and _continues(text, end))
    shown = text.decode(text.read(begin, end - begin))
    rest = (
        f"{text.size - end:,} bytes of {entry.path} follow: context_slice({end}, path={entry.path!r})."
        if end < text.size
        else None
    )
    first, last = index.line_at(text, begin), index.line_at(text, max(end - 1, begin))
    if index.offset(text, last + 1) - index.offset(text, first) <= READ_BYTES:
        return Observed(shown, (Excerpt.of_lines(entry.path, first, last, read_lines(text, index, first, last)),), rest)
    exact = Excerpt(
        kind=EvidenceKind.FILE, ref=f"{entry.path}:bytes={begin}-{end}", hash=sha256_text(shown), path=entry.path
    )
    return Observed(shown, (exact,), rest)


def _continues(text: Text, offset: int) -> bool:
    return (text.read(offset, 1) or b"\0")[0] & 0b1100_0000 == 0b1000_0000


def reread_bytes(text: Text, ref: str) -> str | None:
    """The bytes that a ref made by `slice_bytes` points at, as text."""
    begin, _, end = ref.rpartition(":bytes=")[2].partition("-")
    if not (begin.isdecimal() and end.isdecimal() and len(begin) <= len(end) < 20 and int(end) <= text.size):
        return None
    if int(end) - int(begin) > 2 * READ_BYTES:  # nothing that long was ever returned
        return None
    return text.decode(text.read(int(begin), int(end) - int(begin)))
