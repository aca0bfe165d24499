"""Traces in files, read through an SQLite index. Point reads cost the same however large the files are."""

from __future__ import annotations

import re
import sqlite3
import tempfile
import threading
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from sonde.contexts.traces.cache import open_index, shown
from sonde.contexts.traces.index import STORE_FILE, SUMMARY_COLUMNS, decode_body, note_grown, stand_still, summary_of
from sonde.contexts.traces.shape import shape_gaps
from sonde.contexts.traces.span import Span, SpanSummary
from sonde.contexts.traces.store import Page, TraceQuery, TraceRow, unknown_span, unknown_trace
from sonde.core.canonical import plural
from sonde.disk import open_database
from sonde.errors import ToolResponseInvalid

SCANNED_SPANS = 200_000
MOST_HELD = 512 << 20
"""Characters of one answer. The rows of a forged store may share their pages, so that a small file has texts without end."""
AT_ONCE = 8 << 20
_COLUMN_OF = {"name": "name", "span_kind": "kind", "status_code": "status"}
_PROJECT = "(SELECT project FROM traces WHERE traces.trace_id = spans.trace_id)"
_SPAN = f"SELECT {SUMMARY_COLUMNS}, body, gaps, {_PROJECT} FROM spans JOIN bodies USING (id)"  # noqa: S608 - constants only


