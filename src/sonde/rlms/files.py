"""The files of the list, by the names the loop knows them by: relative to the repository, or absolute when outside it.

Files that are missing, not regular or not text are left out and named; none of them stops the run. One pass counts sizes without
holding a file in memory. Signals are counted only in the first megabyte of each file: they are a hint, not a measurement.
"""

from __future__ import annotations

import codecs
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sonde.contexts import SeenRows, SeenText
from sonde.contexts.files import FilesContext
from sonde.contexts.files.file_list import Listing
from sonde.contexts.files.library import Library
from sonde.contexts.files.search import Search
from sonde.contexts.files.text import Unreadable
from sonde.core.canonical import cut
from sonde.core.evidence import Excerpt, Observed
from sonde.disk import below, read_named
from sonde.errors import ConfigError, SandboxViolation, ToolFault
from sonde.tools import Tool, tool

INDEX_ROWS = 160
GREP_MATCHES = 500
GREP_SIGNAL = "regex_match"
SNIPPET_CHARS = 220
SIGNAL_BYTES = 1_048_576
_STEP = 1_048_576
_LISTED_BYTES = 16_000_000

SIGNALS = {
    "class": re.compile(r"^[ \t]*(?:export[ \t]+)?(?:abstract[ \t]+)?class[ \t]+\w", re.MULTILINE),
    "python_def": re.compile(r"^[ \t]*(?:async[ \t]+)?def[ \t]+\w", re.MULTILINE),
    "function": re.compile(r"\bfunction\b"),
    "arrow_function": re.compile(r"=>"),
    "test": re.compile(r"\btest(?:_\w+)?\b|\b(?:it|describe)\(", re.IGNORECASE),
    "todo": re.compile(r"\b(?:TODO|FIXME)\b"),
    "error": re.compile(r"\b(?:error|exception|failed|failure)\b", re.IGNORECASE),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRow:
    """One file of the index."""

    path: str
    line_count: int
    char_count: int

    @property
    def estimated_tokens(self) -> int:
        """Four characters per token, rounded up."""
        return -(-self.char_count // 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """The readable files with their sizes, signals, and what was left out with the reason."""

    rows: tuple[FileRow, ...]
    signals: Mapping[str, int]
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])

    def metrics(self) -> dict[str, int]:
        """The totals, as result.json and the trigger policy count them."""
        chars = sum(row.char_count for row in self.rows)
        return {
            "file_count": len(self.rows),
            "line_count": sum(row.line_count for row in self.rows),
            "char_count": chars,
            "estimated_tokens": -(-chars // 4),
        }


class ListedLibrary(Library):
    """Exactly these files under exactly these names."""

    def __init__(self, places: Mapping[str, Path]) -> None:
        super().__init__((), {})
        self._places = places

    def _list(self) -> Listing:
        listing = Listing()
        for name, place in sorted(self._places.items()):
            state = place.lstat()
            listing.add(name, state.st_size, state.st_mtime_ns, str(place))
        return listing


class LoopFiles(FilesContext):
    """The listed files as a context, with the loop's own helpers and its file index in the prompt. Code that reads any other file crosses
    the boundary: that ends the run, and no `except` of its own can catch it.
    """

    def __init__(self, places: Mapping[str, Path], left_out: Mapping[str, str]) -> None:
        super().__init__()
        self.library = ListedLibrary(places)
        self._search = Search(self.library, None)
        self.survey = survey(self.library, left_out)

    def tools(self) -> Sequence[Tool]:
        """The helpers of the loop's contract that look at files."""
        return [tool(function) for function in (self.list_files, self.read_file, self.grep, self.slice_text)]

    def read_file(
        self,
        path: str,
        start_line: int = 1,
        end_line: int | None = None,
        rationale: str | None = None,
        *,
        numbered: bool = False,
    ) -> SeenText:
        """Lines start_line to end_line of a file as text, counted from 1, both included; at most 500,000 bytes a call, at whole lines.
        After the last line it is "". numbered=True puts each line's number before it, for citing.

        Example: print(read_file(path, start_line=1, end_line=40, numbered=True))
        """
        self._require(path)
        first = max(1, start_line)
        entry = self.library.entry(path)
        with self.library.open(entry) as text:
            total = self.library.index(entry, text).total
        if total == 0 and first == 1:  # that it is empty can be cited
            return Observed("", (Excerpt.of_lines(entry.path, 1, 1, ""),))
        if first > total:
            return Observed("", truncated=f"{entry.path} has {total:,} lines; start_line is {start_line:,}.")
        last = None if end_line is None else max(first, end_line)
        return super().read_file(path, first, last, rationale, numbered=numbered)

    def grep(self, pattern: str, path: str | None = None, max_matches: int = 80, flags: str = "") -> SeenRows:
        """Lines that match a regular expression (RE2), at most 500, as [{path, start_line, end_line, signal, snippet, line, text}]: the
        first five fit add_citation, text is the whole line.

        path narrows to a file, a folder or a glob. Flags: i any case, w whole words, F plain text.

        Example: rows = grep("timed? ?out", path="*.py", max_matches=20, flags="i")
        """
        if path is not None and not re.search(r"[*?\[]", path):
            self._require(path)
        found = super().grep(pattern, path, min(max(1, max_matches), GREP_MATCHES), flags)
        rows = [
            {
                **row,
                "start_line": row["line"],
                "end_line": row["line"],
                "signal": GREP_SIGNAL,
                "snippet": cut(" ".join(row["text"].split()), SNIPPET_CHARS),
            }
            for row in found.value
        ]
        return replace(found, value=rows)

    def reread(self, excerpt: Excerpt) -> str | None:
        """The lines of an excerpt as they are on disk now; an empty file is one empty line."""
        found = super().reread(excerpt)
        if found is None and (excerpt.start_line, excerpt.end_line) == (1, 1) and excerpt.path in self.library.entries:
            return "" if self.file_info(excerpt.path).value["lines"] == 0 else None
        return found

    def _require(self, path: str) -> None:
        """SandboxViolation for a path that is neither a listed file nor a folder of listed ones."""
        try:
            self.library.chosen(path)
        except ToolFault:
            if (reason := self.survey.left_out.get(path)) is not None:
                raise ToolFault(f"{path!r} was listed but is not read: {reason}") from None
            what = "only the files that list_files() names can be read"
            raise SandboxViolation(f"{path!r} is not in the context: {what}") from None

    def describe(self) -> str:
        """The file index: names, lines and estimated tokens, never content."""
        rows, totals = self.survey.rows, self.survey.metrics()
        shared = "" if "CONTEXT" in self.shared() else " Too large for CONTEXT: use grep and read_file."
        lines = [
            f"{totals['file_count']} files, {totals['line_count']:,} lines, about {totals['estimated_tokens']:,} tokens.{shared}",
            "File index (lines, estimated tokens):",
            *(f"  {row.path!r} ({row.line_count:,}, {row.estimated_tokens:,})" for row in rows[:INDEX_ROWS]),
        ]
        if len(rows) > INDEX_ROWS:
            lines.append(f"  and {len(rows) - INDEX_ROWS} more; list_files() has all")
        lines += [f"  not read: {name!r}: {reason}" for name, reason in list(self.survey.left_out.items())[:20]]
        return "\n".join(lines)


def open_files(list_file: str, names: Iterable[str], repo: str) -> LoopFiles:
    """The context of the names in a list; ConfigError when they leave nothing to look at."""
    places, left_out = sort_out(names, Path(repo))
    context = LoopFiles(places, left_out)
    if not context.survey.rows:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in list(context.survey.left_out.items())[:5])
        raise ConfigError(f"{list_file} names no file that can be read as text ({reasons or 'the list is empty'})")
    return context


