"""What a place that keeps traces must be able to do, and how such a place is named. Files behind an index can do it, and servers of
Phoenix, Langfuse and LangSmith.

All of it reads. Rows come in the stable orders of the inspection contract; nothing returns a whole project at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, cast, get_args
from urllib.parse import urlsplit

from sonde.contexts.traces.filters import SpanFilter
from sonde.contexts.traces.span import Row, Span, SpanSummary, time_text
from sonde.errors import ToolFault

Product = Literal["phoenix", "langfuse", "langsmith"]
CLOUDS: dict[str, Product] = {"cloud.langfuse.com": "langfuse", "api.smith.langchain.com": "langsmith"}
"""Hosts, with those below them, that tell which product it is."""


class UnknownSpan(ToolFault, KeyError):
    """No span with this id; a KeyError as the inspection contract asks, and a fault that the model hears."""

    def __str__(self) -> str:
        return self.message


class UnknownTrace(ToolFault, KeyError):
    """No trace with this id."""

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    """One trace of a list."""

    project: str
    trace_id: str
    span_count: int
    start_us: int
    end_us: int
    error_spans: int | None = field(default=None, compare=False)
    """Where that is known without reading it. A trace with errors may have recovered from all of them."""

    @property
    def order(self) -> tuple[int, str]:
        """The stable order of traces."""
        return (self.start_us, self.trace_id)

    @property
    def latency_ms(self) -> float:
        """From the first start to the last end."""
        return max(0, self.end_us - self.start_us) / 1000

    def row(self) -> Row:
        """The fields of the inspection contract."""
        return {
            "project_name": self.project,
            "trace_id": self.trace_id,
            "span_count": self.span_count,
            "start_time": time_text(self.start_us),
            "end_time": time_text(self.end_us),
            "latency_ms": self.latency_ms,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceQuery:
    """Which traces: of a project, begun in [start, end), with a span that fits the filter, after this one.

    Without `counted` the rows need not know their spans and their end, which a server may have to be asked for. In a masked run only
    a query of the user (`own`) speaks of the real values; one of generated code sees what the model sees.
    """

    project: str | None = None
    start_us: int | None = None
    end_us: int | None = None
    condition: SpanFilter | None = None
    after: str | None = None
    limit: int = 100
    counted: bool = True
    own: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """Some traces in order; `more` says why it is not all of them."""

    rows: tuple[TraceRow, ...]
    more: str | None = None


class TraceStore(Protocol):
    """Reads of one source of traces."""

    def describe(self) -> str:
        """One paragraph for a prompt: what this is and how much."""
        ...

    def fingerprint(self) -> str:
        """A hash of the data set, cheap to make."""
        ...

    def projects(self) -> list[str]:
        """Names, sorted."""
        ...

    def traces(self, query: TraceQuery) -> Page:
        """Traces by (start, id)."""
        ...

    def summaries(self, trace_id: str) -> Sequence[SpanSummary]:
        """All spans of a trace without content, by (start, id); UnknownTrace when there is none."""
        ...

    def children(self, span_id: str) -> Sequence[SpanSummary]:
        """Direct children by (start, id); UnknownSpan when there is no such span."""
        ...

    def span(self, span_id: str) -> Span:
        """One whole span; UnknownSpan when there is none."""
        ...

    def spans(self, trace_id: str) -> Iterator[Span]:
        """Every span of a trace with content, by (start, id), one at a time."""
        ...

    def gaps(self, trace_id: str) -> list[str]:
        """What is known to be missing or broken in this trace."""
        ...

    def skipped(self) -> list[str]:
        """What of the source could not be read, whichever trace it belongs to."""
        ...

    def annotations(self, trace_id: str, span_id: str | None) -> list[dict[str, Any]]:
        """Annotations on a span, or on the trace itself, by (name, identifier)."""
        ...

    def link(self, trace_id: str, span_id: str | None = None) -> str | None:
        """Where a browser shows this trace or span; None for files."""
        ...

    def close(self) -> None:
        """Let go of files and connections."""
        ...


def server_of(source: str | Path) -> tuple[Product, str] | None:
    """The product and the address of a server; None for a file. `langfuse:https://…` and `langsmith:https://…` name theirs, a plain
    address is that of a Phoenix server unless its host says otherwise.
    """
    text = str(source)
    word, _, address = text.partition(":")
    if word in get_args(Product) and address.startswith(("http://", "https://")):
        return cast("Product", word), address
    if not text.startswith(("http://", "https://")):
        return None
    try:
        host = urlsplit(text).hostname or ""
    except ValueError:  # the client says what is wrong with it
        host = ""
    for cloud, product in CLOUDS.items():
        if f".{host}".endswith(f".{cloud}"):
            return product, text
    return "phoenix", text


def unknown_span(span_id: str) -> UnknownSpan:
    """The fault, in words that help."""
    return UnknownSpan(f"there is no span {span_id!r}; take ids from list_spans(trace_id)")


def unknown_trace(trace_id: str) -> UnknownTrace:
    """The fault, in words that help."""
    return UnknownTrace(f"there is no trace {trace_id!r}; take ids from list_traces(project_name)")
