"""Traces on a Phoenix server: point reads and pages, remembered for one run, canonical like those from files."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from sonde.contexts.traces.importers import flat
from sonde.contexts.traces.index import encode_body
from sonde.contexts.traces.shape import shape_gaps
from sonde.contexts.traces.span import Span, SpanSummary, time_text, us_of_text
from sonde.contexts.traces.store import Page, TraceQuery, TraceRow, unknown_span, unknown_trace
from sonde.core.canonical import hash_value, plural
from sonde.errors import ToolResponseInvalid
from sonde.phoenix import PhoenixReads
from sonde.phoenix.client import Json

CACHE_BYTES = 64 * 1024 * 1024
MAX_TRACE_SPANS = 200_000
SCANNED_TRACES = 5000
READ_AHEAD = 100


class PhoenixStore:
    """A trace store over one project of a server. It asks for nothing twice in a run."""

    def __init__(self, reads: PhoenixReads) -> None:
        self._reads = reads
        self._project = reads.project
        self._spans = _Cache(CACHE_BYTES)
        self._summaries: dict[str, list[SpanSummary]] = {}
        self._gaps: dict[str, list[str]] = {}

    def close(self) -> None:
        """Let go of the connections."""
        self._reads.client.close()

    def describe(self) -> str:
        """What this is. It does not say how much, because counting would read all of it."""
        return f"Phoenix server {self._reads.client.base_url}, project {self._project}."

    def fingerprint(self) -> str:
        """Which server and project; a run about given traces hashes those instead."""
        return hash_value({"phoenix": self._reads.client.base_url, "project": self._project})

    def projects(self) -> list[str]:
        """Names, sorted."""
        return self._reads.projects()

    def traces(self, query: TraceQuery) -> Page:
        """Traces by (start, id); at most SCANNED_TRACES are looked at for a filter."""
        rows: list[TraceRow] = []
        scanned = 0
        if query.project not in {None, self._project}:
            return Page(())
        for group in self._trace_groups(query):
            matching = group
            if query.condition is not None and group:
                required = query.condition.required
                raw = self._reads.spans(
                    trace_ids=[row.trace_id for row in group],
                    names=[required["name"]] if "name" in required else (),
                    kinds=sorted({required["span_kind"], "UNKNOWN"}) if "span_kind" in required else (),
                    statuses=[required["status_code"]] if "status_code" in required else (),
                )
                spans = [span for span in map(self._span_of, raw) if query.condition.matches(span)]
                found = {span.summary.trace_id for span in spans}
                matching = [row for row in group if row.trace_id in found]
            for row in matching:
                if len(rows) == query.limit:
                    return Page(
                        tuple(rows), f"more than {plural(query.limit, 'trace')}; go on with after={rows[-1].trace_id!r}"
                    )
                rows.append(row)
            scanned += len(group)
            if query.condition is not None and scanned >= SCANNED_TRACES:
                return Page(tuple(rows), f"{scanned} traces were looked at; go on with after={group[-1].trace_id!r}")
        return Page(tuple(rows))

    def _trace_groups(self, query: TraceQuery) -> Iterator[list[TraceRow]]:
        """Pages in the contract's order, from after the cursor on. The server breaks ties by arrival; we by id."""
        after: tuple[int, str] | None = None
        if query.after is not None:
            after = (min(span.start_us for span in self.summaries(query.after)), query.after)
        start = max((us for us in (query.start_us, after and after[0]) if us is not None), default=None)
        pages = self._reads.traces(
            start_time=None if start is None else time_text(start),
            end_time=None if query.end_us is None else time_text(query.end_us),
        )

        def fresh(rows: Iterable[TraceRow]) -> list[TraceRow]:
            return [row for row in sorted(rows, key=lambda row: row.order) if after is None or row.order > after]

        waiting: list[TraceRow] = []
        for page in pages:
            with self._read_as("a trace"):
                waiting += [
                    TraceRow(
                        project=self._project,
                        trace_id=str(raw["trace_id"]),
                        span_count=len(raw.get("spans") or ()),
                        start_us=us_of_text(str(raw["start_time"])),
                        end_us=us_of_text(str(raw["end_time"])),
                    )
                    for raw in page
                ]
            # Rows that share the last start time wait for the next page, which may hold more of them.
            last = waiting[-1].start_us if waiting else 0
            yield fresh(row for row in waiting if row.start_us != last)
            waiting = [row for row in waiting if row.start_us == last]
        yield fresh(waiting)

    def summaries(self, trace_id: str) -> Sequence[SpanSummary]:
        """All spans of a trace, by (start, id)."""
        if trace_id not in self._summaries:
            found: list[SpanSummary] = []
            gaps: list[str] = []
            for span in map(self._seen, self._reads.spans(trace_ids=[trace_id])):
                found.append(span.summary)
                gaps.extend(f"{span.summary.span_id}: {gap}" for gap in span.gaps if len(gaps) < 100)
                if len(found) == MAX_TRACE_SPANS:
                    gaps.append(f"the trace has more than {MAX_TRACE_SPANS} spans; the others were not read")
                    break
            if not found:
                raise unknown_trace(trace_id)
            self._summaries[trace_id] = sorted(found, key=lambda span: span.order)
            self._gaps[trace_id] = gaps
        return self._summaries[trace_id]

    def children(self, span_id: str) -> Sequence[SpanSummary]:
        """Direct children, by (start, id)."""
        own = self.span(span_id).summary
        if own.trace_id in self._summaries:
            return [span for span in self._summaries[own.trace_id] if span.parent_id == span_id]
        found = [self._seen(raw) for raw in self._reads.spans(trace_ids=[own.trace_id], parent_id=span_id)]
        return sorted((span.summary for span in found), key=lambda span: span.order)

    def span(self, span_id: str) -> Span:
        """One whole span."""
        known = self._spans.get(span_id)
        if known is not None:
            return known
        for raw in self._reads.spans(span_ids=[span_id]):
            return self._seen(raw)
        raise unknown_span(span_id)

    def spans(self, trace_id: str) -> Iterator[Span]:
        """Every span of a trace with its content; what is no longer in memory is read again, a hundred at a time."""
        every = [span.span_id for span in self.summaries(trace_id)]
        for at in range(0, len(every), READ_AHEAD):
            ids = every[at : at + READ_AHEAD]
            held = {span_id: span for span_id in ids if (span := self._spans.get(span_id)) is not None}
            if missing := [span_id for span_id in ids if span_id not in held]:
                held |= {span.summary.span_id: span for span in map(self._seen, self._reads.spans(span_ids=missing))}
            yield from (held[span_id] for span_id in ids if span_id in held)

    def gaps(self, trace_id: str) -> list[str]:
        """What is wrong with the shape of the tree, and what was cut in its spans."""
        return [*shape_gaps(self.summaries(trace_id)), *self._gaps[trace_id]]

    def skipped(self) -> list[str]:
        """A server has read its spans itself."""
        return []

    def annotations(self, trace_id: str, span_id: str | None) -> list[dict[str, Any]]:
        """Annotations as the server has them, by (name, identifier)."""
        level, target = ("trace", trace_id) if span_id is None else ("span", span_id)
        rows: list[dict[str, Any]] = []
        for raw in self._reads.annotations(level, [target]):
            result: Json = raw.get("result") or {}
            rows.append(
                {
                    "name": str(raw.get("name", "")),
                    "annotator_kind": raw.get("annotator_kind"),
                    "label": result.get("label"),
                    "score": result.get("score"),
                    "explanation": result.get("explanation"),
                    "metadata": raw.get("metadata") or {},
                    "identifier": str(raw.get("identifier") or ""),
                }
            )
        return sorted(rows, key=lambda row: (row["name"], row["identifier"]))

    def link(self, trace_id: str, span_id: str | None = None) -> str | None:
        """The page of this trace or span in Phoenix."""
        what = f"traces/{quote(trace_id, safe='')}" if span_id is None else f"spans/{quote(span_id, safe='')}"
        return f"{self._reads.client.base_url}/redirects/{what}"

    def _seen(self, raw: Json) -> Span:
        span = self._span_of(raw)
        self._spans.put(span)
        return span

    def _span_of(self, raw: Json) -> Span:
        with self._read_as("a span"):
            return flat.span(raw, project=self._project)

    @contextmanager
    def _read_as(self, what: str) -> Generator[None]:
        """What the server sent is data of the form it promises, or the run ends and says so."""
        try:
            yield
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as broken:
            told = f"{type(broken).__name__}: {broken}"
            raise ToolResponseInvalid(
                f"Phoenix at {self._reads.client.base_url} sent {what} that cannot be read: {told:.300}"
            ) from None


class _Cache:
    """Spans by id, the least recently used forgotten beyond a number of bytes. Safe to use from threads."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._spans: OrderedDict[str, tuple[Span, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, span_id: str) -> Span | None:
        """The span, if it still lies here."""
        with self._lock:
            held = self._spans.get(span_id)
            if held is None:
                return None
            self._spans.move_to_end(span_id)
            return held[0]

    def put(self, span: Span) -> None:
        """Remember a span, unless it alone would fill the cache."""
        size = len(encode_body(span)) + 500
        with self._lock:
            if size > self._limit or span.summary.span_id in self._spans:
                return
            self._spans[span.summary.span_id] = (span, size)
            self._size += size
            while self._size > self._limit:
                _, (_, dropped) = self._spans.popitem(last=False)
                self._size -= dropped
