"""The SQLite index of traces: spans, their content and an FTS5 index of words, written in batches by a thread of its own.

It is a cache of trace files, or, as STORE_FILE with the table of STORE_TABLES, the store that `sonde watch --listen` fills.

A span's words are those of its name, its status message and the first 4 kB of every attribute; spans with more are marked `deep`, so that a
search can say what it has not looked at and look there on demand. The first span with an id wins; later ones become gaps.
"""

from __future__ import annotations

import queue
import sqlite3
import threading
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Self, cast

import msgspec

from sonde.contexts.traces.genai import scrubbed
from sonde.contexts.traces.importers.records import Malformed
from sonde.contexts.traces.span import Span, SpanEvent, SpanSummary
from sonde.core.canonical import hash_value
from sonde.disk import open_database
from sonde.errors import ConfigError, ToolResponseInvalid

VERSION = 7  # of what is made of a file: an index of an older version is made again
CONTENT = 5  # in every fingerprint: recorded runs know their sources by them
WORDS_PER_VALUE = 4096
WORDS_PER_SPAN = 256 * 1024
BATCH_SPANS = 1000
BATCH_BYTES = 4 * 1024 * 1024
KEPT_MALFORMED = 1000
SCHEMA = """
CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE files(name TEXT PRIMARY KEY, size INTEGER, sha256 TEXT, offset INTEGER, line INTEGER, form TEXT);
CREATE TABLE malformed(file TEXT, line INTEGER, reason TEXT, unfinished INTEGER);
CREATE TABLE spans(
  id INTEGER PRIMARY KEY, trace_id TEXT, span_id TEXT UNIQUE, parent_id TEXT, name TEXT, kind TEXT, status TEXT,
  status_message TEXT, start_us INTEGER, end_us INTEGER, exception INTEGER, deep INTEGER);
CREATE TABLE bodies(id INTEGER PRIMARY KEY, body BLOB, gaps TEXT);
CREATE TABLE traces(trace_id TEXT PRIMARY KEY, project TEXT, spans INTEGER, errors INTEGER, start_us INTEGER, end_us INTEGER)
  WITHOUT ROWID;
CREATE TABLE gaps(trace_id TEXT, gap TEXT);
CREATE VIRTUAL TABLE words USING fts5(text, content='', columnsize=0, detail=none, tokenize="unicode61 tokenchars '_'");
"""
INDEXES = """
CREATE INDEX IF NOT EXISTS spans_of_trace ON spans(trace_id, start_us, span_id);
CREATE INDEX IF NOT EXISTS spans_of_parent ON spans(parent_id);
CREATE INDEX IF NOT EXISTS traces_in_time ON traces(project, start_us, trace_id);
CREATE INDEX IF NOT EXISTS gaps_of_trace ON gaps(trace_id);
CREATE INDEX IF NOT EXISTS deep_spans ON spans(id) WHERE deep;
CREATE INDEX IF NOT EXISTS failed_spans ON spans(trace_id) WHERE status = 'ERROR';
"""
STORE_FILE = "spans.sqlite"
STORE_MARK = 0x534F_4E44  # SQLite's application_id
STORE_TABLES = """
CREATE TABLE arrivals(id INTEGER PRIMARY KEY, at INTEGER);
CREATE INDEX traces_by_start ON traces(start_us, trace_id);
"""
"""When spans arrived: those from `id` on not before `at`, in seconds since 1970. A watch lists the newest traces every minute."""
_UPSERT_TRACE = """
INSERT INTO traces VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT(trace_id) DO UPDATE SET
  spans = spans + excluded.spans, errors = errors + excluded.errors,
  start_us = min(start_us, excluded.start_us), end_us = max(end_us, excluded.end_us)
"""
_TEXT, _NUMBER = (str, type(None)), (int, type(None))
_Value: Any = str | int | float | bool | list[Any] | dict[str, Any] | None
_BODY: msgspec.msgpack.Decoder[tuple[dict[str, Any], list[tuple[str, int, dict[str, Any]]], dict[str, str]]] = (
    msgspec.msgpack.Decoder(tuple[dict[str, _Value], list[tuple[str, int, dict[str, _Value]]], dict[str, str]])
)
SUMMARY_COLUMNS = (
    "spans.trace_id, spans.span_id, spans.parent_id, spans.name, spans.kind, spans.status, spans.status_message, "
    "spans.start_us, spans.end_us, spans.exception"
)


