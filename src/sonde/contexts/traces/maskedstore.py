"""Traces with people's data behind placeholders: any store, masked span by span as it is read."""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sonde.contexts.traces.filestore import FileStore, IndexStore
from sonde.contexts.traces.filters import SpanFilter
from sonde.contexts.traces.index import IndexWriter
from sonde.contexts.traces.loaded_window import LoadedWindow
from sonde.contexts.traces.span import Span, SpanSummary
from sonde.contexts.traces.store import (
    Page,
    TraceQuery,
    TraceRow,
    TraceStore,
    UnknownSpan,
    UnknownTrace,
    unknown_span,
    unknown_trace,
)
from sonde.core.deadline import deadline_in_force
from sonde.errors import ToolFault

if TYPE_CHECKING:
    from sonde.core.mask import Mask

MOST_TRACES = 200_000


class MaskedStore:
    """See `TraceStore`. Everything but kinds and times is masked, ids too if they hold somebody's data; ids and filters that are
    asked for speak of placeholders.
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
        """Traces by (start, id). A filter of generated code is tried on masked spans, so that it confirms no guess at a value."""
        project, condition = query.project, query.condition
        if not query.own:
            project = None if project is None else self._mask.behind(project)
            if project is None and query.project is not None:
                return Page(())
            condition = None if condition is None else self._tried_on_masked(condition)
        asked = replace(query, project=project, condition=condition)
        if query.after is None:
            page = self.inner.traces(asked)
        else:
            with self._real(query.after, unknown_trace(query.after)) as after:
                page = self.inner.traces(replace(asked, after=after))
        return Page(tuple(map(self._row, page.rows)), None if page.more is None else self._mask.hidden(page.more))

    def _tried_on_masked(self, condition: SpanFilter) -> SpanFilter:
        # A name may hold a value, so a store must not look for it by itself.
        required = {field: value for field, value in condition.required.items() if field != "name"}
        return SpanFilter(condition.text, lambda span: condition.test(self._span(span)), required)

    @contextmanager
    def _real(self, given: str, missing: ToolFault) -> Generator[str]:
        """The id behind one that the run names. One that holds a value in the clear names nothing: it is a guess."""
        real = self._mask.behind(given)
        if real is None:
            raise missing
        try:
            yield real
        except (UnknownSpan, UnknownTrace):
            raise missing from None

    def _row(self, row: TraceRow) -> TraceRow:
        return replace(row, project=self._mask.hidden(row.project), trace_id=self._mask.hidden(row.trace_id))

    def summaries(self, trace_id: str) -> Sequence[SpanSummary]:
        """All spans of a trace without content."""
        with self._real(trace_id, unknown_trace(trace_id)) as real:
            return list(map(self._summary, self.inner.summaries(real)))

    def children(self, span_id: str) -> Sequence[SpanSummary]:
        """Direct children."""
        with self._real(span_id, unknown_span(span_id)) as real:
            return list(map(self._summary, self.inner.children(real)))

    def span(self, span_id: str) -> Span:
        """One whole span."""
        with self._real(span_id, unknown_span(span_id)) as real:
            return self._span(self.inner.span(real))

    def spans(self, trace_id: str) -> Iterator[Span]:
        """Every span of a trace with content."""
        with self._real(trace_id, unknown_trace(trace_id)) as real:
            yield from map(self._span, self.inner.spans(real))

    def real_summaries(self, trace_id: str) -> Sequence[SpanSummary]:
        """As `summaries`, but not masked: for rules that code checks. Nothing of it may be shown or written."""
        with self._real(trace_id, unknown_trace(trace_id)) as real:
            return self.inner.summaries(real)

    def real_span(self, span_id: str) -> Span:
        """As `span`, but not masked: for rules that code checks. Nothing of it may be shown or written."""
        with self._real(span_id, unknown_span(span_id)) as real:
            return self.inner.span(real)

    def gaps(self, trace_id: str) -> list[str]:
        """What is known to be missing or broken in this trace."""
        with self._real(trace_id, unknown_trace(trace_id)) as real:
            return [self._mask.hidden(gap) for gap in self.inner.gaps(real)]

    def skipped(self) -> list[str]:
        """What of the source could not be read."""
        return [self._mask.hidden(gap) for gap in self.inner.skipped()]

    def annotations(self, trace_id: str, span_id: str | None) -> list[dict[str, Any]]:
        """Annotations, masked."""
        with self._real(trace_id, unknown_trace(trace_id)) as real:
            if span_id is None:
                return self._mask.hidden_value(self.inner.annotations(real, None))
            with self._real(span_id, unknown_span(span_id)) as own:
                return self._mask.hidden_value(self.inner.annotations(real, own))

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
                self._missing = [page.more] if page.more else []
                for number, row in enumerate(page.rows):
                    try:
                        for span in real.spans(row.trace_id):
                            writer.add(masked_span(span, mask))
                    except ToolFault as fault:
                        if (run := deadline_in_force()) is None or not run.is_over():
                            raise
                        self._missing.append(f"{number:,} of {len(page.rows):,} traces were masked: {fault.message}")
                        break
                writer.finish(files=(), malformed=(), meta={"malformed": "0"})
            super().__init__(path, mask.hidden(real.name))
        except BaseException:
            self._temporary.cleanup()
            raise

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
        own = None if span_id is None else self._mask.restored(self.span(span_id).summary.span_id)
        real = self._mask.restored(self.summaries(trace_id)[0].trace_id)  # unknown here: not asked of the source
        return self._mask.hidden_value(self._real.annotations(real, own))

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
    """The span with everything masked that is not a kind or a time. ToolFault if that was still going on when the run had to end."""
    run = deadline_in_force()
    since = 0.0 if run is None else run.clock.now()
    events = tuple(
        replace(event, name=mask.hidden(event.name), attributes=mask.hidden_value(dict(event.attributes)))
        for event in span.events
    )
    masked = replace(
        span,
        summary=masked_summary(span.summary, mask),
        attributes=mask.hidden_value(dict(span.attributes)),
        events=events,
        project=mask.hidden(span.project),
        gaps=tuple(map(mask.hidden, span.gaps)),
        resource=mask.hidden_value(dict(span.resource)),
    )
    if run is not None:
        run.check(since, "spans were still being masked")
    return masked
