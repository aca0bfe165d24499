"""What stores over servers share: pages in the contract's order, and spans that are remembered for one run.

A store of one product says how rows and spans are read there; nothing is asked for twice while it is remembered.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from sonde.contexts.traces.index import encode_body
from sonde.contexts.traces.shape import shape_gaps
from sonde.contexts.traces.span import Span, SpanSummary
from sonde.contexts.traces.store import Page, TraceQuery, TraceRow, unknown_span, unknown_trace
from sonde.core.canonical import hash_value, plural
from sonde.errors import ToolResponseInvalid
from sonde.trace_client import TraceClient

CACHE_BYTES = 64 * 1024 * 1024
MAX_TRACE_SPANS = 200_000
SCANNED_TRACES = 5000
MAX_AT_ONCE = 20_000
READ_AHEAD = 100


class ServerStore(ABC):
    """A trace store over one project of a server."""

    def __init__(self, client: TraceClient, project: str) -> None:
        self.client = client
        self._project = project
        self._spans = _Cache(CACHE_BYTES)
        self._summaries: dict[str, list[SpanSummary]] = {}
        self._gaps: dict[str, list[str]] = {}
        self._listed: dict[str, int] = {}

    @abstractmethod
    def projects(self) -> list[str]:
        """Names, sorted."""

    @abstractmethod
    def link(self, trace_id: str, span_id: str | None = None) -> str | None:
        """Where a browser shows this trace or span."""

    @abstractmethod
    def read_rows(self, query: TraceQuery, start_us: int | None) -> Iterator[list[TraceRow]]:
        """Pages of traces that began at `start_us` or later and before the end of the query, by their start."""

    @abstractmethod
    def read_traces(self, trace_ids: Sequence[str], required: Mapping[str, str]) -> Iterator[Span]:
        """Whole spans of these traces: at least those that have the required name, kind and status."""

    @abstractmethod
    def read_spans(self, span_ids: Sequence[str]) -> Iterator[Span]:
        """Those of these spans that exist."""

    def close(self) -> None:
        """Let go of the connections."""
        self.client.close()

    def describe(self) -> str:
        """What this is. It does not say how much, because counting would read all of it."""
        return f"{self.client.product} server {self.client.base_url}, project {self._project}."

    def fingerprint(self) -> str:
        """Which server and project; a run about given traces hashes those instead."""
        return hash_value({self.client.product.lower(): self.client.base_url, "project": self._project})

    def traces(self, query: TraceQuery) -> Page:
        """Traces by (start, id); at most SCANNED_TRACES are looked at for a filter."""
        rows: list[TraceRow] = []
        scanned = 0
        if query.project not in {None, self._project}:
            return Page(())
        for group in self._groups(query):
            matching = group
            if query.condition is not None and group:
                spans = self.read_traces([row.trace_id for row in group], query.condition.required)
                found = {span.summary.trace_id for span in spans if query.condition.matches(span)}
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

    def _groups(self, query: TraceQuery) -> Iterator[list[TraceRow]]:
        """Pages in the contract's order, from after the cursor on. The server breaks ties by arrival; we by id."""
        after: tuple[int, str] | None = None
        if query.after is not None:
            start = self._listed.get(query.after)  # as the server lists it, which a skewed clock may have put elsewhere
            if start is None:
                start = min(span.start_us for span in self.summaries(query.after))
            after = (start, query.after)
        start = max((us for us in (query.start_us, after and after[0]) if us is not None), default=None)

        def fresh(rows: Iterable[TraceRow]) -> list[TraceRow]:
            return [row for row in sorted(rows, key=lambda row: row.order) if after is None or row.order > after]

        waiting: list[TraceRow] = []
        for page in self.read_rows(query, start):
            waiting += page
            self._listed |= {row.trace_id: row.start_us for row in page}
            # Rows that share the last start time wait for the next page, which may hold more of them.
            last = waiting[-1].start_us if waiting else 0
            yield fresh(row for row in waiting if row.start_us != last)
            waiting = [row for row in waiting if row.start_us == last]
            if len(waiting) > MAX_AT_ONCE:
                raise ToolResponseInvalid(
                    f"{self.client.product} at {self.client.base_url} has more than {MAX_AT_ONCE} traces that began at one moment"
                )
        yield fresh(waiting)

    def summaries(self, trace_id: str) -> Sequence[SpanSummary]:
        """All spans of a trace, by (start, id)."""
        if trace_id not in self._summaries:
            self._read_whole(trace_id)
        return self._summaries[trace_id]

    def _read_whole(self, trace_id: str) -> None:
        found: dict[str, SpanSummary] = {}
        gaps: list[str] = []
        repeated = 0
        for span in self.read_traces([trace_id], {}):
            self._spans.put(span)
            if span.summary.span_id in found:
                repeated += span != self._spans.get(span.summary.span_id)
            else:
                found[span.summary.span_id] = span.summary
                gaps.extend(f"{span.summary.span_id}: {gap}" for gap in span.gaps if len(gaps) < 100)
            if len(found) == MAX_TRACE_SPANS:
                gaps.append(f"the trace has more than {MAX_TRACE_SPANS} spans; the others were not read")
                break
        if not found:
            raise unknown_trace(trace_id)
        if repeated:
            gaps.append(f"{repeated} spans came again with other content; the first of each was kept")
        self._summaries[trace_id] = sorted(found.values(), key=lambda span: span.order)
        self._gaps[trace_id] = gaps

    def remember_outlines(self, rows: Sequence[TraceRow], spans: Iterable[Span]) -> list[TraceRow]:
        """The rows with the number of their spans and their last end, from spans that need no content: the traces need not be read again
        for their summaries.
        """
        outlines: dict[str, dict[str, SpanSummary]] = {row.trace_id: {} for row in rows}
        whole = True
        for number, span in enumerate(spans, start=1):
            if span.summary.trace_id in outlines:
                outlines[span.summary.trace_id].setdefault(span.summary.span_id, span.summary)
            if number == MAX_TRACE_SPANS:
                whole = False
                break
        counted: list[TraceRow] = []
        for row in rows:
            found = sorted(outlines[row.trace_id].values(), key=lambda span: span.order)
            if found and whole:
                self._summaries.setdefault(row.trace_id, found)
            ends = [row.end_us, *(span.end_us or span.start_us for span in found)]
            counted.append(replace(row, span_count=len(found), end_us=max(ends)))
        return counted

    def children(self, span_id: str) -> Sequence[SpanSummary]:
        """Direct children, by (start, id)."""
        trace = self.summaries(self.span(span_id).summary.trace_id)
        return [span for span in trace if span.parent_id == span_id]

    def span(self, span_id: str) -> Span:
        """One whole span."""
        known = self._spans.get(span_id)
        if known is not None:
            return known
        for span in self.read_spans([span_id]):
            self._spans.put(span)
            return span
        raise unknown_span(span_id)

    def spans(self, trace_id: str) -> Iterator[Span]:
        """Every span of a trace with its content; what is no longer in memory is read again, a hundred at a time."""
        if trace_id not in self._gaps:  # only its outline was read, with a list of traces
            self._read_whole(trace_id)
        every = [span.span_id for span in self.summaries(trace_id)]
        for at in range(0, len(every), READ_AHEAD):
            ids = every[at : at + READ_AHEAD]
            held = {span_id: span for span_id in ids if (span := self._spans.get(span_id)) is not None}
            if missing := [span_id for span_id in ids if span_id not in held]:
                for span in self.read_spans(missing):
                    self._spans.put(span)
                    held[span.summary.span_id] = span
            yield from (held[span_id] for span_id in ids if span_id in held)

    def gaps(self, trace_id: str) -> list[str]:
        """What is wrong with the shape of the tree, and what was cut in its spans."""
        if trace_id not in self._gaps:
            self._read_whole(trace_id)
        return [*shape_gaps(self.summaries(trace_id)), *self._gaps[trace_id]]

    def skipped(self) -> list[str]:
        """A server has read its spans itself."""
        return []

    def annotations(self, trace_id: str, span_id: str | None) -> list[dict[str, Any]]:
        """What people and judges said there is read from Phoenix only."""
        del trace_id, span_id
        return []

    @contextmanager
    def reading(self, what: str) -> Generator[None]:
        """What the server sent is data of the form it promises, or the run ends and says so."""
        try:
            yield
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError, RecursionError) as broken:
            told = f"{type(broken).__name__}: {broken}"
            raise ToolResponseInvalid(
                f"{self.client.product} at {self.client.base_url} sent {what} that cannot be read: {told:.300}"
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
