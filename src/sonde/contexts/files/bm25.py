"""Passages ranked by how well they fit a query (BM25, SQLite FTS5).

Up to 32 MB of text are indexed once, on the first search, in a temporary database on disk or in `cache_dir` under a name that
changes with the data. For more text, the files are scanned for the rarer words of the query and only the passages around the hits
are ranked, at most 5,000; the answer says if that bound was met. Case, accents and endings of words do not matter; words of the
path count double, and names such as StatusChanged are split.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

PASSAGE_BYTES = 1_500
PASSAGE_LINES = 30
HEART_LINES = 3

_COMMON = frozenset(
    """
    t a an and are as at be been but by can did do does for from had has have how i if in into is it its me more
    most my not of on or our out over so than that the their them then there these they this to us was we were
    what when where which who why will with would you your
    """.split()  # noqa: SIM905 - words read better as text
)


_HUMP = re.compile(r"([a-z0-9])([A-Z])")


class Passage(NamedTuple):
    """Some lines of a file."""

    path: str
    start_line: int
    end_line: int
    text: str


class RankedPassage(NamedTuple):
    """Where a ranked passage is, and how well it fits (more is better)."""

    path: str
    start_line: int
    end_line: int
    score: float


def words_of(query: str) -> list[str]:
    """The words of a query that say something, in order, each once."""
    words = [word.lower() for word in re.findall(r"[^\W_]+", split_names(query))]
    telling = [word for word in words if word not in _COMMON]
    return list(dict.fromkeys(telling or words))


def stem(word: str) -> str:
    """A word without the ending of a plural or a verb, so that it is found inside its other forms: `valv` in valve and valves."""
    for ending in ("ing", "ies", "ied", "es", "ed", "s"):
        if word.endswith(ending) and len(word) - len(ending) >= 4:
            return word.removesuffix(ending)
    return word


def split_names(text: str) -> str:
    """The text with names such as StatusChanged split, so that each of their words is found."""
    return _HUMP.sub(r"\1 \2", text)


def heart(text: str, query: str) -> tuple[int, int]:
    """Of a passage, the first line with most of the words of a query, and the last of those just after it; counted from 0."""
    words = {stem(word.casefold()) for word in words_of(query)}
    lines = text.casefold().split("\n")
    fits = [sum(word in line for word in words) if line.strip() else -1 for line in lines]
    best = fits.index(max(fits))
    last = max((at for at in range(best, min(best + HEART_LINES, len(lines))) if lines[at].strip()), default=best)
    return best, last


def passages(path: str, lines: Iterable[str], first: int = 1) -> Iterator[Passage]:
    """Consecutive lines gathered into passages of about 1,500 characters, broken at blank lines where one comes late enough."""
    held: list[str] = []
    size = 0
    for line in lines:
        held.append(line)
        size += len(line) + 1
        blank = not line.strip() and size * 2 > PASSAGE_BYTES
        if blank or size >= PASSAGE_BYTES or len(held) >= PASSAGE_LINES:
            yield Passage(path, first, first + len(held) - 1, "\n".join(held))
            first, held, size = first + len(held), [], 0
    if held:
        yield Passage(path, first, first + len(held) - 1, "\n".join(held))


class Ranking:
    """An FTS5 index over passages. Not for use from two threads at once."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    @classmethod
    def build(cls, found: Iterable[Passage], file: Path | None = None) -> Ranking:
        """Index the passages, in a temporary database that vanishes by itself, or at `file` for the next run to open."""
        if file is None:
            return cls(_fill(_connect(""), found))
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, unfinished = tempfile.mkstemp(dir=file.parent, suffix=".tmp")
        os.close(handle)
        try:
            _fill(_connect(unfinished), found).close()
            os.replace(unfinished, file)  # noqa: PTH105 - mkstemp gives a string
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(unfinished)  # noqa: PTH108 - same
        return cls.open(file)

    @classmethod
    def open(cls, file: Path) -> Ranking:
        """An index that an earlier run built; sqlite3.DatabaseError if it is damaged."""
        database = _connect(f"{file.resolve().as_uri()}?mode=ro")
        database.execute("SELECT count(*) FROM place").fetchone()
        return cls(database)

    def best(self, words: list[str], limit: int) -> list[RankedPassage]:
        """The places that fit best, best first; the same query on the same data gives the same list."""
        match = " OR ".join(f'"{word}"' for word in words)
        rows = self._database.execute(
            "SELECT place.path, start_line, end_line, -bm25(passage, 1.0, 2.0) AS score "
            "FROM passage JOIN place ON place.id = passage.rowid "
            "WHERE passage MATCH ? ORDER BY score DESC, passage.rowid LIMIT ?",
            (match, limit),
        )
        return [RankedPassage(*row) for row in rows]

    def close(self) -> None:
        """Give the database back."""
        self._database.close()


def _connect(target: str) -> sqlite3.Connection:
    return sqlite3.connect(target, uri=target.startswith("file:"), check_same_thread=False, isolation_level=None)


def _fill(database: sqlite3.Connection, found: Iterable[Passage]) -> sqlite3.Connection:
    database.execute("PRAGMA journal_mode = OFF")
    database.execute("PRAGMA synchronous = OFF")
    database.execute("PRAGMA cache_size = -16384")
    database.execute("CREATE TABLE place (id INTEGER PRIMARY KEY, path TEXT, start_line INTEGER, end_line INTEGER)")
    tokens = "tokenize='porter unicode61 remove_diacritics 2'"
    database.execute(f"CREATE VIRTUAL TABLE passage USING fts5(text, path, content='', {tokens})")
    database.execute("BEGIN")
    for number, item in enumerate(found, 1):
        database.execute("INSERT INTO place VALUES (?, ?, ?, ?)", (number, item.path, item.start_line, item.end_line))
        database.execute(
            "INSERT INTO passage(rowid, text, path) VALUES (?, ?, ?)", (number, split_names(item.text), item.path)
        )
    database.execute("COMMIT")
    return database
