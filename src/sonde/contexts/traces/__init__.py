"""Traces: one canonical span from every source, stores over files and Phoenix, inspection tools, and the pre-filter.

    store = open_store("traces.jsonl", cache=Path("~/.cache/sonde"))          # or open_store("http://localhost:6006", project="shop")
    context = TracesContext(store, trace_ids=[trace_id])                      # tools for a run
    found = prefilter(trace_id, store.summaries(trace_id), store.span)        # without any model

Everything here reads; annotations are written by `sonde.phoenix`.
"""

from __future__ import annotations

from sonde.contexts.traces.context import TracesContext, trace_hash
from sonde.contexts.traces.filestore import FileStore
from sonde.contexts.traces.filters import FilterRefused, parse_filter
from sonde.contexts.traces.phoenixstore import PhoenixStore
from sonde.contexts.traces.prefilter import Prefilter, prefilter
from sonde.contexts.traces.representatives import Representative, facts_of, representatives
from sonde.contexts.traces.rules import LABELS, Verdict
from sonde.contexts.traces.sources import is_server, open_store
from sonde.contexts.traces.span import Event, Span, SpanSummary
from sonde.contexts.traces.store import TraceQuery, TraceStore, UnknownSpan, UnknownTrace

__all__ = [
    "LABELS",
    "Event",
    "FileStore",
    "FilterRefused",
    "PhoenixStore",
    "Prefilter",
    "Representative",
    "Span",
    "SpanSummary",
    "TraceQuery",
    "TraceStore",
    "TracesContext",
    "UnknownSpan",
    "UnknownTrace",
    "Verdict",
    "facts_of",
    "is_server",
    "open_store",
    "parse_filter",
    "prefilter",
    "representatives",
    "trace_hash",
]
