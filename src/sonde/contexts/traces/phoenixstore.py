"""Traces on a Phoenix server: point reads and pages, canonical like those from files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from sonde.contexts.traces.importers import flat
from sonde.contexts.traces.serverstore import ServerStore
from sonde.contexts.traces.span import MAX_NAME_CHARS, Span, SpanSummary, time_text, us_of_text
from sonde.contexts.traces.store import TraceQuery, TraceRow
from sonde.phoenix import PhoenixReads
from sonde.trace_client import Json


class PhoenixStore(ServerStore):
    """A trace store over one project of a Phoenix server."""

    def __init__(self, reads: PhoenixReads) -> None:
        super().__init__(reads.client, reads.project)
        self._reads = reads

    def projects(self) -> list[str]:
        """Names, sorted."""
        return self._reads.projects()

    def read_rows(self, query: TraceQuery, start_us: int | None) -> Iterator[list[TraceRow]]:
        """Pages of traces, with the outline of their spans."""
        pages = self._reads.traces(
            start_time=None if start_us is None else time_text(start_us),
            end_time=None if query.end_us is None else time_text(query.end_us),
        )
        for page in pages:
            with self.reading("a trace"):
                rows = [
                    TraceRow(
                        project=self._project,
                        trace_id=str(raw["trace_id"])[:MAX_NAME_CHARS],  # as in its spans
                        span_count=len(raw.get("spans") or ()),
                        start_us=us_of_text(str(raw["start_time"])),
                        end_us=us_of_text(str(raw["end_time"])),
                    )
                    for raw in page
                ]
            yield rows

    def read_traces(self, trace_ids: Sequence[str], required: Mapping[str, str]) -> Iterator[Span]:
        """Whole spans of these traces that have the required name, kind and status."""
        raw = self._reads.spans(
            trace_ids=trace_ids,
            names=[required["name"]] if "name" in required else (),
            kinds=sorted({required["span_kind"], "UNKNOWN"}) if "span_kind" in required else (),
            statuses=[required["status_code"]] if "status_code" in required else (),
        )
        return map(self._span_of, raw)

    def read_spans(self, span_ids: Sequence[str]) -> Iterator[Span]:
        """Those of these spans that exist."""
        return map(self._span_of, self._reads.spans(span_ids=span_ids))

    def children(self, span_id: str) -> Sequence[SpanSummary]:
        """Direct children, by (start, id); only they are read if the trace was not."""
        own = self.span(span_id).summary
        if own.trace_id in self._summaries:
            return super().children(span_id)
        raw = self._reads.spans(trace_ids=[own.trace_id], parent_id=span_id)
        return sorted((self._span_of(each).summary for each in raw), key=lambda span: span.order)

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
        return f"{self.client.base_url}/redirects/{what}"

    def _span_of(self, raw: Json) -> Span:
        with self.reading("a span"):
            return flat.span(raw, project=self._project)
