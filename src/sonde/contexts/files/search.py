"""The `search` tool: which passages are ranked, and how the answer says what was not looked at.

Small data is indexed whole, once. Large data is scanned for the stems of the query's words, the rarest first while they may occur
40,000 times in all, and only the blocks of lines around the best hits are ranked.
"""

from __future__ import annotations

import math
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from heapq import nlargest
from pathlib import Path
from typing import Any

from sonde.contexts.files.bm25 import Passage, RankedPassage, Ranking, asked_words, passages, prior, stem
from sonde.contexts.files.grep import scan_file
from sonde.contexts.files.library import Library
from sonde.contexts.files.slices import READ_BYTES
from sonde.contexts.files.text import Unreadable, read_lines
from sonde.core.deadline import Deadline, deadline_in_force
from sonde.core.evidence import Excerpt, Observed
from sonde.core.patterns import compiled, escaped

INDEXED_BYTES = 32_000_000
INDEXED_FILES = 20_000
_EXPANDED_CHARS = 2 * INDEXED_BYTES
HITS = 500
SCANNED, MOST_HITS = 40_000, 200_000
_AROUND, _LINE_BYTES = 16, 50
_SHOWN_CHARS, _RANKED_CHARS = 16_384, 65_536
_CHAR_BYTES = 4
_CHECKED = 1_000
_SAMPLES, _SAMPLE_BYTES = 64, 262_144


