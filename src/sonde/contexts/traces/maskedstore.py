"""Traces with people's data behind placeholders: any store, masked span by span as it is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from sonde.contexts.traces.filters import parse_filter
from sonde.contexts.traces.span import Span, SpanSummary
from sonde.contexts.traces.store import Page, TraceQuery, TraceRow, TraceStore
from sonde.core.mask import Mask


class MaskedStore:
    """See `TraceStore`. Names, messages, attributes and events are masked; ids and kinds stay, so that spans are found and annotated.
    A filter may speak of placeholders.
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
        page = self.inner.traces(replace(query, condition=condition, project=project))
        return Page(tuple(map(self._row, page.rows)), page.more)

    def _row(self, row: TraceRow) -> TraceRow:
        return replace(row, project=self._mask.hidden(row.project))

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
        return self._mask.hidden_value(self.inner.annotations(trace_id, span_id))

    def link(self, trace_id: str, span_id: str | None = None) -> str | None:
        """Where a browser shows this trace or span."""
        return self.inner.link(trace_id, span_id)

    def close(self) -> None:
        """Let go of files and connections."""
        self.inner.close()

    def _summary(self, summary: SpanSummary) -> SpanSummary:
        name, message = self._mask.hidden(summary.name), self._mask.hidden(summary.status_message)
        return replace(summary, name=name, status_message=message)

    def _span(self, span: Span) -> Span:
        hide = self._mask.hidden_value
        events = tuple(
            replace(event, name=self._mask.hidden(event.name), attributes=hide(dict(event.attributes)))
            for event in span.events
        )
        return replace(
            span,
            summary=self._summary(span.summary),
            attributes=hide(dict(span.attributes)),
            events=events,
            project=self._mask.hidden(span.project),
            gaps=tuple(map(self._mask.hidden, span.gaps)),
        )
