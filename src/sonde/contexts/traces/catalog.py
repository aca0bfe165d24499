"""What `sonde traces` does, as functions that return data: import, ls, show, search, overview, export. The command line only prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any

from sonde.contexts.traces.export import write_otlp
from sonde.contexts.traces.filestore import FileStore, terms_of
from sonde.contexts.traces.filters import parse_filter
from sonde.contexts.traces.inspection import Inspection
from sonde.contexts.traces.overview import many_overview, trace_overview
from sonde.contexts.traces.shape import Tree
from sonde.contexts.traces.span import Row, Span, us_of
from sonde.contexts.traces.store import Page, TraceQuery, TraceStore
from sonde.errors import ConfigError

OVERVIEW_TRACES = 1000
DEEP_SPANS = 20_000
SNIPPET = 80


def _moment(text: str | None) -> int | None:
    try:
        return us_of(text)
    except ValueError:
        raise ConfigError(f"{text!r} is not a time; write 2026-11-01T12:00:00Z") from None


def query_of(
    project: str | None = None,
    *,
    start: str | None = None,
    end: str | None = None,
    filter_expr: str | None = None,
    after: str | None = None,
    limit: int = 100,
) -> TraceQuery:
    """A query from what people type; ConfigError for a time that is none, FilterRefused for a filter."""
    start_us, end_us = _moment(start), _moment(end)
    if start_us is not None and end_us is not None and start_us >= end_us:
        raise ConfigError(f"nothing lies between {start} and {end}: the first must be before the second")
    condition = parse_filter(filter_expr) if filter_expr else None
    return TraceQuery(project=project, start_us=start_us, end_us=end_us, condition=condition, after=after, limit=limit)


def import_traces(source: Path, cache: Path) -> Row:
    """Index a file or a folder: what was found, what was skipped, and whether an index was there already."""
    with FileStore(source, cache=cache) as store:
        return {
            "source": str(source),
            "index": store.indexed.how,
            "content_hash": store.fingerprint(),
            "description": store.describe(),
            "projects": store.projects(),
            "malformed_count": store.malformed_count(),
            "malformed": store.malformed()[:20],
        }


def list_traces(store: TraceStore, query: TraceQuery) -> Page:
    """A page of traces."""
    return store.traces(query)


def show_trace(store: TraceStore, trace_id: str) -> Row:
    """A trace at a glance and its tree: every span with its depth, parents before children."""
    spans = store.summaries(trace_id)
    rows = [{**span.row(), "depth": depth} for span, depth in _walk(Tree(spans))]
    return {"overview": trace_overview(trace_id, spans, store.gaps(trace_id)), "spans": rows}


def overview(store: TraceStore, query: TraceQuery) -> Row:
    """The traces of a query together, at most a thousand; says when there are more."""
    page = store.traces(query)
    rows = page.rows[:OVERVIEW_TRACES]
    value = many_overview([(row.trace_id, store.summaries(row.trace_id)) for row in rows])
    return {**value, "more": page.more}


def search_trace(store: TraceStore, trace_id: str, pattern: str) -> Row:
    """Every match of a pattern in one trace, on any store."""
    found = Inspection(store).search_trace(trace_id, pattern, limit=1000)
    return {"hits": found.value, "more": found.truncated}


def search_words(store: TraceStore, words: str, *, deep: bool = False, limit: int = 100) -> Row:
    """Spans anywhere that hold all these words. The index knows the first 4 kB of each attribute; `deep` reads the rest as well."""
    if not isinstance(store, FileStore):
        raise ConfigError("words are searched in trace files only; on a server give one trace: it is never read whole")
    if not terms_of(words):
        raise ConfigError(f"{words!r} has no word in it; with --trace ID a regular expression finds any text")
    wanted = words.lower().split()
    ids = [span_id for _, span_id in store.search(words, limit=limit + 1)]
    found = [store.span(span_id) for span_id in ids[:limit]]
    beyond = store.deep_spans()
    note = (
        f"{beyond} spans have longer attributes, of which only the first 4 kB were searched"
        if beyond and not deep
        else None
    )
    if deep:
        seen = {span.summary.span_id for span in found}
        tails = (span for span in islice(store.deep(), DEEP_SPANS) if _holds(span, wanted))
        found += [span for span in tails if span.summary.span_id not in seen][: max(0, limit - len(found))]
        note = f"only the first {DEEP_SPANS} of {beyond} long spans were read" if beyond > DEEP_SPANS else None
    if len(ids) > limit:
        note = "; ".join(filter(None, [f"more than {limit} spans hold these words", note]))
    return {"hits": [_hit(span, wanted) for span in found], "not_searched": note}


def export_traces(store: TraceStore, trace_ids: Sequence[str], stream: IO[str], *, project: str | None = None) -> int:
    """Write traces as OTel JSON Lines, each once; how many spans there were. Nothing is written when one of them is not there."""
    wanted = list(dict.fromkeys(trace_ids))
    for trace_id in wanted:
        store.summaries(trace_id)
    spans = (span for trace_id in wanted for span in store.spans(trace_id))
    return write_otlp(spans, stream, project=project)


def _walk(tree: Tree) -> Iterator[tuple[Any, int]]:
    stack = [(root, 0) for root in reversed(tree.roots())]
    while stack:
        span, depth = stack.pop()
        yield span, depth
        stack.extend((child, depth + 1) for child in reversed(tree.children(span.span_id)))


def _fields(span: Span) -> Row:
    events = {f"events.{event.name}.{key}": value for event in span.events for key, value in event.attributes.items()}
    return {"status_message": span.summary.status_message, **span.attributes, **events}


def _holds(span: Span, wanted: list[str]) -> bool:
    text = "\n".join(str(value) for value in _fields(span).values()).lower()
    return all(word in text for word in wanted)


def _hit(span: Span, wanted: list[str]) -> Row:
    ids = {"trace_id": span.summary.trace_id, "span_id": span.summary.span_id, "name": span.summary.name}
    for key, value in _fields(span).items():
        text = str(value)
        at = next((place for word in wanted if (place := text.lower().find(word)) >= 0), -1)
        if at >= 0:
            return {**ids, "field": key, "value_snippet": text[max(0, at - SNIPPET) : at + SNIPPET]}
    return {**ids, "field": "name", "value_snippet": span.summary.name}