@dataclass(slots=True)
class SpanBatch:
    """Spans as rows of the tables, encoded but not yet written."""

    spans: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    bodies: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    words: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    places: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    projects: list[str] = field(default_factory=list[str])
    size: int = 0

    def add(self, number: int, span: Span, project: str, file: str = ".", line: int = 0) -> None:
        """Encode one span, which gets this number in the index."""
        summary = span.summary
        body = encode_body(span)
        words, deep = words_of(span)
        self.spans.append(
            (
                number,
                summary.trace_id,
                summary.span_id,
                summary.parent_id,
                summary.name,
                summary.kind,
                summary.status,
                summary.status_message,
                summary.start_us,
                summary.end_us,
                summary.exception,
                deep,
            )
        )
        self.bodies.append((number, body, msgspec.json.encode(span.gaps).decode() if span.gaps else None))
        self.words.append((number, words))
        self.places.append((file, line))
        self.projects.append(project)
        self.size += len(body)

    def owners(self, connection: sqlite3.Connection) -> dict[str, str]:
        """The traces of those span ids that the index has already."""
        ids = msgspec.json.encode([row[2] for row in self.spans]).decode()
        query = "SELECT spans.span_id, spans.trace_id FROM json_each(?) JOIN spans ON spans.span_id = json_each.value"
        return dict(connection.execute(query, (ids,)).fetchall())

    def leave_out(self, positions: set[int]) -> None:
        """Drop the spans at these positions."""
        for rows in cast("list[list[Any]]", [self.spans, self.bodies, self.words, self.places, self.projects]):
            rows[:] = [row for position, row in enumerate(rows) if position not in positions]

    def write(self, connection: sqlite3.Connection) -> None:
        """Insert the rows, inside the transaction that is open."""
        run = connection.executemany
        run("INSERT INTO spans VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", self.spans)
        run("INSERT INTO bodies VALUES (?, ?, ?)", self.bodies)
        run("INSERT INTO words(rowid, text) VALUES (?, ?)", self.words)
        run(_UPSERT_TRACE, _trace_rows(self))