class IndexStore:
    """The reads of a trace store over one SQLite index, wherever its spans came from."""

    def __init__(self, index: Path, name: str, upto: int | None = None) -> None:
        self.index = index
        self.name = name
        """What people call the source."""
        self.upto = upto
        """The last span that counts; None: all of them, also those to come."""
        self._seen = upto or 0
        self._connection = open_database(index.resolve())
        self._connection.execute("PRAGMA cache_size = -16384")
        if upto is not None:
            stand_still(self._connection, upto)
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the index."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def counted(self) -> str:
        """How much there is, in words."""
        ((traces, spans, errors),) = self._all(
            "SELECT count(*), coalesce(sum(spans), 0), coalesce(sum(errors), 0) FROM traces"
        )
        return f"{plural(traces, 'trace')}, {plural(spans, 'span')}, {errors:,} with errors"

    def projects(self) -> list[str]:
        """Names, sorted."""
        return [name for (name,) in self._all("SELECT DISTINCT project FROM traces ORDER BY project")]

    def latest_us(self) -> int | None:
        """When the last trace began."""
        ((latest,),) = self._all("SELECT max(start_us) FROM traces")
        return latest

    def holds(self, trace_id: str) -> bool:
        """Whether a trace is here."""
        return bool(self._all("SELECT 1 FROM traces WHERE trace_id = ?", (trace_id,)))

    def traces(self, query: TraceQuery) -> Page:
        """Traces by (start, id); at most SCANNED_SPANS spans are opened for a filter."""
        given = {"project = ?": query.project, "start_us >= ?": query.start_us, "start_us < ?": query.end_us}
        where = [sql for sql, value in given.items() if value is not None]
        values: list[Any] = [value for value in given.values() if value is not None]
        required = {} if query.condition is None else query.condition.required
        if required.get("status_code") == "ERROR":
            where.append("errors > 0")
        if query.after is not None:
            if not self.holds(query.after):
                raise unknown_trace(query.after)
            where.append("(start_us, trace_id) > (SELECT start_us, trace_id FROM traces WHERE trace_id = ?)")
            values.append(query.after)
        condition = f" WHERE {' AND '.join(where)}" if where else ""
        sql = f"SELECT project, trace_id, spans, start_us, end_us, errors FROM traces{condition} ORDER BY start_us, trace_id"  # noqa: S608 - values are bound
        inside = " AND ".join(["trace_id = ?", *(f"{_COLUMN_OF[key]} = ?" for key in required)])
        rows: list[TraceRow] = []
        scanned, last = 0, query.after
        for project, trace_id, count, start_us, end_us, errors in self._each(sql, tuple(values)):
            numbers = type(count) is type(start_us) is type(end_us) is type(errors) is int
            if not numbers or type(project) is not str or type(trace_id) is not str:
                raise ToolResponseInvalid(f"{self.name} is damaged or forged: a trace has columns of the wrong type")
            if query.condition is not None:
                if scanned >= SCANNED_SPANS:
                    return Page(tuple(rows), f"{scanned} spans were scanned; go on with after={last!r}")
                scanned, last = scanned + count, trace_id
                spans = self._each(f"{_SPAN} WHERE {inside}", (trace_id, *required.values()))
                if not any(query.condition.matches(_span_of(span)) for span in spans):
                    continue
            if len(rows) == query.limit:
                more = f"more than {plural(query.limit, 'trace')}; go on with after={rows[-1].trace_id!r}"
                return Page(tuple(rows), more)
            rows.append(
                TraceRow(
                    project=project,
                    trace_id=trace_id,
                    span_count=count,
                    start_us=start_us,
                    end_us=end_us,
                    error_spans=errors,
                )
            )
        return Page(tuple(rows))

    def summaries(self, trace_id: str) -> Sequence[SpanSummary]:
        """All spans of a trace, by (start, id)."""
        sql = f"SELECT {SUMMARY_COLUMNS} FROM spans WHERE trace_id = ? ORDER BY start_us, span_id"  # noqa: S608 - constants only
        found = [summary_of(row) for row in self._all(sql, (trace_id,))]
        if not found:
            raise unknown_trace(trace_id)
        return found

    def children(self, span_id: str) -> Sequence[SpanSummary]:
        """Direct children, by (start, id)."""
        rows = self._all("SELECT trace_id FROM spans WHERE span_id = ?", (span_id,))
        if not rows:
            raise unknown_span(span_id)
        sql = f"SELECT {SUMMARY_COLUMNS} FROM spans WHERE parent_id = ? AND trace_id = ? ORDER BY start_us, span_id"  # noqa: S608 - constants only
        return [summary_of(row) for row in self._all(sql, (span_id, rows[0][0]))]

    def span(self, span_id: str) -> Span:
        """One whole span."""
        rows = self._all(f"{_SPAN} WHERE span_id = ?", (span_id,))
        if not rows:
            raise unknown_span(span_id)
        return _span_of(rows[0])

    def spans(self, trace_id: str) -> Iterator[Span]:
        """Every span of a trace with its content, one at a time."""
        empty = True
        for row in self._each(f"{_SPAN} WHERE trace_id = ? ORDER BY start_us, span_id", (trace_id,)):
            empty = False
            yield _span_of(row)
        if empty:
            raise unknown_trace(trace_id)

    def gaps(self, trace_id: str) -> list[str]:
        """Repeated ids, what importers found in the spans, and what is wrong with the shape of the tree."""
        ((count,),) = self._all("SELECT count(*) FROM gaps WHERE trace_id = ?", (trace_id,))
        rows = self._all("SELECT gap FROM gaps WHERE trace_id = ? ORDER BY rowid LIMIT 100", (trace_id,))
        repeated = [gap for (gap,) in rows]
        if count > 100:
            repeated.append(f"{count - 100} more span ids that appear again are not listed")
        sql = """SELECT span_id, gaps FROM spans JOIN bodies USING (id) WHERE trace_id = ? AND gaps IS NOT NULL
                 ORDER BY start_us, span_id LIMIT 100"""
        inside = [f"{span_id}: {gap}" for span_id, text in self._all(sql, (trace_id,)) for gap in _gaps_of(text)]
        return [*shape_gaps(self.summaries(trace_id)), *repeated, *inside]

    def search(self, words: str, *, limit: int = 100, prefix: bool = False) -> list[tuple[str, str]]:
        """(trace_id, span_id) of spans that hold all these words, or with `prefix` words that begin so, near the start of an attribute."""
        terms = " AND ".join(f'"{term}"{"*" * prefix}' for term in terms_of(words))
        sql = """SELECT trace_id, span_id FROM words JOIN spans ON spans.id = words.rowid WHERE words MATCH ?
                 ORDER BY words.rowid LIMIT ?"""
        return self._all(sql, (terms, limit)) if terms else []

    def deep_spans(self) -> int:
        """How many spans have attributes beyond what the word index holds."""
        ((count,),) = self._all("SELECT count(*) FROM spans WHERE deep")
        return count

    def deep(self) -> Iterator[Span]:
        """The spans that the word index does not hold whole."""
        for row in self._each(f"{_SPAN} WHERE deep ORDER BY spans.id", ()):
            yield _span_of(row)

    def _all(self, sql: str, values: tuple[Any, ...] = ()) -> list[Any]:
        rows: list[Any] = []
        held = 0
        for row in self._each(sql, values):
            rows.append(row)
            held += _length(row)
            if held > MOST_HELD:
                raise ToolResponseInvalid(
                    f"{self.name} cannot be read: texts of more than {MOST_HELD >> 20} MiB at once"
                )
        return rows

    def _each(self, sql: str, values: tuple[Any, ...]) -> Iterator[Any]:
        """Rows a few at a time: neither all in memory nor the lock held while the caller works."""
        try:
            with self._lock:
                if self.upto is not None:
                    self._seen = note_grown(self._connection, self.upto, self._seen)
                cursor = self._connection.execute(sql, values)
            while True:
                rows: list[Any] = []
                room = AT_ONCE
                with self._lock:
                    while room > 0 and len(rows) < 50 and (row := cursor.fetchone()) is not None:
                        rows.append(row)
                        room -= _length(row)
                if not rows:
                    return
                yield from rows
        except sqlite3.DatabaseError as broken:
            raise ToolResponseInvalid(f"{self.name} cannot be read: {broken}") from None


