"""Passages ranked by how well they fit a query (BM25, SQLite FTS5, then a closer look at the best 48).

Up to 32 MB of text are indexed once, on the first search, in a temporary database on disk or in `cache_dir` under a name that
changes with the data. For more text, the files are scanned for the stems of the query's words, and the 500 blocks of lines that
hold most of them are ranked; the answer says if there were more. Case, accents and endings of words do not matter; words of the
path count double, and names such as StatusChanged are split. The closer look prefers passages with more of the words, closer
together, with a definition that is named like them, and source before tests and copies of others' code.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import sqlite3
import tempfile
from bisect import bisect_right
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

from sonde.disk import open_database

PASSAGE_BYTES = 1_500
PASSAGE_LINES = 30
HEART_LINES = 6

_COMMON = frozenset(
    """
    t a about an and are as at be been but by can did do does for from had has have how i if in into is it its many me more
    most much my not of on or our out over so than that the their them then there these they this to us was we were
    too what when where whether which who why will with would you your
    """.split()  # noqa: SIM905 - words read better as text
)


_HUMP = re.compile(r"([a-z0-9])([A-Z])(?=[A-Za-z])")
_DEFINED = re.compile(
    r"(?m)^[ \t]*(?:[a-z]+ ){0,3}(?:def|class|func|function|fn|interface|struct|type|sub)\s+([^\W\d]\w*)"
)
_ASIDE = re.compile(
    r"(?<![a-z])(tests?|testing|examples?|vendor|third_party|node_modules|site-packages|dist-packages|fixtures?|mocks?|demos?|samples?)(?![a-z])"
)
_NAME = re.compile(r"\b[A-Za-z]+[A-Z]\w*")
_KINDS = "class def func function method fn interface struct trait enum type const variable constant module macro"
_ASKS_DEFINED = re.compile(
    r"\b(?:defin(?:ed?|es|ition)|declar(?:ed?|es|ation)|implement(?:ed|s|ation)?)\b", re.IGNORECASE
)
_IDENTIFIER = re.compile(
    r"`([^\W\d]\w*)`|\b([^\W\d]\w*)\(|\b(\w+_\w+)\b|\b([A-Za-z]+[a-z][A-Z]\w*)"
    rf"|\b(?:{_KINDS.replace(' ', '|')})\s+`?([^\W\d]\w*)"
)
MOST_NAMES, NAME_CHARS = 8, 100
CANDIDATES = 48


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


def asked_words(query: str) -> list[str]:
    """The words that a query is ranked by: the first hundred, so that a pasted log takes no longer than a question."""
    return words_of(query)[:100]


def stem(word: str) -> str:
    """A word without the ending of a plural or a verb, so that it is found inside its other forms: `valv` in valve and valves."""
    for ending in ("ing", "ies", "ied", "es", "ed", "s", "e", "y"):
        if word.endswith(ending) and len(word) - len(ending) >= 4:
            return word.removesuffix(ending)
    return word


def asked_names(query: str) -> list[str]:
    """Names whose definition a question may want: identifiers, and every word if it asks where something is defined."""
    names = [found[found.lastindex or 0] for found in _IDENTIFIER.finditer(query)]
    if _ASKS_DEFINED.search(query):
        names += [found[0] for found in re.finditer(r"[^\W\d]\w+", _ASKS_DEFINED.sub(" ", query))]
    untold = {*_COMMON, *_KINDS.split()}
    telling = (name for name in names if name.lower() not in untold and len(name) <= NAME_CHARS)
    return list(dict.fromkeys(telling))[:MOST_NAMES]


def definition_of(names: Iterable[str]) -> str:
    """A pattern (RE2) for the beginning of a line that defines one of these names, in the usual languages."""
    named = rf"(?:{'|'.join(map(re.escape, names))})"
    word = r"(?:def|class|func|function|fn|interface|struct|trait|enum|type|sub|const|static|let|var|val|#define|macro_rules!)"
    before = r"(?:[a-z]+(?:\([a-z]*\))? ){0,4}"  # export default async, pub(crate)
    return rf"^(?:[ \t]*{before}{word}\*?\s+(?:\([^()]*\)\s*)?{named}\b|{named}\s*(?::[^=]*)?=(?:[^=]|$))"


def split_names(text: str) -> str:
    """The text with names such as StatusChanged split, so that each of their words is found."""
    return _HUMP.sub(r"\1 \2", text)


class Words:
    """The words of a query, found in text by their stems; `weight` says how much each of them tells."""

    def __init__(self, query: str, weight: Mapping[str, float] | None = None) -> None:
        self.weight = {each: (weight or {}).get(each, 1.0) for each in map(stem, asked_words(query))}
        self._total = sum(self.weight.values()) or 1.0
        self._written = [re.compile(rf"(?<![^\W_]){name}(?![^\W_])") for name in set(_NAME.findall(query))]

    def written(self, text: str) -> int:
        """How many names of the query the text has as they are written there, such as NaN."""
        return sum(name.search(text) is not None for name in self._written)

    def lines(self, text: str) -> list[set[str]]:
        """The stems in each line of a text. A word may be up to four letters longer than its stem; a stem of three letters, one."""
        lowered = split_names(text).lower()
        ends = list(accumulate(len(line) + 1 for line in lowered.split("\n")))  # where the next line begins
        found: list[set[str]] = [set() for _ in ends]
        for each in self.weight:
            longer, size, at = 4 if len(each) > 3 else 1, len(each), lowered.find(each)
            while at >= 0:
                end = at + size
                while end <= at + size + longer and lowered[end : end + 1].isalnum():
                    end += 1
                if end <= at + size + longer and not lowered[at - 1 : at].isalnum():
                    found[bisect_right(ends, at)].add(each)
                at = lowered.find(each, end)
        return found

    def named(self, name: str) -> set[str]:
        """The stems anywhere in a name, which is often several words in one: isleap, heappop."""
        lowered = name.lower()
        return {each for each in self.weight if each in lowered and len(each) > 2}

    def share(self, stems: Iterable[str]) -> float:
        """How much of the query these stems are, from 0 to 1."""
        return sum(map(self.weight.__getitem__, stems)) / self._total

    def fit(self, path: str, text: str) -> float:
        """How well a passage answers: how much of the query it holds, how close together, and whether it defines what is asked for."""
        lines = self.lines(text)
        filed = self.named(path)
        cover = self.share(filed.union(*lines))
        telling = [at for at, held in enumerate(lines) if held]
        near = max((self.share(filed.union(*lines[at : at + HEART_LINES])) for at in telling), default=0.0)
        defined = (self.named(name) for name in _DEFINED.findall(text))
        named = max(map(self.share, defined), default=0.0)
        return (0.2 + cover + near + 2 * named + 0.5 * self.written(text)) * prior(path, self.weight)


def hearts(passages: Sequence[tuple[str, str]], query: str) -> list[tuple[int, int]]:
    """Of each passage, given as (path, text), the lines that bear most on a query: the first and the last, counted from 0.

    A word in few of the lines tells more than one in all of them, a word of the path tells little about a line, and a name is
    best found as it is written.
    """
    asked = Words(query)
    held = [asked.lines(text) for _, text in passages]
    common = Counter(each for lines in held for line in lines for each in line)
    rarity = {each: math.log(1 + sum(map(len, held)) / (1 + common[each])) for each in asked.weight}
    chosen: list[tuple[int, int]] = []
    for (path, text), found in zip(passages, held, strict=True):
        lines, filed = text.split("\n"), asked.named(path)
        worth = {each: value * (0.3 if each in filed else 1.0) for each, value in rarity.items()}
        fits: dict[int, float] = {}
        for at, line in enumerate(lines):
            if line.strip():
                defined = _DEFINED.match(line)
                named = asked.named(defined[1]) if defined else set[str]()
                around = named.union(*found[at : at + HEART_LINES])
                fits[at] = sum(
                    worth[each] * (1 + 0.4 * (each in found[at] | named) + 0.8 * (each in named)) for each in around
                )
                fits[at] += asked.written(line)
        first = max(fits, key=fits.__getitem__, default=0)
        chosen.append((first, max((at for at in fits if first <= at < first + HEART_LINES), default=first)))
    return chosen


def prior(path: str, asked: Container[str]) -> float:
    """What a path says for itself: tests, examples and copies of others' code seldom hold the answer, unless they are asked for."""
    found = set(_ASIDE.findall(path.lower()))
    return 1.0 if not found or any(each in asked or stem(each) in asked for each in found) else 0.4


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
            return cls(_fill(sqlite3.connect("", check_same_thread=False, isolation_level=None), found))
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, unfinished = tempfile.mkstemp(dir=file.parent, suffix=".tmp")
        os.close(handle)
        try:
            _fill(open_database(unfinished, "rw"), found).close()
            os.replace(unfinished, file)  # noqa: PTH105 - mkstemp gives a string
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(unfinished)  # noqa: PTH108 - same
        return cls.open(file)

    @classmethod
    def open(cls, file: Path) -> Ranking:
        """An index that an earlier run built; sqlite3.DatabaseError if it is damaged."""
        database = open_database(file.resolve())
        database.execute("SELECT max(id) FROM place").fetchone()
        return cls(database)

    def best(self, query: str, limit: int, weight: Mapping[str, float] | None = None) -> list[RankedPassage]:
        """The places that fit best, best first; the same query on the same data gives the same list.

        `weight` says how much each stem tells, for an index that holds only some of the data.
        """
        words = asked_words(query)
        if weight is None:
            total = self._database.execute("SELECT max(id) FROM place").fetchone()[0] or 0
            weight = {stem(word): math.log(1 + total / (1 + self._holding(word))) for word in words}
        joined = [first + second for first, second in pairwise(words)]  # a named tuple is a namedtuple
        match = " OR ".join(f'"{word}"' for word in [*words, *joined])
        rows = self._database.execute(
            "SELECT place.*, score FROM (SELECT rowid AS found, -bm25(passage, 1.0, 2.0) AS score FROM passage "
            "WHERE passage MATCH ? ORDER BY score DESC, rowid LIMIT ?) JOIN place ON place.id = found",
            (match, max(CANDIDATES, 2 * limit)),
        ).fetchall()
        asked = Words(query, weight)
        ranked = [
            (RankedPassage(path, first, last, score * asked.fit(path, text)), row)
            for row, path, first, last, text, score in rows
        ]
        ranked.sort(key=lambda each: (-each[0].score, each[1]))
        return [place for place, _ in ranked[:limit]]

    def _holding(self, word: str) -> int:
        rows = self._database.execute("SELECT count(*) FROM passage WHERE passage MATCH ?", (f'"{word}"',))
        return rows.fetchone()[0]

    def close(self) -> None:
        """Give the database back."""
        self._database.close()


def _fill(database: sqlite3.Connection, found: Iterable[Passage]) -> sqlite3.Connection:
    database.execute("PRAGMA journal_mode = OFF")
    database.execute("PRAGMA synchronous = OFF")
    database.execute("PRAGMA cache_size = -16384")
    database.execute(
        "CREATE TABLE place (id INTEGER PRIMARY KEY, path TEXT, start_line INTEGER, end_line INTEGER, text TEXT)"
    )
    tokens = "tokenize='porter unicode61 remove_diacritics 2'"
    database.execute(f"CREATE VIRTUAL TABLE passage USING fts5(text, path, content='', {tokens})")
    database.execute("BEGIN")
    for number, item in enumerate(found, 1):
        database.execute("INSERT INTO place VALUES (?, ?, ?, ?, ?)", (number, *item))
        database.execute(
            "INSERT INTO passage(rowid, text, path) VALUES (?, ?, ?)", (number, split_names(item.text), item.path)
        )
    database.execute("COMMIT")
    return database
