"""Several sources of traces as one store. A trace that two of them hold is read from the first, and the others say so as a gap."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from sonde.contexts.traces.filestore import FileStore
from sonde.contexts.traces.loaded_window import LoadedWindow
from sonde.contexts.traces.maskedstore import MaskedIndex
from sonde.contexts.traces.span import Span, SpanSummary
from sonde.contexts.traces.store import (
    Page,
    TraceQuery,
    TraceRow,
    UnknownSpan,
    UnknownTrace,
    unknown_span,
    unknown_trace,
)
from sonde.core.canonical import hash_value, plural

LocalStore = FileStore | LoadedWindow | MaskedIndex
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePart:
    """One source, and the project of it that is meant; None: all of them."""

    store: LocalStore
    project: str | None = None


class JoinedStore:
    """See `TraceStore`. Traces of all parts in one order."""

    def __init__(self, parts: Sequence[StorePart]) -> None:
        self.parts = tuple(parts)

    def describe(self) -> str:
        """Each source in its own words."""
        return "\n".join(part.store.describe() for part in self.parts)

    def fingerprint(self) -> str:
        """That of the only source, or of all."""
        found = [part.store.fingerprint() for part in self.parts]
        return found[0] if len(found) == 1 else hash_value(found)

    def projects(self) -> list[str]:
        """Names, sorted."""
        return sorted(
            {name for part in self.parts for name in ([part.project] if part.project else part.store.projects())}
        )

    def traces(self, query: TraceQuery) -> Page:
        """Traces of all parts by (start, id), each once."""
        after = query.after and self.summaries(query.after)
        since = (min(span.start_us for span in after), query.after) if after else None
        pages: list[Page] = []
        for part in self.parts:
            if query.project and part.project and query.project != part.project:
                continue
            asked = replace(query, project=query.project or part.project)
            if query.after is not None and since is not None and not part.store.holds(query.after):
                asked = replace(asked, after=None, start_us=max(since[0], query.start_us or since[0]))
            pages.append(part.store.traces(asked))
        merged: dict[str, TraceRow] = {}
        for row in heapq.merge(*(page.rows for page in pages), key=lambda row: row.order):
            if since is None or row.order > since:
                merged.setdefault(row.trace_id, row)
        rows = tuple(merged.values())
        more = next((page.more for page in pages if page.more), None)
        if len(rows) > query.limit or (more and rows):
            rows = rows[: query.limit]
            more = f"more than {plural(len(rows), 'trace')}; go on with after={rows[-1].trace_id!r}"
        return Page(rows, more)

    def summaries(self, trace_id: str) -> Sequence[SpanSummary]:
        """All spans of a trace, by (start, id)."""
        return self._first(lambda store: store.summaries(trace_id), unknown_trace(trace_id))

    def children(self, span_id: str) -> Sequence[SpanSummary]:
        """Direct children, by (start, id)."""
        return self._first(lambda store: store.children(span_id), unknown_span(span_id))

    def span(self, span_id: str) -> Span:
        """One whole span."""
        return self._first(lambda store: store.span(span_id), unknown_span(span_id))

    def spans(self, trace_id: str) -> Iterator[Span]:
        """Every span of a trace with its content."""
        return self.home(trace_id).spans(trace_id)

    def gaps(self, trace_id: str) -> list[str]:
        """What is known to be missing or broken in this trace."""
        return self.home(trace_id).gaps(trace_id)

    def skipped(self) -> list[str]:
        """What of the sources could not be read; with several, each names its source."""
        several = len(self.parts) > 1
        return [f"{part.store.name}: {gap}" if several else gap for part in self.parts for gap in part.store.skipped()]

    def annotations(self, trace_id: str, span_id: str | None) -> list[dict[str, Any]]:
        """Annotations on a span, or on the trace itself."""
        return self.home(trace_id).annotations(trace_id, span_id)

    def link(self, trace_id: str, span_id: str | None = None) -> str | None:
        """Where a browser shows it."""
        return self.home(trace_id).link(trace_id, span_id)

    def search(self, words: str, *, limit: int = 100, prefix: bool = False) -> list[tuple[str, str]]:
        """(trace_id, span_id) of spans that hold all these words near the beginning of some attribute."""
        found = [hit for part in self.parts for hit in part.store.search(words, limit=limit, prefix=prefix)]
        return list(dict.fromkeys(found))[:limit]

    def close(self) -> None:
        """Let go of all of them."""
        for part in self.parts:
            part.store.close()

    def home(self, trace_id: str) -> LocalStore:
        """The source that a trace is read from."""
        for part in self.parts:
            if part.store.holds(trace_id):
                return part.store
        raise unknown_trace(trace_id)

    def _first(self, read: Callable[[LocalStore], T], missing: UnknownSpan | UnknownTrace) -> T:
        for part in self.parts:
            try:
                return read(part.store)
            except (UnknownSpan, UnknownTrace):
                continue
        raise missing
