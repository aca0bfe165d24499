"""Traces with people's data behind placeholders: any store, masked span by span as it is read."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sonde.contexts.traces.filestore import FileStore, IndexStore
from sonde.contexts.traces.filters import parse_filter
from sonde.contexts.traces.index import IndexWriter
from sonde.contexts.traces.loaded_window import LoadedWindow
from sonde.contexts.traces.span import Span, SpanSummary
from sonde.contexts.traces.store import Page, TraceQuery, TraceRow, TraceStore

if TYPE_CHECKING:
    from sonde.core.mask import Mask

MOST_TRACES = 200_000


class MaskedStore:
    """See `TraceStore`. Everything but kinds and times is masked, ids too if they hold somebody's data; ids and filters that are
    asked for may speak of placeholders.
    """

    def __init__(self, inner: TraceStore, mask: Mask) -> None:
        self.inner = inner
        self._mask = mask

    def describe(self) -> str:
        """As the store itself says it, masked."""
        return self._mask.hidden(self.inner.describe())

    def fingerprint(self) -> str:
        """The hash of the real data."""
        return self.inner.fingerprint()

    def projects(self) -> list[str]:
        """Names, masked."""
        return [self._mask.hidden(name) for name in self.inner.projects()]

    def traces(self, query: TraceQuery) -> Page:
        """Traces by (start, id)."""
        condition = None if query.condition is None else parse_filter(self._mask.restored(query.condition.text))
        project = None if query.project is None else self._mask.restored(query.project)
        after = None if query.after is None else self._mask.restored(query.after)
        page = self.inner.traces(replace(query, condition=condition, project=project, after=after))
        return Page(tuple(map(self._row, page.rows)), page.more)

    def _row(self, row: TraceRow) -> TraceRow:
        return replace(row, project=self._mask.hidden(row.project), trace_id=self._mask.hidden(row.trace_id))

    def summaries(self, trace_id: str) -> Sequence[SpanSummary]:
        """All spans of a trace without content."""
        return list(map(self._summary, self.inner.summaries(self._mask.restored(trace_id))))

    def children(self, span_id: str) -> Sequence[SpanSummary]:
        """Direct children."""
        return list(map(self._summary, self.inner.children(self._mask.restored(span_id))))

    def span(self, span_id: str) -> Span:
        """One whole span."""
        return self._span(self.inner.span(self._mask.restored(span_id)))

    def spans(self, trace_id: str) -> Iterator[Span]:
        """Every span of a trace with content."""
        return map(self._span, self.inner.spans(self._mask.restored(trace_id)))

    def gaps(self, trace_id: str) -> list[str]:
        """What is known to be missing or broken in this trace."""
        return [self._mask.hidden(gap) for gap in self.inner.gaps(self._mask.restored(trace_id))]

    def skipped(self) -> list[str]:
        """What of the source could not be read."""
        return [self._mask.hidden(gap) for gap in self.inner.skipped()]

    def annotations(self, trace_id: str, span_id: str | None) -> list[dict[str, Any]]:
        """Annotations, masked."""
        own = None if span_id is None else self._mask.restored(span_id)
        return self._mask.hidden_value(self.inner.annotations(self._mask.restored(trace_id), own))

    def link(self, trace_id: str, span_id: str | None = None) -> str | None:
        """Where a browser shows this trace or span, masked."""
        own = None if span_id is None else self._mask.restored(span_id)
        address = self.inner.link(self._mask.restored(trace_id), own)
        return None if address is None else self._mask.hidden(address)

    def close(self) -> None:
        """Let go of files and connections."""
        self.inner.close()

    def _summary(self, summary: SpanSummary) -> SpanSummary:
        return masked_summary(summary, self._mask)

    def _span(self, span: Span) -> Span:
        return masked_span(span, self._mask)


class MaskedIndex(IndexStore):
    """The traces of a window, copied into an index of their own and masked on the way: for words and SQL, which need one."""

    def __init__(self, real: FileStore | LoadedWindow | MaskedIndex, query: TraceQuery, mask: Mask) -> None:
        self._real = real
        self._mask = mask
        self._condition = query.condition
        self._temporary = tempfile.TemporaryDirectory(prefix="sonde-masked-")
        path = Path(self._temporary.name) / "window.sqlite"
        try:
            with IndexWriter(path, new=True) as writer:
                page = real.traces(replace(query, limit=MOST_TRACES))
                for row in page.rows:
                    for span in real.spans(row.trace_id):
                        writer.add(masked_span(span, mask))
                writer.finish(files=(), malformed=(), meta={"malformed": "0"})
            super().__init__(path, mask.hidden(real.name))
        except BaseException:
            self._temporary.cleanup()
            raise
        self._missing = [page.more] if page.more else []

    def traces(self, query: TraceQuery) -> Page:
        """Traces by (start, id). The filter of the window was asked of the real spans, and is not asked again."""
        condition = None if query.condition is self._condition else query.condition
        return super().traces(replace(query, condition=condition))

    def close(self) -> None:
        """Remove the copy; whoever opened the source closes it."""
        super().close()
        self._temporary.cleanup()

    def describe(self) -> str:
        """As the source itself says it, masked."""
        return self._mask.hidden(self._real.describe())

    def fingerprint(self) -> str:
        """The hash of the real data."""
        return self._real.fingerprint()

    def skipped(self) -> list[str]:
        """What of the source could not be read."""
        return [self._mask.hidden(gap) for gap in (*self._real.skipped(), *self._missing)]

    def annotations(self, trace_id: str, span_id: str | None) -> list[dict[str, Any]]:
        """Annotations, masked."""
        own = None if span_id is None else self._mask.restored(span_id)
        return self._mask.hidden_value(self._real.annotations(self._mask.restored(trace_id), own))

    def link(self, trace_id: str, span_id: str | None = None) -> str | None:
        """Where a browser shows it, masked."""
        own = None if span_id is None else self._mask.restored(span_id)
        address = self._real.link(self._mask.restored(trace_id), own)
        return None if address is None else self._mask.hidden(address)


def masked_summary(summary: SpanSummary, mask: Mask) -> SpanSummary:
    """The summary with its ids, its name and its message masked."""
    return replace(
        summary,
        trace_id=mask.hidden(summary.trace_id),
        span_id=mask.hidden(summary.span_id),
        parent_id=None if summary.parent_id is None else mask.hidden(summary.parent_id),
        name=mask.hidden(summary.name),
        status_message=mask.hidden(summary.status_message),
    )


def masked_span(span: Span, mask: Mask) -> Span:
    """The span with everything masked that is not a kind or a time."""
    events = tuple(
        replace(event, name=mask.hidden(event.name), attributes=mask.hidden_value(dict(event.attributes)))
        for event in span.events
    )
    return replace(
        span,
        summary=masked_summary(span.summary, mask),
        attributes=mask.hidden_value(dict(span.attributes)),
        events=events,
        project=mask.hidden(span.project),
        gaps=tuple(map(mask.hidden, span.gaps)),
        resource=mask.hidden_value(dict(span.resource)),
    )
