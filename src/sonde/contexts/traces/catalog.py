"""Opens the traces that a user names, and does what `sonde traces` does, as functions that return data. The command line only prints."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import IO, Any, cast

from sonde.contexts.traces.attributes import KIND_KEY
from sonde.contexts.traces.failure_words import component_of
from sonde.contexts.traces.filestore import FileStore, terms_of
from sonde.contexts.traces.filters import parse_filter
from sonde.contexts.traces.groups import MAX_TRACE_SPANS, AttributeTable, Outcome, facts_of
from sonde.contexts.traces.importers.otlp import PROJECT
from sonde.contexts.traces.inspection import Inspection
from sonde.contexts.traces.langfusestore import LangfuseStore
from sonde.contexts.traces.langsmithstore import LangsmithStore, api_root
from sonde.contexts.traces.phoenixstore import PhoenixStore
from sonde.contexts.traces.serverstore import ServerStore
from sonde.contexts.traces.shape import MAX_GROUPS, Tree, counts, error_groups, quantiles, trace_overview
from sonde.contexts.traces.span import Row, Span, SpanSummary, us_of
from sonde.contexts.traces.store import Page, TraceQuery, TraceRow, TraceStore, server_of
from sonde.core.canonical import plural
from sonde.core.deadline import Deadline
from sonde.errors import ConfigError
from sonde.phoenix import PhoenixClient, PhoenixReads
from sonde.trace_client import TraceClient

DEFAULT_PROJECT = "default"
OVERVIEW_TRACES = 1000
DEEP_SPANS = 20_000
SNIPPET = 80
PAGE = 500
AT_ONCE = 40  # traces of a server
AFTER = re.compile(r"go on with after='([^']*)'")
"""How a page says where the next one begins."""
_STATUS = {"UNSET": 0, "OK": 1, "ERROR": 2}


def is_server(source: str | Path) -> bool:
    """True for an address."""
    return server_of(source) is not None


def open_store(
    source: str | Path,
    *,
    project: str | None = None,
    cache: Path | None = None,
    cache_gb: float | None = None,
    api_key: str | None = None,
    headers: Mapping[str, str] | None = None,
    deadline: Deadline | None = None,
    still: bool = False,
    upto: int | None = None,
) -> FileStore | ServerStore:
    """The store behind a source. `cache` keeps up to `cache_gb` of indexes between runs; a key and headers go to a server only. `still`
    and `upto` are about what a listener fills: see `open_index`.

    The key of Phoenix is `api_key`; those of the others are in their headers, which `source_of` makes.
    """
    match server_of(source):
        case None:
            return FileStore(Path(source), cache=cache, cache_gb=cache_gb, project=project, still=still, upto=upto)
        case "phoenix", address:
            client = PhoenixClient(address, api_key=api_key, headers=headers, deadline=deadline)
            return PhoenixStore(PhoenixReads(client, project or DEFAULT_PROJECT))
        case "langfuse", address:
            sent: Mapping[str, Any] = {"headers": headers, "secrets": [api_key or ""], "deadline": deadline}
            return LangfuseStore(TraceClient("Langfuse", address, **sent), project)
        case "langsmith", address:
            sent = {"headers": headers, "secrets": [api_key or ""], "deadline": deadline}
            return LangsmithStore(TraceClient("LangSmith", api_root(address), **sent), project or DEFAULT_PROJECT)


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
    return TraceQuery(
        project=project,
        start_us=start_us,
        end_us=end_us,
        condition=condition,
        after=after,
        limit=limit,
        own=True,
    )


def import_traces(source: Path, cache: Path, cache_gb: float | None = None) -> Row:
    """Index a file or a folder: what was found, what was skipped, and whether an index was there already."""
    with FileStore(source, cache=cache, cache_gb=cache_gb) as store:
        return {
            "source": str(source),
            "index": store.indexed.how,
            "content_hash": store.fingerprint(),
            "description": store.describe(),
            "projects": store.projects(),
            "malformed_count": store.malformed_count(),
            "malformed": store.malformed()[:20],
        }


def show_trace(store: TraceStore, trace_id: str) -> Row:
    """A trace at a glance and its tree: every span with its depth, parents before children."""
    spans = store.summaries(trace_id)
    tree = Tree(spans)
    rows: list[Row] = []
    stack: list[tuple[SpanSummary, int]] = [(root, 0) for root in reversed(tree.roots())]
    while stack:
        span, depth = stack.pop()
        rows.append({**span.row(), "depth": depth})
        stack.extend((child, depth + 1) for child in reversed(tree.children(span.span_id)))
    return {"overview": trace_overview(trace_id, spans, [*store.gaps(trace_id), *store.skipped()]), "spans": rows}


def overview(store: TraceStore, query: TraceQuery) -> Row:
    """The traces of a query together: how many failed, how long they took, what their errors say. At most a thousand; says when there
    are more.
    """
    page = store.traces(query)
    traces = [store.summaries(row.trace_id) for row in page.rows[:OVERVIEW_TRACES]]
    spans = [span for trace in traces for span in trace]
    table = AttributeTable()
    outcomes = Counter(
        facts_of(row.trace_id, store.spans(row.trace_id), table).outcome
        for row, trace in zip(page.rows, traces, strict=False)
        if trace
    )
    durations = [
        max(0, max(span.end_us or span.start_us for span in trace) - min(span.start_us for span in trace)) / 1000
        for trace in traces
        if trace
    ]
    return {
        "trace_count": len(traces),
        "span_count": len(spans),
        "failed_traces": outcomes["failed"],
        "recovered_traces": outcomes["recovered"],
        "kinds": counts(span.kind for span in spans),
        "statuses": counts(span.status for span in spans),
        "latency_ms": quantiles(durations),
        "error_groups": [group.row() for group in error_groups(spans, component_of)[:MAX_GROUPS]],
        "more": page.more,
        "gaps": store.skipped(),
    }


def outcomes_of(store: TraceStore, rows: Sequence[TraceRow]) -> dict[str, Outcome]:
    """How each of these traces ended, as `incident` and `watch` count it. They are read whole for this; what is gone has no outcome."""
    table = AttributeTable()
    found: dict[str, Outcome] = {}
    if not isinstance(store, ServerStore):
        return {row.trace_id: facts_of(row.trace_id, store.spans(row.trace_id), table).outcome for row in rows}
    for at in range(0, len(rows), AT_ONCE):
        read: dict[str, list[Span]] = {row.trace_id: [] for row in rows[at : at + AT_ONCE]}
        for span in store.read_traces(list(read), {}):
            held = read.get(span.summary.trace_id)
            if held is not None and len(held) < MAX_TRACE_SPANS:
                held.append(span)
        found |= {trace_id: facts_of(trace_id, spans, table).outcome for trace_id, spans in read.items() if spans}
    return found


def failed_traces(store: TraceStore, query: TraceQuery) -> Page:
    """As `store.traces`, but only those that failed."""
    rows: list[TraceRow] = []
    passed: set[str] = set()
    page_query = replace(query, limit=PAGE)
    while True:
        page = store.traces(page_query)
        outcomes = outcomes_of(store, page.rows)
        rows += [row for row in page.rows if outcomes.get(row.trace_id) == "failed"]
        if len(rows) > query.limit:
            last = rows[query.limit - 1].trace_id
            more = f"more than {plural(query.limit, 'failed trace')}; go on with after={last!r}"
            return Page(tuple(rows[: query.limit]), more)
        cursor = AFTER.search(page.more or "")
        if cursor is None or cursor[1] in passed:
            return Page(tuple(rows), page.more)
        passed.add(cursor[1])
        page_query = replace(page_query, after=cursor[1])


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
    note = None
    if beyond and not deep:
        note = f"{beyond} spans have longer attributes, of which only the first 4 kB were searched"
    elif deep:
        seen = {span.summary.span_id for span in found}
        more: list[Span] = []
        for span in islice(store.deep(), DEEP_SPANS):
            text = "\n".join(str(value) for value in _fields(span).values()).lower()
            if all(word in text for word in wanted) and span.summary.span_id not in seen:
                more.append(span)
        found += more[: max(0, limit - len(found))]
        note = f"only the first {DEEP_SPANS} of {beyond} long spans were read" if beyond > DEEP_SPANS else None
    if len(ids) > limit:
        note = "; ".join(filter(None, [f"more than {limit} spans hold these words", note]))
    hits: list[Row] = []
    for span in found:
        hit = {"trace_id": span.summary.trace_id, "span_id": span.summary.span_id, "name": span.summary.name}
        hit |= {"field": "name", "value_snippet": span.summary.name}
        for key, value in _fields(span).items():
            text = str(value)
            at = next((place for word in wanted if (place := text.lower().find(word)) >= 0), -1)
            if at >= 0:
                hit |= {"field": key, "value_snippet": text[max(0, at - SNIPPET) : at + SNIPPET]}
                break
        hits.append(hit)
    return {"hits": hits, "not_searched": note}


def export_traces(store: TraceStore, trace_ids: Sequence[str], stream: IO[str], *, project: str | None = None) -> int:
    """Write traces as OTel JSON Lines in ASCII, each once; how many spans there were. Nothing is written when one of them is not there."""
    wanted = list(dict.fromkeys(trace_ids))
    for trace_id in wanted:
        store.summaries(trace_id)
    count = 0
    for trace_id in wanted:
        for span in store.spans(trace_id):
            stream.write(json.dumps(otlp_request(span, project), separators=(",", ":")))
            stream.write("\n")
            count += 1
    return count


def otlp_request(span: Span, project: str | None = None) -> Row:
    """One span as an export request, as a collector writes and reads it. Importing it gives an equal hash."""
    summary = span.summary
    kind = {} if summary.kind == "UNKNOWN" else {KIND_KEY: summary.kind}
    exported: Row = {
        "traceId": summary.trace_id,
        "spanId": summary.span_id,
        "parentSpanId": summary.parent_id or "",
        "name": summary.name,
        "startTimeUnixNano": str(summary.start_us * 1000),
        "endTimeUnixNano": "0" if summary.end_us is None else str(summary.end_us * 1000),
        "status": {"code": _STATUS[summary.status], "message": summary.status_message},
        "attributes": _pairs({**kind, **span.attributes}),
        "events": [
            {"name": event.name, "timeUnixNano": str(event.time_us * 1000), "attributes": _pairs(event.attributes)}
            for event in span.events
        ],
    }
    resource = {"attributes": _pairs({**span.resource, PROJECT: project or span.project})}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [exported]}]}]}


def _fields(span: Span) -> Row:
    events = {f"events.{event.name}.{key}": value for event in span.events for key, value in event.attributes.items()}
    return {"status_message": span.summary.status_message, **span.attributes, **events}


def _pairs(table: Mapping[str, Any]) -> list[Row]:
    return [{"key": key, "value": _value(value)} for key, value in table.items()]


def _value(value: Any) -> Row:
    match value:
        case None:
            return {}
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case list():
            return {"arrayValue": {"values": [_value(item) for item in cast("list[Any]", value)]}}
        case dict():
            return {"kvlistValue": {"values": _pairs(cast("Row", value))}}
        case _:
            return {"stringValue": str(value)}
