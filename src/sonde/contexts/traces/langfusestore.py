"""Traces on a Langfuse server, read with the keys of one project.

Version 4 has only observations, newest first, in pages by cursor. Version 3 has traces with their observations; it answers 404 to the
other. Both are read by the importer of exports, so a trace is the same from a file and from a server. Scores are not read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast
from urllib.parse import quote

from sonde.contexts.traces.importers import langfuse
from sonde.contexts.traces.serverstore import ServerStore
from sonde.contexts.traces.span import MAX_NAME_CHARS, Span, time_text, us_of_text
from sonde.contexts.traces.store import TraceQuery, TraceRow
from sonde.errors import ToolFault, ToolResponseInvalid
from sonde.trace_client import Json, Params, ServerRefused, TraceClient

OBSERVATIONS = "/api/public/v2/observations"
OUTLINE = "core,basic"
WHOLE = "core,basic,time,io,metadata,model,usage,prompt,trace_context"
OUTLINES_A_PAGE = 1000
SPANS_A_PAGE = 100
TRACES_A_PAGE = 100
IDS_A_REQUEST = 40
LISTED = 100_000


class LangfuseStore(ServerStore):
    """A trace store over the project of a pair of keys."""

    def __init__(self, client: TraceClient, project: str | None) -> None:
        super().__init__(client, project or "")
        self._own: Json | None = None
        self._traced: bool | None = None
        self._roots: dict[tuple[int | None, int | None], list[TraceRow]] = {}

    def describe(self) -> str:
        """What this is."""
        return f"Langfuse server {self.client.base_url}, project {self._project or 'of the keys'}."

    def projects(self) -> list[str]:
        """The name of the one project that the keys open."""
        return [str(self._own_project().get("name", ""))]

    def _own_project(self) -> Json:
        if self._own is None:
            found = self.client.get("/api/public/projects").get("data")
            if not isinstance(found, list) or not found or not isinstance(found[0], dict):
                raise ToolResponseInvalid(f"Langfuse at {self.client.base_url} names no project of these keys")
            self._own = cast("Json", found[0])
            self._project = self._project or str(self._own.get("name", ""))
        return self._own

    def _has_traces(self) -> bool:
        """Whether it is a server of version 3, found out with a question that has no answer."""
        if self._traced is None:
            self._own_project()
            try:
                self.client.get(OBSERVATIONS, {"toStartTime": "1970-01-01T00:00:00Z", "limit": 1})
                self._traced = False
            except ServerRefused as refused:
                if refused.status != 404:
                    raise
                self._traced = True
        return self._traced

    def read_rows(self, query: TraceQuery, start_us: int | None) -> Iterator[list[TraceRow]]:
        """Traces by start. In version 4 all roots of the window are read first, because the server begins with the newest."""
        if self._has_traces():
            yield from self._listed_traces(start_us, query.end_us)
            return
        window = (query.start_us, query.end_us)
        if window not in self._roots:
            self._roots[window] = self._root_rows(*window)
        rows = [row for row in self._roots[window] if start_us is None or row.start_us >= start_us]
        for at in range(0, len(rows), IDS_A_REQUEST):
            group = rows[at : at + IDS_A_REQUEST]
            if query.counted:
                wanted = [_any_of("traceId", [row.trace_id for row in group])]
                group = self.remember_outlines(group, self._observed(OUTLINE, wanted))
            yield group

    def _root_rows(self, start_us: int | None, end_us: int | None) -> list[TraceRow]:
        params: Params = {
            "isRootObservation": "true",
            "fields": OUTLINE,
            "fromStartTime": None if start_us is None else time_text(start_us),
            "toStartTime": None if end_us is None else time_text(end_us),
        }
        found: dict[str, TraceRow] = {}
        for page in self._pages(params, OUTLINES_A_PAGE):
            for raw in page:
                if not raw.get("isRootObservation") and raw.get("parentObservationId"):
                    continue  # an older server does not know the condition
                (span,) = self._spans_of(raw)
                begun, ended = span.summary.start_us, span.summary.end_us or span.summary.start_us
                trace_id, known = span.summary.trace_id, found.get(span.summary.trace_id)
                row = TraceRow(project=self._project, trace_id=trace_id, span_count=1, start_us=begun, end_us=ended)
                if known is not None:
                    earliest, last = min(begun, known.start_us), max(ended, known.end_us)
                    row = replace(known, start_us=earliest, end_us=last, span_count=known.span_count + 1)
                found[trace_id] = row
            if len(found) > LISTED:
                raise ToolFault(f"more than {LISTED:,} traces began in this window; give a shorter one (--from, --to)")
        return sorted(found.values(), key=lambda row: row.order)

    def _listed_traces(self, start_us: int | None, end_us: int | None) -> Iterator[list[TraceRow]]:
        params: Params = {
            "orderBy": "timestamp.asc",
            "fields": "core,observations,metrics",
            "limit": TRACES_A_PAGE,
            "fromTimestamp": None if start_us is None else time_text(start_us),
            "toTimestamp": None if end_us is None else time_text(end_us),
        }

        def ask(cursor: str | None, _: int) -> tuple[Any, Any]:
            reply = self.client.get("/api/public/traces", {**params, "page": int(cursor or 1)})
            meta = reply["meta"]
            return reply["data"], meta["page"] + 1 if meta["page"] < meta["totalPages"] else None

        with self.reading("a list of traces"):
            for page in self.client.pages("traces", ask):
                rows: list[TraceRow] = []
                for raw in page:
                    start, latency = us_of_text(str(raw["timestamp"])), max(0.0, float(raw.get("latency") or 0))
                    rows.append(
                        TraceRow(
                            project=self._project,
                            trace_id=str(raw["id"])[:MAX_NAME_CHARS],
                            span_count=len(raw.get("observations") or ()),
                            start_us=start,
                            end_us=start + round(latency * 1e6),
                        )
                    )
                yield rows

    def read_traces(self, trace_ids: Sequence[str], required: Mapping[str, str]) -> Iterator[Span]:
        """Whole spans of these traces."""
        if self._has_traces():
            for trace_id in trace_ids:
                trace = self._at("traces", trace_id)
                spans = [] if trace is None else self._spans_of(trace)
                yield from (span for span in spans if span.summary.trace_id in trace_ids)
            return
        for at in range(0, len(trace_ids), IDS_A_REQUEST):
            wanted = [_any_of("traceId", trace_ids[at : at + IDS_A_REQUEST])]
            if required.get("status_code") == "ERROR":
                wanted.append(_any_of("level", ["ERROR"]))
            if "name" in required:
                wanted.append(_any_of("name", [required["name"]]))
            yield from (span for span in self._observed(WHOLE, wanted) if span.summary.trace_id in trace_ids)

    def read_spans(self, span_ids: Sequence[str]) -> Iterator[Span]:
        """Those of these spans that exist. In version 3 their traces are read: only they tell what stands above an observation."""
        wanted = set(span_ids)
        if self._has_traces():
            while wanted:
                span_id = min(wanted)
                trace_id = span_id.removeprefix(langfuse.ROOT) if span_id.startswith(langfuse.ROOT) else None
                if trace_id is None:
                    found = self._at("observations", span_id)
                    trace_id = None if found is None else str(found.get("traceId"))
                spans = [] if trace_id is None else [*self.read_traces([trace_id], {})]
                yield from (span for span in spans if span.summary.span_id in wanted)
                wanted -= {span_id, *(span.summary.span_id for span in spans)}
            return
        for at in range(0, len(span_ids), IDS_A_REQUEST):
            asked = [_any_of("id", span_ids[at : at + IDS_A_REQUEST])]
            yield from (span for span in self._observed(WHOLE, asked) if span.summary.span_id in wanted)

    def link(self, trace_id: str, span_id: str | None = None) -> str | None:
        """The page of this trace or observation in Langfuse."""
        project = quote(str(self._own_project().get("id", "")), safe="")
        place = f"{self.client.base_url}/project/{project}/traces/{quote(trace_id, safe='')}"
        return place if span_id is None else f"{place}?observation={quote(span_id, safe='')}"

    def _observed(self, fields: str, conditions: list[Json]) -> Iterator[Span]:
        """Spans of the observations that meet all conditions."""
        limit = OUTLINES_A_PAGE if fields == OUTLINE else SPANS_A_PAGE
        for page in self._pages({"fields": fields, "filter": json.dumps(conditions)}, limit):
            for raw in page:
                yield from self._spans_of(raw)

    def _pages(self, params: Params, limit: int) -> Iterator[list[Json]]:
        def ask(cursor: str | None, size: int) -> tuple[Any, Any]:
            reply = self.client.get(OBSERVATIONS, {**params, "limit": size, "cursor": cursor})
            with self.reading("a page"):
                return reply["data"], reply["meta"].get("cursor")

        for page in self.client.pages("observations", ask, size=limit):
            yield [{**raw, "observations": None} for raw in page]  # rows are observations, never whole traces

    def _at(self, what: str, identifier: str) -> Json | None:
        """A trace or an observation of version 3 by its id; None if there is none."""
        if not identifier.strip("."):
            return None  # it would lead up the path
        try:
            return self.client.get(f"/api/public/{what}/{quote(identifier, safe='')}")
        except ServerRefused as refused:
            if refused.status != 404:
                raise
            return None

    def _spans_of(self, raw: Json) -> list[Span]:
        """The spans of an observation or a trace; ToolResponseInvalid for one that is not as Langfuse makes them."""
        with self.reading("an observation"):
            found = list(langfuse.spans(raw))
        broken = next((each for each in found if isinstance(each, str)), None)
        if broken is not None:
            raise ToolResponseInvalid(f"Langfuse at {self.client.base_url} sent what cannot be read: {broken:.300}")
        return [replace(span, project=self._project) for span in found if isinstance(span, Span)]


def _any_of(column: str, values: Sequence[str]) -> Json:
    return {"type": "stringOptions", "column": column, "operator": "any of", "value": list(values)}