def read_list(list_file: str) -> bytes:
    """A newline list of paths as it is. Read once: it may be a pipe, as in --context-file-list <(git ls-files)."""
    try:
        return read_named(list_file, _LISTED_BYTES)
    except OSError as error:
        raise ConfigError(f"--context-file-list {list_file!r} cannot be read: {error.strerror}") from None


def split_list(text: bytes) -> list[str]:
    """The paths of a newline list, blank lines left out."""
    return [line.strip("\r") for line in os.fsdecode(text).split("\n") if line.strip()]


def sort_out(names: Iterable[str], repo: Path) -> tuple[dict[str, Path], dict[str, str]]:
    """Where the files really are, by name, and what cannot be opened with its reason."""
    places: dict[str, Path] = {}
    left_out: dict[str, str] = {}
    for written in names:
        place = Path(os.path.normpath(repo / written))
        inside = place.is_relative_to(repo)
        name = os.fsencode(place.relative_to(repo) if inside else place).decode("utf-8", "backslashreplace")
        try:
            real = Path(below(repo if inside else "/", place))
            mode = real.lstat().st_mode
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            left_out[name] = getattr(error, "strerror", None) or "not a file name"
            continue
        if stat.S_ISREG(mode):
            places[name] = real
        else:
            left_out[name] = "a folder, not a file" if stat.S_ISDIR(mode) else "not a regular file"
    return places, left_out


def survey(library: Library, left_out: Mapping[str, str]) -> Survey:
    """Sizes and signals of every file that is text; the others join those left out."""
    rows: list[FileRow] = []
    signals = Counter(dict.fromkeys(SIGNALS, 0))
    unread = dict(left_out)
    for entry in library.entries.values():
        try:
            with library.open(entry) as text:
                decoder = codecs.getincrementaldecoder(text.encoding)("replace")
                offsets = range(text.start, text.size, _STEP)
                chars = sum(len(decoder.decode(text.read(offset, _STEP))) for offset in offsets)
                chars += len(decoder.decode(b"", final=True))
                rows.append(FileRow(path=entry.path, line_count=library.index(entry, text).total, char_count=chars))
                head = text.decode(text.read(text.start, SIGNAL_BYTES))
                signals.update({name: sum(1 for _ in p.finditer(head)) for name, p in SIGNALS.items()})
        except (Unreadable, OSError) as error:
            unread[entry.path] = str(error)
    for name in unread:
        library.listing.entries.pop(name, None)
    return Survey(rows=tuple(rows), signals=dict(signals), left_out=unread)