def _length(row: tuple[Any, ...]) -> int:
    return sum(len(value) for value in row if isinstance(value, str | bytes))


class FileStore(IndexStore):
    """A trace store over one file or a folder. Without a cache folder the index lives as long as the store. What a listener fills goes on
    growing, unless it must stand still (see `open_index`).
    """

    def __init__(
        self,
        source: Path,
        *,
        cache: Path | None = None,
        cache_gb: float | None = None,
        project: str | None = None,
        still: bool = False,
        upto: int | None = None,
    ) -> None:
        self.source = source
        self._temporary = tempfile.TemporaryDirectory(prefix="sonde-traces-") if cache is None else None
        folder = cache or Path(self._temporary.name if self._temporary else "")
        try:
            self.indexed = open_index(source, folder, project=project, most_gb=cache_gb, still=still, upto=upto)
        except BaseException:
            self._clean()
            raise
        super().__init__(self.indexed.path, source.name, self.indexed.upto)

    def close(self) -> None:
        """Close the index, and remove it when it was temporary."""
        super().close()
        self.indexed.claim.close()
        self._clean()

    def _clean(self) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()

    def describe(self) -> str:
        """What the files hold, in one paragraph."""
        bad = self.malformed_count()
        skipped = f" {plural(bad, 'malformed record')} skipped." if bad else ""
        projects = ", ".join(self.projects()[:10])
        return f"Trace files {self.source.name}: {self.counted()}; projects: {projects}.{skipped}"

    def fingerprint(self) -> str:
        """The hash of the files' content."""
        return self.indexed.content

    def late(self, after: int, before_us: int) -> tuple[int, int]:
        """How many traces that began before this came to the store of a listener after the span with this number, and the last span now.
        Other sources do not say what came when.
        """
        if self.indexed.path.name != STORE_FILE:
            return 0, 0
        ((last,),) = self._all("SELECT coalesce(max(id), 0) FROM spans")
        sql = """SELECT count(DISTINCT trace_id) FROM spans AS new WHERE id > ?1 AND id <= ?2
                 AND (SELECT start_us FROM traces WHERE traces.trace_id = new.trace_id) < ?3
                 AND NOT EXISTS (SELECT 1 FROM spans AS old WHERE old.trace_id = new.trace_id AND old.id <= ?1)"""
        ((count,),) = self._all(sql, (after, last, before_us)) if after else ((0,),)
        return count, last

    def malformed_count(self) -> int:
        """How many records were skipped."""
        ((count,),) = self._all("SELECT value FROM meta WHERE key = 'malformed'")
        ((unfinished,),) = self._all("SELECT count(*) FROM malformed WHERE unfinished")
        return int(count) + unfinished

    def malformed(self) -> list[dict[str, Any]]:
        """The first skipped records: file, line and reason."""
        rows = self._all("SELECT file, line, reason FROM malformed ORDER BY file, line")
        return [{"file": shown(self.source, file), "line": line, "reason": reason} for file, line, reason in rows]

    def skipped(self) -> list[str]:
        """How many records could not be read, and where the first of them are."""
        count = self.malformed_count()
        if not count:
            return []
        places = ", ".join(f"{row['file']}:{row['line']}" for row in self.malformed()[:3])
        more = ", …" if count > 3 else ""
        told = f"{plural(count, 'malformed record')} skipped ({places}{more}): `sonde traces import` says why"
        sql = """SELECT (SELECT count(*) FROM malformed WHERE unfinished)
                 + coalesce((SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'unplaced'), 0)"""
        if unplaced := self._all(sql)[0][0]:
            told += f"; {plural(unplaced, 'record')} of the source could not be read, and may belong to any trace"
        return [told]

    def annotations(self, trace_id: str, span_id: str | None) -> list[dict[str, Any]]:
        """Files carry none; what a run adds lies in annotations.jsonl beside its report."""
        del trace_id, span_id
        return []

    def link(self, trace_id: str, span_id: str | None = None) -> str | None:
        """Files have no page to open."""
        del trace_id, span_id


def terms_of(words: str) -> list[str]:
    """Words as the index cuts them: `gpt-4o` is two words, because the index keeps no order and cannot look for both in a row."""
    return re.findall(r"\w+", unicodedata.normalize("NFC", words))


def _gaps_of(text: str) -> tuple[str, ...]:
    try:
        return msgspec.json.decode(text, type=tuple[str, ...])
    except (msgspec.DecodeError, TypeError) as broken:
        raise ToolResponseInvalid(f"the index of these traces is damaged or forged: {broken}") from None


def _span_of(row: tuple[Any, ...]) -> Span:
    *columns, body, gaps, project = row
    attributes, events, resource = decode_body(body)
    return Span(
        summary=summary_of(tuple(columns)),
        attributes=attributes,
        events=events,
        project=project,
        gaps=_gaps_of(gaps) if gaps else (),
        resource=resource,
    )
