"""The `search` tool: which passages are ranked, and how the answer says what was not looked at.

Small data is indexed whole, once. Large data is scanned for each word of the query and only the passages around the hits are ranked.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from sonde.contexts.files.grep import compile_pattern, scan
from sonde.contexts.files.library import Library
from sonde.contexts.files.lines import read_lines
from sonde.contexts.files.listing import Entry
from sonde.contexts.files.ranking import Passage, Place, Ranking, passages
from sonde.contexts.files.text import Unreadable
from sonde.core.deadline import Deadline
from sonde.core.evidence import Excerpt, Observed

INDEXED_BYTES = 32_000_000
INDEXED_FILES = 20_000
HITS_A_WORD = 2_000
_AROUND = 8
_LINE_CHARS = 16_384


class Search:
    """Ranked search over a library; calls from several threads take turns."""

    def __init__(self, library: Library, cache_dir: Path | None) -> None:
        self._library = library
        self._cache_dir = cache_dir
        self._index: Ranking | None = None
        self._lock = threading.Lock()

    def run(self, words: list[str], limit: int, deadline: Deadline) -> Observed:
        """The best passages for the words."""
        with self._lock:
            if self._small():
                return self._shown(self._whole_index().best(words, limit), None)
            return self._among_hits(words, limit, deadline)

    def _small(self) -> bool:
        listing = self._library.listing
        return listing.total_bytes <= INDEXED_BYTES and len(listing.entries) <= INDEXED_FILES

    def _whole_index(self) -> Ranking:
        if self._index is None:
            self._index = self._cached() or Ranking.build(self._all_passages(), self._cache_file())
        return self._index

    def _cache_file(self) -> Path | None:
        return self._cache_dir / f"search-{self._library.stamp()}.sqlite" if self._cache_dir else None

    def _cached(self) -> Ranking | None:
        file = self._cache_file()
        try:
            return Ranking.open(file) if file and file.exists() else None
        except sqlite3.DatabaseError:
            return None  # damaged: it is built again and replaced

    def _all_passages(self) -> Iterator[Passage]:
        for entry in self._library.entries.values():
            yield from passages(entry.path, self._lines(entry))

    def _lines(self, entry: Entry) -> Iterable[str]:
        try:
            with self._library.open(entry) as text:
                whole = text.decode(text.read(text.start, text.size)).removesuffix("\n")
        except (Unreadable, OSError):
            return ()
        return (line[:_LINE_CHARS] for line in whole.split("\n")) if whole else ()

    def _among_hits(self, words: list[str], limit: int, deadline: Deadline) -> Observed:
        hits: dict[str, set[int]] = {}
        bounded = [word for word in words if not self._gather(word, hits, deadline)]
        ranking = Ranking.build(self._around(hits))
        try:
            return self._shown(ranking.best(words, limit), _bounds(bounded, deadline))
        finally:
            ranking.close()

    def _gather(self, word: str, hits: dict[str, set[int]], deadline: Deadline) -> bool:
        """Note the lines that hold a word; False when there were too many, or no time, to note them all."""
        pattern = compile_pattern(word, "iF")
        found = 0
        for entry in self._library.entries.values():
            try:
                with self._library.open(entry) as text:
                    for hit in scan(text, pattern, deadline):
                        hits.setdefault(entry.path, set()).add(hit.line // _AROUND)
                        found += 1
                        if found >= HITS_A_WORD:
                            return False
            except (Unreadable, OSError):
                continue
            if deadline.expired():
                return False
        return True

    def _around(self, hits: dict[str, set[int]]) -> Iterator[Passage]:
        """The lines around each hit, as blocks of 8 lines that a word was found in."""
        for path, blocks in hits.items():
            try:
                entry = self._library.entry(path)
                with self._library.open(entry) as text:
                    index = self._library.index(entry, text)
                    for block in sorted(blocks):
                        first, last = max(1, block * _AROUND), min(block * _AROUND + _AROUND - 1, index.total)
                        yield Passage(path, first, last, read_lines(text, index, first, last)[: _LINE_CHARS * 4])
            except (Unreadable, OSError):
                continue

    def _shown(self, places: list[Place], bounds: str | None) -> Observed:
        rows: list[dict[str, Any]] = []
        excerpts: list[Excerpt] = []
        for place in places:
            shown = self._text(place)
            if shown is not None:
                rows.append({**place._asdict(), "text": shown, "score": round(place.score, 4)})
                excerpts.append(Excerpt.of_lines(place.path, place.start_line, place.end_line, shown))
        return Observed(rows, tuple(excerpts), bounds)

    def _text(self, place: Place) -> str | None:
        try:
            entry = self._library.entry(place.path)
            with self._library.open(entry) as text:
                return read_lines(text, self._library.index(entry, text), place.start_line, place.end_line)
        except (Unreadable, OSError):
            return None


def _bounds(bounded: list[str], deadline: Deadline) -> str | None:
    if deadline.expired():
        return "time ran out before all files were searched; grep for a rarer word narrows it."
    if bounded:
        return (
            f"{', '.join(bounded)}: so common that only the first {HITS_A_WORD:,} places were ranked; "
            "use rarer words, or grep with path= for the rest."
        )
    return None
