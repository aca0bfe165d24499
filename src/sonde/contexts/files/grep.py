"""Lines that match a pattern, found at the speed of C in time linear in the text, whatever the pattern.

RE2 sees one line at a time (`^` and `$` are line ends, a match never spans two lines) and has neither look-around nor back-references.
Text is scanned in pieces of 1 MB that end at line ends. A longer line is scanned piece by piece, so a match across two pieces can be
missed.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple

from sonde.contexts.files.file_list import Entry
from sonde.contexts.files.library import Library
from sonde.contexts.files.text import NotText, Text, Unreadable
from sonde.core.deadline import GRACE_S, Clock, Deadline, deadline_in_force
from sonde.core.evidence import Excerpt, Observed
from sonde.core.patterns import Pattern, PatternMatch, compiled, escaped
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


def time_to_search(clock: Clock, seconds: float | None) -> Deadline:
    """For one search: so long, or as long as the run goes on. One that is over may still look something up for its report."""
    run = deadline_in_force()
    if run is None:
        return Deadline(clock, seconds)
    return Deadline(clock, GRACE_S) if run.is_over() else run.sub(seconds)


def scan(text: Text, pattern: Pattern, deadline: Deadline) -> Iterator[Hit]:
    """Every matching line, once, until time is up. Lines are counted only as far as the last match."""
    line, counted = 1, text.start
    for piece, first in _searched(text, pattern):
        if deadline.is_over():
            return
        if first is None:
            continue
        for offset in range(counted, piece.offset, PIECE):
            line += text.read(offset, min(PIECE, piece.offset - offset)).count(b"\n")
        counted = piece.offset
        found, here, data, done = first, line, piece.data, 0
        while found is not None and found.start() < len(data):  # at len(data): the empty place after the last line end
            begin = found.start()
            start = data.rfind(b"\n", 0, begin) + 1
            end = data.find(b"\n", begin)
            end = len(data) if end < 0 else end
            here += data.count(b"\n", done, start)
            done = start
            whole = (start > 0 or piece.begins) and (end < len(data) or piece.ends)
            yield Hit(here, data[start:end], begin - start, whole)
            found = pattern.search(data, end + 1) if end + 1 < len(data) else None


def scan_file(library: Library, entry: Entry, pattern: Pattern, deadline: Deadline) -> Iterator[Hit]:
    """The same for a listed file; one that cannot be read has no matches."""
    with suppress(Unreadable, OSError), library.open(entry) as text:
        yield from scan(text, pattern, deadline)


def _searched(text: Text, pattern: Pattern) -> Iterator[tuple[_Piece, PatternMatch | None]]:
    """The pieces of a text with the first match in each; a large text is searched on several cores, in order."""
    if text.size <= 4 * PIECE:
        yield from ((piece, pattern.search(piece.data)) for piece in _pieces(text))
        return
    ahead: deque[tuple[_Piece, Future[PatternMatch | None]]] = deque()
    with ThreadPoolExecutor(_CORES) as pool:
        for piece in _pieces(text):
            ahead.append((piece, pool.submit(pattern.search, piece.data)))
            if len(ahead) > 2 * _CORES:
                done, found = ahead.popleft()
                yield done, found.result()
        yield from ((piece, found.result()) for piece, found in ahead)


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


def grep_files(
    library: Library, entries: Sequence[Entry], pattern: Pattern, wanted: int, deadline: Deadline
) -> Observed:
    """Search the files in order: the first `wanted` matches in full, the others counted, within a time limit."""
    rows: list[dict[str, Any]] = []
    excerpts: list[Excerpt] = []
    failed: list[str] = []
    more, stopped = 0, None
    for entry in entries:
        try:
            with library.open(entry) as text:
                for hit in scan(text, pattern, deadline):
                    if len(rows) >= wanted:
                        more += 1
                        if more > COUNTED:
                            break
                        continue
                    rows.append({"path": entry.path, "line": hit.line, "text": hit.text})
                    if (
                        hit.whole and len(hit.data) <= _SHOWN
                    ):  # a line that was cut is not all shown, so it proves nothing yet
                        excerpts.append(Excerpt.of_lines(entry.path, hit.line, hit.line, hit.text))
        except Unreadable as reason:
            if len(entries) == 1:
                raise
            if not isinstance(reason, NotText):
                failed.append(reason.message)
        except OSError as error:
            failed.append(f"{entry.path}: {error.strerror}.")
        if more > COUNTED or deadline.is_over():
            stopped = entry.path
            break
    said: list[str] = []
    if more:
        many = f"more than {COUNTED:,}" if more > COUNTED else f"{more:,}"
        said.append(f"{many} further matching lines were left off; narrow the pattern or path, or raise max_matches.")
    if stopped and more <= COUNTED:
        said.append(f"The search ran out of time in {stopped!r}; search the files after it by path.")
    if failed:
        said.append(f"{len(failed)} files could not be searched: {' '.join(failed[:3])}")
    return Observed(rows, tuple(excerpts), " ".join(said) or None)