class Search:
    """Ranked search over a library; calls from several threads take turns."""

    def __init__(self, library: Library, cache_dir: Path | None) -> None:
        self._library = library
        self._cache_dir = cache_dir
        self._index: Ranking | None = None
        self._expands = False
        self._lock = threading.Lock()

    def run(self, query: str, limit: int, deadline: Deadline) -> Observed:
        """The best passages for the words of a query."""
        listing = self._library.listing
        with self._lock:
            if listing.text_bytes > INDEXED_BYTES or len(listing.texts) > INDEXED_FILES or self._expands:
                return self._among_hits(query, limit, deadline)
            if self._index is None:
                try:
                    self._index = self._whole_index()
                except OverflowError:
                    self._expands = True
                    return self._among_hits(query, limit, deadline)
            return self._shown(self._index.best(query, limit), query, None, INDEXED_BYTES)

    def _whole_index(self) -> Ranking:
        """The index of an earlier run, or a new one."""
        file = self._cache_dir / f"search-4-{self._library.stamp()}.sqlite" if self._cache_dir else None
        if file and file.exists():
            with suppress(sqlite3.DatabaseError):  # damaged: it is built again and replaced
                return Ranking.open(file)
        return Ranking.build(self._all_passages(), file)

    def _all_passages(self) -> Iterator[Passage]:
        """Every file; OverflowError if there is far more in them than their sizes say, as in compressed ones."""
        run, done, seen = deadline_in_force(), 0, 0
        since = 0.0 if run is None else run.clock.now()
        for entry in self._library.listing.texts:
            try:
                with self._library.open(entry) as text:
                    whole = text.decode(text.read(text.start, text.size)).removesuffix("\n")
            except (Unreadable, OSError):
                continue
            seen += len(whole)
            if seen > _EXPANDED_CHARS:
                raise OverflowError
            for each in passages(entry.path, whole.split("\n") if whole else ()):
                done += 1
                if run is not None and done % _CHECKED == 0:
                    since = run.check(since, "the files were still being indexed for search")
                yield each

    def _among_hits(self, query: str, limit: int, deadline: Deadline) -> Observed:
        words = asked_words(query)
        stems = list(dict.fromkeys(map(stem, words)))
        expected = estimate_hits(self._library, stems)
        scanned: list[str] = []
        for each in sorted(stems, key=expected.__getitem__):
            if not scanned or sum(map(expected.__getitem__, [*scanned, each])) <= SCANNED:
                scanned.append(each)
        blocks_in_all = self._library.listing.text_bytes / (_AROUND * _LINE_BYTES)
        weight = {each: math.log(1 + blocks_in_all / (1 + expected[each])) for each in stems}
        blocks, complete = self._gather(scanned, weight, deadline)
        cut: list[str] = []
        ranking = Ranking.build(self._around(blocks, cut))
        try:
            places = ranking.best(query, limit, weight)
        finally:
            ranking.close()
        said: list[str] = []
        common = [word for word in words if stem(word) not in scanned]
        if deadline.is_over():
            said.append("time ran out before all files were searched; grep for a rarer word narrows it.")
        else:
            if common:
                said.append(f"{', '.join(common)}: too common in this much data to look for, used for the order only.")
            if not complete:
                rare = ", ".join(word for word in words if stem(word) in scanned)
                said.append(
                    f"Only {HITS:,} of the places with {rare} were ranked; use rarer words, or grep with path= for the rest."
                )
        if cut:
            files = ", ".join(map(repr, list(dict.fromkeys(cut))[:3]))
            said.append(f"Of very long lines only the beginning was ranked ({files}); grep looks at all of them.")
        return self._shown(places, query, " ".join(said) or None, _CHAR_BYTES * READ_BYTES + 1)

    def _gather(
        self, stems: list[str], worth: Mapping[str, float], deadline: Deadline
    ) -> tuple[dict[str, set[int]], bool]:
        """Blocks of lines by path that hold most of the words, the rare ones above all, and whether these are all."""
        sources = (
            rf"(?:\b|_){escaped(each)}" if len(each) <= 3 and each.isascii() else escaped(each) for each in stems
        )
        pattern = compiled("|".join(sources), by_line=True, any_case=True)
        held: dict[tuple[str, int], set[str]] = {}
        found = 0
        for entry in self._library.listing.texts:
            for hit in scan_file(self._library, entry, pattern, deadline):
                line = hit.data.lower()
                held.setdefault((entry.path, hit.line // _AROUND), set()).update(
                    each for each in stems if each.encode() in line
                )
                found += 1
                if found >= MOST_HITS:
                    break
            if found >= MOST_HITS or deadline.is_over():
                break
        told = {path: sum(worth[each] for each in stems if each in path.lower()) for path in {path for path, _ in held}}

        def fit(place: tuple[str, int]) -> float:
            path = place[0]
            return prior(path, stems) * (told[path] + sum(map(worth.__getitem__, held[place])))

        best = nlargest(HITS, held, key=fit)
        blocks: dict[str, set[int]] = {}
        for path, block in best:
            blocks.setdefault(path, set()).add(block)
        return blocks, found < MOST_HITS and len(held) <= HITS

    def _around(self, hits: dict[str, set[int]], cut: list[str]) -> Iterator[Passage]:
        """The blocks of 16 lines in which a word was found; adds the path to `cut` if they are too long."""
        for path, blocks in hits.items():
            try:
                entry = self._library.entry(path)
                with self._library.open(entry) as text:
                    index = self._library.index(entry, text)
                    for block in sorted(blocks):
                        first, last = max(1, block * _AROUND), min(block * _AROUND + _AROUND - 1, index.total)
                        lines = read_lines(text, index, first, last, _CHAR_BYTES * _RANKED_CHARS + 1)
                        cut += [path] if len(lines) > _RANKED_CHARS else []
                        yield Passage(path, first, last, lines[:_RANKED_CHARS])
            except (Unreadable, OSError):
                continue

    def _shown(self, places: list[RankedPassage], query: str, bounds: str | None, most: int) -> Observed:
        """The passages as the model gets them; of a very long one no more than `most` bytes are read."""
        rows: list[dict[str, Any]] = []
        excerpts: list[Excerpt] = []
        for place in places:
            try:
                entry = self._library.entry(place.path)
                with self._library.open(entry) as text:
                    index = self._library.index(entry, text)
                    shown = read_lines(text, index, place.start_line, place.end_line, most)
            except (Unreadable, OSError):
                continue
            part = shown
            if len(shown) > _SHOWN_CHARS:  # of a very long passage, the part around the rarest of the words
                lowered = shown.lower()
                found = [each for each in map(stem, asked_words(query)) if each in lowered]
                at = lowered.find(min(found, key=lowered.count)) if found else 0
                begin = max(0, min(at - _SHOWN_CHARS // 2, len(shown) - _SHOWN_CHARS))
                end = begin + _SHOWN_CHARS
                part = f"{'…' if begin else ''}{shown[begin:end]}{'…' if end < len(shown) else ''}"
            rows.append({**place._asdict(), "text": part, "score": round(place.score, 4)})
            if len(shown) <= READ_BYTES:
                excerpts.append(Excerpt.of_lines(place.path, place.start_line, place.end_line, shown))
        return Observed(rows, tuple(excerpts), bounds)


def estimate_hits(library: Library, words: list[str]) -> dict[str, float]:
    """How often each word may occur in all, judged by up to 16 MB taken evenly from the whole."""
    entries = library.listing.texts
    chosen = entries[:: max(1, len(entries) // _SAMPLES)]
    parts = max(1, _SAMPLES // len(chosen))
    counts, seen = dict.fromkeys(words, 0), 0
    for entry in chosen:
        with suppress(Unreadable, OSError), library.open(entry) as text:
            for offset in range(text.start, text.size, max(text.size // parts, _SAMPLE_BYTES)):
                part = text.utf8(text.read(offset, _SAMPLE_BYTES)).lower()
                seen += len(part)
                for word in words:
                    counts[word] += part.count(word.encode())
    return {word: count * library.listing.text_bytes / max(seen, 1) for word, count in counts.items()}
