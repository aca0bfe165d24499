"""Traces on a LangSmith server: root runs in pages by start, runs by trace and by id, with `POST /api/v1/runs/query`, or with its successor
`/api/v2/runs/query` where that is gone.

The importer of exports reads the runs, so a trace is the same from a file and from a server. Feedback is not read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any
from urllib.parse import quote, urlsplit
from uuid import UUID

from sonde.contexts.traces.importers import langsmith
from sonde.contexts.traces.serverstore import ServerStore
from sonde.contexts.traces.span import Span, time_text
from sonde.contexts.traces.store import TraceQuery, TraceRow
from sonde.errors import ConfigError, ToolFault, ToolResponseInvalid
from sonde.trace_client import Json, ServerRefused, TraceClient

RUNS_A_PAGE = 100
PROJECTS_A_PAGE = 100
IDS_A_REQUEST = 40
LISTED = 100_000
SUCCESSORS = {
    "session": "project_ids",
    "trace": "trace_id",
    "id": "ids",
    "error": "has_error",
    "start_time": "min_start_time",
    "limit": "page_size",
}
"""How the second interface names what the first one knows."""
OUTLINE = (
    *("id", "name", "run_type", "start_time", "end_time", "status", "error", "parent_run_id", "trace_id"),
    *("session_id", "dotted_order"),
)
WHOLE = (
    *OUTLINE,
    *("inputs", "outputs", "extra", "tags", "thread_id"),
    *("prompt_tokens", "completion_tokens", "total_tokens", "prompt_cost", "completion_cost", "total_cost"),
)


class LangsmithStore(ServerStore):
    """A trace store over one project."""

    def __init__(self, client: TraceClient, project: str) -> None:
        super().__init__(client, project)
        self._session: Json | None = None
        self._succeeded = False

    def projects(self) -> list[str]:
        """Names, sorted."""
        return sorted(str(row.get("name", "")) for page in self._sessions({}) for row in page)

    def _sessions(self, params: Mapping[str, str]) -> Iterator[list[Json]]:
        def ask(cursor: str | None, _: int) -> tuple[Any, Any]:
            at = int(cursor or 0)
            asked = {**params, "include_stats": "false", "limit": PROJECTS_A_PAGE, "offset": at}
            rows: Any = self.client.get("/api/v1/sessions", asked).get("data")
            with self.reading("a list of projects"):
                return rows, at + PROJECTS_A_PAGE if len(rows) >= PROJECTS_A_PAGE else None

        return self.client.pages("projects", ask)

    def _own_session(self) -> Json:
        """The project as LangSmith has it, with its id."""
        if self._session is None:
            named = (row for page in self._sessions({"name": self._project}) for row in page)
            found = next((row for row in named if row.get("name") == self._project and row.get("id")), None)
            if found is None:
                known = ", ".join(self.projects()[:20]) or "none"
                where = f"LangSmith at {self.client.base_url}"
                raise ConfigError(f"{where} has no project {self._project!r}; there are: {known}")
            self._session = found
        return self._session

    def read_rows(self, query: TraceQuery, start_us: int | None) -> Iterator[list[TraceRow]]:
        """Root runs by start."""
        body: Json = {"is_root": True, "select": OUTLINE}
        if start_us is not None:
            body["start_time"] = time_text(start_us)
        if query.end_us is not None:
            body["filter"] = f'lt(start_time, "{time_text(query.end_us)}")'
        for page in self._by_start(self._pages(body)):
            rows: list[TraceRow] = []
            for span in page:
                own = span.summary
                inside = own.start_us >= (start_us or own.start_us) and own.start_us < (
                    query.end_us or own.start_us + 1
                )
                if inside and own.parent_id is None:
                    end = own.end_us or own.start_us
                    row = TraceRow(
                        project=self._project, trace_id=own.trace_id, span_count=1, start_us=own.start_us, end_us=end
                    )
                    rows.append(row)
            for at in range(0, len(rows), IDS_A_REQUEST):
                group = rows[at : at + IDS_A_REQUEST]
                if query.counted:
                    wanted = {"filter": _within("trace_id", [row.trace_id for row in group]), "select": OUTLINE}
                    group = self.remember_outlines(group, (span for page in self._pages(wanted) for span in page))
                yield group

    def read_traces(self, trace_ids: Sequence[str], required: Mapping[str, str]) -> Iterator[Span]:
        """Whole spans of these traces, those that failed only if that is required."""
        ids = [trace_id for trace_id in trace_ids if _is_uuid(trace_id)]
        body: Json = {"select": WHOLE}
        if required.get("status_code") == "ERROR":
            body["error"] = True
        named = [f"eq(name, {json.dumps(required['name'])})"] if "name" in required else []
        for at in range(0, len(ids), IDS_A_REQUEST):
            conditions = [_within("trace_id", ids[at : at + IDS_A_REQUEST]), *named]
            asked = {"filter": conditions[0] if len(conditions) == 1 else f"and({', '.join(conditions)})"}
            if len(ids) == 1 and not named:
                asked = {"trace": ids[0]}
            for page in self._pages(body | asked):
                yield from (span for span in page if span.summary.trace_id in ids)

    def read_spans(self, span_ids: Sequence[str]) -> Iterator[Span]:
        """Those of these runs that exist in the project."""
        ids = [span_id for span_id in span_ids if _is_uuid(span_id)]
        for at in range(0, len(ids), RUNS_A_PAGE):
            for page in self._pages({"id": ids[at : at + RUNS_A_PAGE], "select": WHOLE}):
                yield from (span for span in page if span.summary.span_id in ids)

    def link(self, trace_id: str, span_id: str | None = None) -> str | None:
        """The page of this run in LangSmith, which is beside the API: smith.langchain.com for api.smith.langchain.com."""
        parts = urlsplit(self.client.base_url)
        host = re.sub(r"(^|\.)api\.smith\.langchain\.com$", r"\1smith.langchain.com", parts.netloc)
        tenant, session = (quote(str(self._own_session().get(name, "")), safe="") for name in ("tenant_id", "id"))
        run = quote(span_id or trace_id, safe="")
        return f"{parts.scheme}://{host}{parts.path}/o/{tenant}/projects/p/{session}/r/{run}"

    def _pages(self, body: Json) -> Iterator[list[Span]]:
        """Spans of the project's runs, by start."""
        session = str(self._own_session()["id"])
        asked: Json = {"session": [session], "order": "asc", **body}

        def ask(cursor: str | None, size: int) -> tuple[Any, Any]:
            following: Json = {"limit": size, **({"cursor": cursor} if cursor else {})}
            if not self._succeeded:
                try:
                    reply = self.client.post("/api/v1/runs/query", asked | following)
                except ServerRefused as refused:
                    if refused.status not in {404, 410}:
                        raise
                    self._succeeded = True
                else:
                    with self.reading("a page"):
                        return reply["runs"], reply["cursors"].get("next") if reply.get("cursors") else None
            body = {
                SUCCESSORS.get(name, name): value
                for name, value in (asked | following).items()
                if name not in ("order", "select")
            }
            selected = [
                {"parent_run_id": "PARENT_RUN_IDS", "session_id": "PROJECT_ID"}.get(each, each.upper())
                for each in asked["select"]
            ]
            usual = {"min_start_time": time_text(0), "selects": selected}  # else it would look at the last day only
            reply = self.client.post("/api/v2/runs/query", usual | body)
            with self.reading("a page"):
                return reply["items"], reply.get("next_cursor")

        for page in self.client.pages("runs", ask, size=RUNS_A_PAGE):
            yield [
                self._span_of(raw)
                for raw in page
                if session == (raw.get("session_id") or raw.get("project_id") or session)
            ]

    def _by_start(self, pages: Iterator[list[Span]]) -> Iterator[list[Span]]:
        """Pages by start. The second interface promises no order, so all of its pages are read first."""
        for page in pages:
            if not self._succeeded:
                yield page
                continue
            every = [*page, *islice((span for more in pages for span in more), LISTED + 1)]
            if len(every) > LISTED:
                raise ToolFault(f"more than {LISTED:,} traces began in this window; give a shorter one (--from, --to)")
            yield sorted(every, key=lambda span: span.summary.order)

    def _span_of(self, raw: Json) -> Span:
        with self.reading("a run"):
            span = next(langsmith.spans({**raw, "child_runs": None}))
        if isinstance(span, str):
            raise ToolResponseInvalid(f"LangSmith at {self.client.base_url} sent what cannot be read: {span:.300}")
        return replace(span, project=self._project)


def api_root(address: str) -> str:
    """The address without the path of the API, which LANGSMITH_ENDPOINT may have."""
    return re.sub(r"/api(/v\d+)?/?$", "", address.rstrip("/"))


def _within(column: str, values: Sequence[str]) -> str:
    return f"in({column}, {json.dumps(list(values))})"


def _is_uuid(text: str) -> bool:
    """All ids of LangSmith are UUIDs, and it refuses to look for anything else."""
    try:
        return str(UUID(text)) == text.lower()
    except ValueError:
        return False
