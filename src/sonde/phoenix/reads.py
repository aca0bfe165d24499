"""What is read from a Phoenix server: pages of traces, spans by trace or by id, annotations. Never a whole project."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from sonde.errors import ConfigError, ToolResponseInvalid
from sonde.trace_client import Json, Params, ServerRefused, TraceClient

SPANS_A_PAGE = 200
TRACES_A_PAGE = 100
IDS_A_REQUEST = 40
ANNOTATIONS_A_PAGE = 1000
MAX_ANNOTATIONS = 50_000
_LEVELS = {"span": "span_ids", "trace": "trace_ids", "session": "session_ids"}


class PhoenixClient(TraceClient):
    """A Phoenix server; its key goes as a bearer token."""

    def __init__(
        self, base_url: str, *, api_key: str | None = None, headers: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        key = {"authorization": f"Bearer {api_key}"} if api_key else {}
        super().__init__("Phoenix", base_url, headers=key | dict(headers or {}), secrets=[api_key or ""], **options)


class PhoenixReads:
    """Reads of one project."""

    def __init__(self, client: PhoenixClient, project: str) -> None:
        self.client = client
        self.project = project
        self._path: str | None = None

    def projects(self) -> list[str]:
        """Names of all projects, sorted."""
        try:
            return sorted(str(row.get("name", "")) for row in self._pages("/v1/projects", {"limit": 100}))
        except ServerRefused as refused:
            if refused.status not in {404, 405}:
                raise
            url = self.client.base_url
            raise ConfigError(
                f"{url} is no Phoenix server ({refused.status} at /v1/projects). Other servers are named with their product: "
                f"--source langfuse:{url} or --source langsmith:{url}"
            ) from None

    def traces(self, *, start_time: str | None = None, end_time: str | None = None) -> Iterator[list[Json]]:
        """Pages of traces by start time, with the outline of their spans."""
        params: Params = {
            "start_time": start_time,
            "end_time": end_time,
            "sort": "start_time",
            "order": "asc",
            "include_spans": "true",
            "limit": TRACES_A_PAGE,
        }
        return self._each_page(f"{self._project_path()}/traces", params)

    def spans(
        self,
        *,
        trace_ids: Sequence[str] = (),
        span_ids: Sequence[str] = (),
        parent_id: str | None = None,
        names: Sequence[str] = (),
        kinds: Sequence[str] = (),
        statuses: Sequence[str] = (),
    ) -> Iterator[Json]:
        """Whole spans that fit, page by page. Some id must be given: without one this would read the project."""
        if not (trace_ids or span_ids):
            raise ValueError("spans are read by trace or by id, never a whole project")
        for traces in _groups(trace_ids):
            for ids in _groups(span_ids):
                params: Params = {
                    "trace_id": traces,
                    "span_id": ids,
                    "parent_id": parent_id,
                    "name": names,
                    "span_kind": kinds,
                    "status_code": statuses,
                    "sort": "start_time",
                    "order": "asc",
                    "limit": SPANS_A_PAGE if not span_ids else IDS_A_REQUEST,
                }
                yield from self._pages(f"{self._project_path()}/spans", params)

    def annotations(self, level: str, ids: Sequence[str]) -> list[Json]:
        """Annotations on these spans, traces or sessions."""
        found: list[Json] = []
        for group in _groups(ids):
            params: Params = {_LEVELS[level]: group, "limit": ANNOTATIONS_A_PAGE}
            try:
                for row in self._pages(f"{self._project_path()}/{level}_annotations", params):
                    found.append(row)
                    if len(found) > MAX_ANNOTATIONS:
                        raise ToolResponseInvalid(
                            f"Phoenix at {self.client.base_url} has more than {MAX_ANNOTATIONS} annotations on these {level}s"
                        )
            except ServerRefused as refused:
                if refused.status != 404:  # the server's word for: none of these is in the project
                    raise
        return found

    def _pages(self, path: str, params: Params) -> Iterator[Json]:
        for page in self._each_page(path, params):
            yield from page

    def _each_page(self, path: str, params: Params) -> Iterator[list[Json]]:
        def ask(cursor: str | None, size: int) -> tuple[Any, Any]:
            try:
                reply = self.client.get(path, {**params, "limit": size, "cursor": cursor})
            except ServerRefused as refused:
                if refused.status == 404 and path.startswith("/v1/projects/") and self.project not in self.projects():
                    raise self._unknown_project() from None
                raise
            return reply.get("data") or [], reply.get("next_cursor")

        return self.client.pages(path, ask, size=int(str(params["limit"])))

    def _project_path(self) -> str:
        """By name; by id where the name holds what a path cannot."""
        if self._path is None:
            identifier = self.project
            if any(letter in identifier for letter in "/?#"):
                rows = self._pages("/v1/projects", {"limit": 100})
                found = next((row for row in rows if row.get("name") == self.project), None)
                if found is None:
                    raise self._unknown_project()
                identifier = str(found["id"])
            self._path = f"/v1/projects/{quote(identifier, safe='')}"
        return self._path

    def _unknown_project(self) -> ConfigError:
        known = ", ".join(self.projects()[:20]) or "none"
        return ConfigError(f"Phoenix at {self.client.base_url} has no project {self.project!r}; there are: {known}")


def _groups(ids: Sequence[str]) -> list[list[str]]:
    """At most forty ids per request, so that addresses stay short; one empty group when no ids are given."""
    return [list(ids[at : at + IDS_A_REQUEST]) for at in range(0, len(ids), IDS_A_REQUEST)] or [[]]
