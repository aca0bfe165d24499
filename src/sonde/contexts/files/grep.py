"""Lines that match a pattern, found at the speed of C in time linear in the text, whatever the pattern.

RE2 looks at a line at a time (`^` and `$` are line ends, a match never spans two lines) and knows neither look-around nor back-
references. Text is scanned in pieces of 1 MB that end at line ends. A single line longer than that is scanned piece by piece, so a
match across two of its pieces can be missed.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

from sonde.contexts.files.file_list import Entry
from sonde.contexts.files.library import Library
from sonde.contexts.files.text import NotText, Text, Unreadable
from sonde.core.deadline import Deadline
from sonde.core.evidence import Excerpt, Observed
from sonde.core.patterns import Found, Pattern, compiled, escaped
from sonde.errors import ToolFault

PIECE = 1_048_576
COUNTED = 10_000
_CORES = min(os.cpu_count() or 1, 8)
_SHOWN = 500
_LINE_BREAK = re.compile(r"(?<!\\)(?:\\\\)*(?:\\n|\n)")


class Hit(NamedTuple):
    """A matching line: its number, its bytes, where the match begins in it, and whether it is all of the line."""

    line: int
    data: bytes
    at: int
    whole: bool

    @property
    def text(self) -> str:
        """The line, or the part around the match when it is long."""
        if len(self.data) <= _SHOWN:
            return self.data.decode("utf-8", "replace")
        begin = max(0, min(self.at - _SHOWN // 2, len(self.data) - _SHOWN))
        shown = self.data[begin : begin + _SHOWN].decode("utf-8", "ignore")
        return f"{'…' if begin else ''}{shown}{'…' if begin + _SHOWN < len(self.data) else ''}"


def compile_pattern(pattern: str, flags: str = "") -> Pattern:
    """The compiled pattern; a ToolFault says what RE2 does not know. Flags: i = any case, w = whole words, F = no regex."""
    unknown = sorted(set(flags) - set("imswF"))
    if unknown:
        raise ToolFault(
            f"unknown flag {', '.join(unknown)}; flags are i (any case), w (whole words), F (plain text, no regex)."
        )
    if "\n" in pattern if "F" in flags else _LINE_BREAK.search(pattern):
        raise ToolFault(
            "a pattern is matched against one line at a time, so it cannot hold a line break; grep for one line and read_file around it."
        )
    source = escaped(pattern) if "F" in flags else pattern.replace(r"\Z", r"\z")
    if "w" in flags:
        source = rf"\b(?:{source})\b"
    try:
        return compiled(source, by_line=True, any_case="i" in flags)
    except ValueError as error:
        raise ToolFault(
            f"the pattern {pattern!r} cannot be used: {error}. Patterns are RE2: no look-around, no back-references; "
            r"a sign that is meant as it is takes a backslash, as in \(; in grep flags='F' does that for all."
        ) from None


class _Piece(NamedTuple):
    """Some of a text in UTF-8: the byte it comes from, and whether it begins and ends at the border of a line."""

    offset: int
    data: bytes
    begins: bool
    ends: bool


def scan(text: Text, pattern: Pattern, deadline: Deadline) -> Iterator[Hit]:
    """Every matching line, once, until time is up. Lines are counted only as far as the last match."""
    line, counted = 1, text.start
    for piece, first in _searched(text, pattern):
        if deadline.expired():
            return
        if first is None:
            continue
        line += _line_ends(text, counted, piece.offset)
        counted = piece.offset
        yield from _hits(piece, pattern, first, line)


def _hits(piece: _Piece, pattern: Pattern, first: Found, line: int) -> Iterator[Hit]:
    counted = 0
    for start, end, at in _matching(pattern, piece.data, first):
        line += piece.data.count(b"\n", counted, start)
        counted = start
        whole = (start > 0 or piece.begins) and (end < len(piece.data) or piece.ends)
        yield Hit(line, piece.data[start:end], at - start, whole)


def _searched(text: Text, pattern: Pattern) -> Iterator[tuple[_Piece, Found | None]]:
    """The pieces of a text with the first match in each; a large text is searched on several cores, in order."""
    if text.size <= 4 * PIECE:
        yield from ((piece, pattern.search(piece.data)) for piece in _pieces(text))
        return
    ahead: deque[tuple[_Piece, Future[Found | None]]] = deque()
    with ThreadPoolExecutor(_CORES) as pool:
        for piece in _pieces(text):
            ahead.append((piece, pool.submit(pattern.search, piece.data)))
            if len(ahead) > 2 * _CORES:
                done, found = ahead.popleft()
                yield done, found.result()
        yield from ((piece, found.result()) for piece, found in ahead)


def _matching(pattern: Pattern, data: bytes, found: Found | None) -> Iterator[tuple[int, int, int]]:
    """Start and end of each matching line and where the match begins."""
    while found is not None and found.start() < len(data):  # at len(data): the empty place after the last line end
        begin = found.start()
        start = data.rfind(b"\n", 0, begin) + 1
        end = data.find(b"\n", begin)
        end = len(data) if end < 0 else end
        yield start, end, begin
        if end + 1 >= len(data):
            return
        found = pattern.search(data, end + 1)


def _pieces(text: Text) -> Iterator[_Piece]:
    offset, begins = text.start, True
    while offset < text.size:
        data = text.read(offset, PIECE)
        if not data:
            return
        last = offset + len(data) >= text.size
        cut = len(data) if last else data.rfind(b"\n") + 1 or len(data)
        ends = last or data[cut - 1 : cut] == b"\n"
        yield _Piece(offset, text.utf8(data[:cut] if cut < len(data) else data), begins, ends)
        offset, begins = offset + cut, ends


def _line_ends(text: Text, begin: int, end: int) -> int:
    return sum(text.read(offset, min(PIECE, end - offset)).count(b"\n") for offset in range(begin, end, PIECE))


class Grep:
    """One search through many files: the first matches in full, the others counted, within a time limit."""

    def __init__(self, library: Library, wanted: int, deadline: Deadline) -> None:
        self._library = library
        self._wanted = wanted
        self._deadline = deadline
        self._rows: list[dict[str, Any]] = []
        self._excerpts: list[Excerpt] = []
        self._more = 0
        self._failed: list[str] = []

    def run(self, pattern: Pattern, entries: Sequence[Entry]) -> Observed:
        """Search the files in order."""
        stopped = None
        for entry in entries:
            self._look(pattern, entry, alone=len(entries) == 1)
            if self._full():
                stopped = entry.path
                break
        return Observed(self._rows, tuple(self._excerpts), self._left_off(stopped))

    def _look(self, pattern: Pattern, entry: Entry, *, alone: bool) -> None:
        try:
            with self._library.open(entry) as text:
                for hit in scan(text, pattern, self._deadline):
                    self._take(entry, hit)
                    if self._more > COUNTED:
                        return
        except Unreadable as reason:
            if alone:
                raise
            if not isinstance(reason, NotText):
                self._failed.append(reason.message)
        except OSError as error:
            self._failed.append(f"{entry.path}: {error.strerror}.")

    def _take(self, entry: Entry, hit: Hit) -> None:
        if len(self._rows) >= self._wanted:
            self._more += 1
            return
        self._rows.append({"path": entry.path, "line": hit.line, "text": hit.text})
        if hit.whole and len(hit.data) <= PIECE:
            line = hit.data.decode("utf-8", "replace")
            self._excerpts.append(Excerpt.of_lines(entry.path, hit.line, hit.line, line))

    def _full(self) -> bool:
        return self._more > COUNTED or self._deadline.expired()

    def _left_off(self, stopped: str | None) -> str | None:
        said: list[str] = []
        if self._more:
            many = f"more than {COUNTED:,}" if self._more > COUNTED else f"{self._more:,}"
            said.append(
                f"{many} further matching lines were left off; narrow the pattern or path, or raise max_matches."
            )
        if stopped and self._more <= COUNTED:
            said.append(f"The search ran out of time in {stopped!r}; search the files after it by path.")
        if self._failed:
            said.append(f"{len(self._failed)} files could not be searched: {' '.join(self._failed[:3])}")
        return " ".join(said) or None