class IndexWriter:
    """Fills an index, inside a `with`. `add` encodes; a thread writes, so that both cores work; `finish` waits for it and says what failed.
    Without `finish` nothing is committed.
    """

    def __init__(self, path: Path, *, new: bool, project: str | None = None) -> None:
        self._project = project
        self._connection = open_database(path, "rwc" if new else "rw")
        run = self._connection.execute
        run("PRAGMA cache_size = -65536")
        if new:
            run("PRAGMA page_size = 8192")
            run("PRAGMA journal_mode = OFF")
            run("PRAGMA synchronous = OFF")
            self._connection.executescript(SCHEMA)
            run("INSERT INTO words(words, rank) VALUES ('hashsize', 33554432)")
            run("INSERT INTO words(words, rank) VALUES ('automerge', 8)")
        run("BEGIN IMMEDIATE")
        (last,) = self._connection.execute("SELECT coalesce(max(id), 0) FROM spans").fetchone()
        self._last: int = last
        self._batch = SpanBatch()
        self._queue: queue.Queue[SpanBatch | None] = queue.Queue(maxsize=2)
        self._failure: sqlite3.Error | None = None
        self._clashes = 0
        self._clashing: list[tuple[str, Malformed]] = []
        self._thread = threading.Thread(target=self._write_batches, name="sonde-index", daemon=True)
        self._thread.start()

    def add(self, span: Span, line: int = 0, file: str = ".") -> None:
        """Queue one span of this line of a file."""
        self._last += 1
        self._batch.add(self._last, span, self._project or span.project, file, line)
        if len(self._batch.spans) >= BATCH_SPANS or self._batch.size >= BATCH_BYTES:
            self._hand_over()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._connection.close()

    def finish(
        self,
        *,
        files: Iterable[tuple[Any, ...]],
        malformed: Iterable[tuple[str, Malformed]],
        gaps: Iterable[tuple[str, str]] = (),
        meta: Mapping[str, str],
    ) -> None:
        """Write what is left, the state of the files, gaps by trace and the indexes; the index is complete after this."""
        self._hand_over()
        self._stop()
        if self._failure is not None:
            raise self._failure
        run = self._connection
        rows = [(name, bad.line, bad.reason, bad.unfinished) for name, bad in (*malformed, *self._clashing)]
        meta = {**meta, "version": str(VERSION), "malformed": str(int(meta["malformed"]) + self._clashes)}
        run.execute("DELETE FROM malformed WHERE unfinished")
        run.executemany("INSERT INTO malformed VALUES (?, ?, ?, ?)", rows)
        run.executemany("INSERT INTO gaps VALUES (?, ?)", gaps)
        run.executemany("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?)", files)
        run.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", meta.items())
        for statement in INDEXES.strip().split(";"):
            run.execute(statement)
        run.execute("COMMIT")

    def _stop(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _hand_over(self) -> None:
        if self._batch.spans:
            self._queue.put(self._batch)
            self._batch = SpanBatch()

    def _write_batches(self) -> None:
        while (batch := self._queue.get()) is not None:
            if self._failure is None:
                try:
                    if repeated := self._repeated(batch):
                        batch.leave_out(repeated)
                    batch.write(self._connection)
                except sqlite3.Error as failure:
                    self._failure = failure

    def _repeated(self, batch: SpanBatch) -> set[int]:
        """Positions of spans whose id is taken: told as a gap of their trace, and as malformed when another trace has the id."""
        taken = batch.owners(self._connection)
        firsts: dict[str, Any] = {}
        tell = self._connection.execute
        repeated: set[int] = set()
        for position, row in enumerate(batch.spans):
            trace_id, span_id = row[1], row[2]
            owner = taken.get(span_id)
            content = (row[4], row[7], batch.bodies[position][1])
            if owner is None:
                taken[span_id], firsts[span_id] = trace_id, content
                continue
            repeated.add(position)
            file, line = batch.places[position]
            if owner == trace_id:
                kept = "SELECT name, status_message, body FROM spans JOIN bodies USING (id) WHERE span_id = ?"
                first = firsts[span_id] if span_id in firsts else tell(kept, (span_id,)).fetchone()
                other = "" if first == content else " with other content"
                gap = f"span id {span_id} appears again{other} (line {line}); the first one was kept"
                tell("INSERT INTO gaps VALUES (?, ?)", (trace_id, gap))
                continue
            gap = f"span {span_id} was left out: another trace has a span of that id"
            tell("INSERT INTO gaps VALUES (?, ?)", (trace_id, gap))
            self._clashes += 1
            if len(self._clashing) < KEPT_MALFORMED:
                reason = f"span {span_id} of trace {trace_id}: trace {owner} has a span of that id, and ids must differ"
                self._clashing.append((file, Malformed(line, 0, reason)))
        return repeated


def summary_of(row: tuple[Any, ...]) -> SpanSummary:
    """The summary behind a row of SUMMARY_COLUMNS. In the store of a stranger a column may hold anything."""
    trace_id, span_id, parent_id, name, kind, status, message, start_us, end_us, exception = row
    texts = type(trace_id) is type(span_id) is type(name) is type(kind) is type(status) is type(message) is str
    if not texts or type(start_us) is not int or type(parent_id) not in _TEXT or type(end_us) not in _NUMBER:
        raise ToolResponseInvalid(
            "the index of these traces is damaged or forged: a span has columns of the wrong type"
        )
    return SpanSummary(
        trace_id=trace_id,
        span_id=span_id,
        parent_id=parent_id,
        name=name,
        kind=kind,
        status=status,
        status_message=message,
        start_us=start_us,
        end_us=end_us,
        exception=bool(exception),
    )


def encode_body(span: Span) -> bytes:
    """Attributes, events and the resource as the index keeps them."""
    events = [(event.name, event.time_us, event.attributes) for event in span.events]
    body = (span.attributes, events, span.resource)
    try:
        return msgspec.msgpack.encode(body)
    except UnicodeEncodeError:
        return msgspec.msgpack.encode(scrubbed(body))


def decode_body(body: bytes) -> tuple[dict[str, Any], tuple[SpanEvent, ...], dict[str, str]]:
    """Attributes, events and the resource back from the index."""
    try:
        attributes, events, resource = _BODY.decode(body)
    except (msgspec.DecodeError, UnicodeError, TypeError, RecursionError) as broken:
        raise ToolResponseInvalid(f"the index of these traces is damaged or forged: {broken}") from None
    shown = tuple(SpanEvent(name=name, time_us=time_us, attributes=table) for name, time_us, table in events)
    return attributes, shown, resource


def words_of(span: Span) -> tuple[str, bool]:
    """The text to index and whether something was too long for it."""
    values = [span.summary.status_message, *span.attributes.values()]
    for event in span.events:
        values += event.attributes.values()
    texts = [value if type(value) is str else str(value) for value in values if type(value) in (str, list)]
    deep = any(len(text) > WORDS_PER_VALUE for text in texts)
    text = "\n".join([span.summary.name, *(text[:WORDS_PER_VALUE] for text in texts)])
    shown = text[:WORDS_PER_SPAN]
    return shown if shown.isascii() else scrubbed(shown), deep or len(text) > WORDS_PER_SPAN


def is_store(header: bytes) -> bool:
    """Whether a file that begins like this is a store, not an index of files."""
    return header.startswith(b"SQLite format 3\0") and header[68:72] == STORE_MARK.to_bytes(4, "big")


def store_fingerprint(file: Path, upto: int | None = None) -> str:
    """What a store holds now, or held when it had this many spans, as a hash: spans in it never change. ConfigError if the file is not as
    Sonde makes it; it may be a stranger's, and other tables, views or triggers could compute anything.
    """
    try:
        with closing(open_database(file)) as connection:
            if _tables(connection) != _store_schema():
                raise ConfigError(f"{file} is not a store of this version of Sonde: its tables differ")
            meta = dict(connection.execute("SELECT key, value FROM meta WHERE length(value) < 100").fetchall())
            (first,) = connection.execute("SELECT coalesce(min(id), 0) FROM spans").fetchone()
    except sqlite3.Error as broken:
        raise ConfigError(f"{file} cannot be read: {broken}") from None
    return hash_value([CONTENT, str(meta.get("store")), str(meta.get("last") if upto is None else upto), first])


def store_last(file: Path) -> int:
    """The number of the last span of a store."""
    with closing(open_database(file)) as connection:
        return int(connection.execute("SELECT coalesce(max(id), 0) FROM spans").fetchone()[0])


def stand_still(connection: sqlite3.Connection, upto: int, schema: str = "main") -> None:
    """Let `spans` and `traces` of a connection be those of a store when `upto` was its last span. Traces that have grown since are in
    `grown` as they were; `note_grown` puts them there.
    """
    for statement in (
        "CREATE TEMP TABLE grown(trace_id TEXT PRIMARY KEY, project TEXT, spans INTEGER, errors INTEGER, start_us INTEGER, end_us INTEGER)",
        f"CREATE TEMP VIEW spans AS SELECT * FROM {schema}.spans WHERE id <= {upto:d}",  # noqa: S608 - a number
        f"""CREATE TEMP VIEW traces AS SELECT trace_id, project, spans, errors, start_us, end_us FROM {schema}.traces AS t
            WHERE NOT EXISTS (SELECT 1 FROM temp.grown AS g WHERE g.trace_id = t.trace_id)
            AND (SELECT s.id FROM {schema}.spans AS s WHERE s.trace_id = t.trace_id LIMIT 1) <= {upto:d}
            UNION ALL SELECT trace_id, project, spans, errors, start_us, end_us FROM temp.grown""",  # noqa: S608 - a number
    ):
        connection.execute(statement)


def note_grown(connection: sqlite3.Connection, upto: int, seen: int, schema: str = "main") -> int:
    """Note the traces that had spans up to `upto` and have got more after `seen`, as they were; the last span now."""
    (last,) = connection.execute(f"SELECT coalesce(max(id), 0) FROM {schema}.spans").fetchone()  # noqa: S608 - our own names
    if last > max(seen, upto):
        connection.execute(
            f"""INSERT OR IGNORE INTO temp.grown
                SELECT trace_id, (SELECT project FROM {schema}.traces AS t WHERE t.trace_id = s.trace_id), count(*), sum(status = 'ERROR'),
                  min(start_us), max(max(start_us, coalesce(end_us, start_us)))
                FROM {schema}.spans AS s WHERE id <= ?3
                AND trace_id IN (SELECT trace_id FROM {schema}.spans WHERE id > ?1 AND id <= ?2) GROUP BY trace_id""",  # noqa: S608 - our own names
            (max(seen, upto), last, upto),
        )
    return last


def _tables(connection: sqlite3.Connection) -> set[tuple[Any, ...]]:
    return set(connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master LIMIT 100").fetchall())


@cache
def _store_schema() -> set[tuple[Any, ...]]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(SCHEMA + INDEXES + STORE_TABLES)
        return _tables(connection)


def _trace_rows(batch: SpanBatch) -> list[tuple[Any, ...]]:
    """One row per trace of the batch: counts and the span of time."""
    rows: dict[str, list[Any]] = {}
    for row, project in zip(batch.spans, batch.projects, strict=True):
        trace_id, status, start_us, end_us = row[1], row[6], row[8], row[9]
        end = start_us if end_us is None else max(start_us, end_us)
        known = rows.setdefault(trace_id, [project, 0, 0, start_us, end])
        known[1] += 1
        known[2] += status == "ERROR"
        known[3], known[4] = min(known[3], start_us), max(known[4], end)
    return [(trace_id, *row) for trace_id, row in rows.items()]
