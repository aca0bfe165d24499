"""Files, folders, globs and piped text as a context: listed, read, searched and ranked, with every line citable.

A gigabyte or 100,000 files start at once and never fill memory: listing opens few files, those whose names say nothing; reads and scans
take what they need.
Up to 256 MB in 20,000 files are also shared whole as the variable CONTEXT; above that CONTEXT_INDEX is a table of offsets and
`context_slice` reads bytes. Files are not watched: one that changes is read as it is, and earlier citations of it no longer hold.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sonde.contexts import SeenFields, SeenNames, SeenRows, SeenText, Shareable
from sonde.contexts.files.about import describe, first_lines, outline, shown_name, whole_text
from sonde.contexts.files.bm25 import words_of
from sonde.contexts.files.exclusion import Exclusion
from sonde.contexts.files.grep import COUNTED, compile_pattern, grep_files, time_to_search
from sonde.contexts.files.library import Library
from sonde.contexts.files.search import Search
from sonde.contexts.files.slices import READ_BYTES, read, reread_bytes, slice_bytes
from sonde.contexts.files.text import Unreadable, read_lines
from sonde.core.deadline import Clock, SystemClock
from sonde.core.evidence import EvidenceKind, Excerpt, Observed
from sonde.disk import AnyPath
from sonde.errors import ToolFault
from sonde.tools import Tool, tool

if TYPE_CHECKING:
    from sonde.core.mask import Mask

SHARED_BYTES = 256_000_000
SHARED_FILES = 20_000
LISTED = 20_000
SCAN_SECONDS = 60.0


class FilesContext:
    """Text files as a context. `texts` are further ones that exist only in memory (standard input, say). `within` holds sources that
    somebody else than the user named to these folders.
    """

    def __init__(
        self,
        sources: str | Path | Sequence[str | Path] = (),
        *,
        texts: Mapping[str, str] | None = None,
        rationale_over: int | None = None,
        cache_dir: Path | None = None,
        clock: Clock | None = None,
        within: Sequence[AnyPath] = (),
        without: str = "",
        source: bool = False,
        exclusion: Exclusion | None = None,
    ) -> None:
        """`without` is the layer that the parsers of documents may lack; `source` shows the markup of web pages. `exclusion` is what to
        leave out; None: what .gitignore files name.
        """
        named = [sources] if isinstance(sources, (str, Path)) else list(sources)
        self.library = Library(named, texts or {}, within, without=without, source=source, exclusion=exclusion)
        self._rationale_over = rationale_over
        self._clock = clock or SystemClock()
        self._cache_dir = cache_dir
        self._search = Search(self.library, cache_dir)
        self._shared: Mapping[str, Shareable] | None = None
        self._lock = threading.Lock()

    def mask_with(self, mask: Mask | None) -> None:
        """Show only masked text, under masked names; None: as it is."""
        if self.library.mask is not mask:
            self.library.mask_with(mask)
            # An index that is kept holds the real words.
            self._search = Search(self.library, self._cache_dir if mask is None else None)
            self._shared = None

    def tools(self) -> Sequence[Tool]:
        """What code may call."""
        functions = (
            self.list_files,
            self.read_file,
            self.grep,
            self.search,
            self.file_info,
            self.slice_text,
            self.context_slice,
        )
        return [tool(function) for function in functions]

    def describe(self) -> str:
        """How many files of what kinds, the first names, and what was left out and why."""
        return describe(self.library.listing)

    def outline(self) -> str:
        """The same in fewer words."""
        return outline(self.library.listing)

    def whole_text(self, most_chars: int) -> Observed | None:
        """All of it with numbered lines, if that takes no more characters."""
        return whole_text(self.library, most_chars)

    def first_lines(self) -> Observed:
        """The first lines of a few files."""
        return first_lines(self.library)

    def shared(self) -> Mapping[str, Shareable]:
        """CONTEXT, text by path; or CONTEXT_INDEX, a table `offset<TAB>bytes<TAB>path`, if that is too much. Binary files are left out."""
        with self._lock:
            if self._shared is not None:
                return self._shared
            listing = self.library.listing
            if len(listing.texts) > SHARED_FILES or listing.text_bytes > SHARED_BYTES:
                self._shared = self._index_table()
                return self._shared
            texts: dict[str, Path | str] = {}
            copied = 0
            for entry in listing.texts:
                try:
                    with self.library.open(entry) as text:
                        plain = text.is_plain()  # then its file is mapped as it is, else its text is copied
                        texts[entry.path] = Path(entry.real) if plain else text.decode(text.read(text.start, text.size))
                        copied += 0 if plain else text.size
                except Unreadable:
                    continue
                if copied > SHARED_BYTES:  # compressed files hold more than their sizes say
                    self._shared = self._index_table()
                    return self._shared
            self._shared = {"CONTEXT": texts}
            return self._shared

    def fingerprint(self) -> str:
        """A hash of the data (contents when small, names, sizes and times when large)."""
        return self.library.fingerprint()

    @property
    def left_out(self) -> Mapping[str, str]:
        """Documents that were over a limit of their parser, with the reason."""
        return self.library.left_out

    def locate(self, path: str) -> Path | None:
        """Where a listed file is on disk, for links; None for text that is only in memory."""
        entry = self.library.entries.get(path)
        return Path(entry.real) if entry and entry.real else None

    def reread(self, excerpt: Excerpt) -> str | None:
        """The lines of an excerpt as they are on disk now."""
        entry = self.library.entries.get(excerpt.path)
        if excerpt.kind is not EvidenceKind.FILE or entry is None:
            return None
        try:
            with self.library.open(entry) as text:
                if excerpt.start_line < 1:
                    return reread_bytes(text, excerpt.ref)
                index = self.library.index(entry, text)
                if excerpt.end_line > index.total:
                    return None
                return read_lines(text, index, excerpt.start_line, excerpt.end_line)
        except (Unreadable, OSError):
            return None

    def list_files(self, glob: str | None = None, start: int = 0) -> SeenNames:
        """Paths in sorted order, all or those that match a glob such as '*.py' or 'logs/**/*.log'; at most 20,000 a call.

        Example: paths = list_files("*.md")
        """
        if start < 0:
            raise ToolFault(f"start is {start}; it counts from 0.")
        try:
            entries = self.library.matching(glob) if glob else list(self.library.entries.values())
        except ToolFault as nothing:  # a fault for a search, but an answer for a listing
            return Observed([], truncated=nothing.message)
        shown = [entry.path for entry in entries[start : start + LISTED]]
        after = start + len(shown)
        cut = (
            f"{len(entries) - after:,} more files; the next are list_files({glob!r}, start={after})."
            if after < len(entries)
            else None
        )
        return Observed(shown, truncated=cut)

    def file_info(self, path: str) -> SeenFields:
        """Size, number of lines, encoding, and why the file is not read if it is not: {path, bytes, lines, encoding, skipped}.

        Example: info = file_info("app.log")
        """
        entry = self.library.entry(path)
        info: dict[str, Any] = {
            "path": entry.path,
            "bytes": entry.size,
            "lines": None,
            "encoding": None,
            "skipped": None,
        }
        try:
            with self.library.open(entry) as text:
                info |= {"bytes": text.size, "lines": self.library.index(entry, text).total, "encoding": text.label}
        except Unreadable as reason:
            info["skipped"] = reason.message
        return Observed(info)

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
        numbered=True puts each line's number before it, for citing.

        Example: print(read_file("README.md", start_line=1, end_line=40, numbered=True))
        """
        entry = self.library.entry(path)
        with self.library.open(entry) as text:
            index = self.library.index(entry, text)
            last = index.total if end_line is None else min(end_line, index.total)
            if start_line < 1 or (end_line is not None and end_line < start_line):
                raise ToolFault(
                    f"lines {start_line} to {end_line} are no range: they count from 1 and start_line comes first."
                )
            if start_line > max(index.total, 1):
                raise ToolFault(f"{entry.path} has {index.total:,} lines; start_line is {start_line:,}.")
            count, limit = last - start_line + 1, self._rationale_over
            if limit is not None and count > limit and not (rationale or "").strip():
                raise ToolFault(
                    f"{count:,} lines at once need a reason (more than {limit}): read fewer, or say why, as in "
                    f"read_file({entry.path!r}, {start_line}, {last}, rationale='the function spans these lines')."
                )
            seen = read(entry, text, index, start_line, last) if index.total else Observed("")
        if not numbered:
            return seen
        lines = (
            str(seen.value).split("\n") if seen.excerpts else []
        )  # nothing is cited of an empty file, an empty line is
        shown = "\n".join(f"{at}: {line}" for at, line in enumerate(lines, start_line))
        return Observed(shown, seen.excerpts, seen.truncated)  # what is cited is the text without the numbers

    def grep(self, pattern: str, path: str | None = None, max_matches: int = 80, flags: str = "") -> SeenRows:
        """Lines that match a regular expression (RE2), as [{path, line, text}].

        path narrows to a file, a folder or a glob. Flags: i any case, w whole words, F plain text.

        Example: rows = grep("timed? ?out", path="logs", max_matches=20, flags="i")
        """
        if not 1 <= max_matches <= COUNTED:
            raise ToolFault(f"max_matches is {max_matches}; it may be 1 to {COUNTED:,}.")
        compiled = compile_pattern(pattern, flags)
        chosen = self.library.chosen(path)
        return grep_files(self.library, chosen, compiled, max_matches, time_to_search(self._clock, SCAN_SECONDS))

    def search(self, query: str, limit: int = 10) -> SeenRows:
        """Passages that fit the words of a query best, best first: [{path, start_line, end_line, text, score}].

        Example: hits = search("payment retries exhausted", limit=5)
        """
        if not 1 <= limit <= 200:
            raise ToolFault(f"limit is {limit}; it may be 1 to 200.")
        if not words_of(query):
            raise ToolFault("the query has no words; say what to look for.")
        return self._search.run(query, limit, time_to_search(self._clock, SCAN_SECONDS))

    def slice_text(self, text: str, start: int = 0, end: int | None = None) -> str:
        """The characters start to end of a text that you already have.

        Example: head = slice_text(text, 0, 2000)
        """
        return text[start:end]

    def context_slice(self, start: int, length: int = 10_000, path: str | None = None) -> SeenText:
        """Part of a file as text, from a byte offset on; for lines too long to read whole.

        Without path, offsets are those of CONTEXT_INDEX.

        Example: part = context_slice(0, 4000, path="big.json")
        """
        if start < 0 or not 1 <= length <= READ_BYTES:
            raise ToolFault(f"start must be at least 0 and length 1 to {READ_BYTES:,}.")
        if path:
            entry, begin = self.library.entry(path), start
        else:
            starts = self._starts()
            if start >= starts[-1]:
                raise ToolFault(f"offset {start:,} is past the end of the context ({starts[-1]:,} bytes).")
            number = bisect_right(starts, start) - 1
            entry, begin = list(self.library.entries.values())[number], start - starts[number]
        with self.library.open(entry) as text:
            if begin >= text.size:
                raise ToolFault(f"{entry.path} has {text.size:,} bytes; start must be below that.")
            return slice_bytes(entry, text, self.library.index(entry, text), begin, length)

    def _index_table(self) -> Mapping[str, Shareable]:
        rows = zip(self._starts(), self.library.entries.values(), strict=False)
        return {"CONTEXT_INDEX": "".join(f"{start}\t{entry.size}\t{shown_name(entry.path)}\n" for start, entry in rows)}

    def _starts(self) -> list[int]:
        """Where each file begins if all are put end to end, and where the last one ends."""
        return list(accumulate((entry.size for entry in self.library.entries.values()), initial=0))
