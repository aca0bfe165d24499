"""A Phoenix server made of flat spans: the reads and annotation writes that Sonde uses, on loopback."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

Json = dict[str, Any]


class PhoenixDouble:
    """Serves one project. `refuse` makes writes fail with that status; `lost` are span ids that writes do not find;
    once `dead`, no read is answered; `answers` says it in other words: a status and a body for every read.
    """

    def __init__(self, rows: list[Json]) -> None:
        self.rows = [_rest(row) for row in rows]
        self.written: dict[tuple[str, str, str], Json] = {}
        self.headers: list[dict[str, str]] = []
        self.refuse: int | None = None
        self.dead = False
        self.lost: set[str] = set()
        self.answers: tuple[int, bytes] | None = None
        double = self

        class Exchange(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._reply(*double.answers) if double.answers else self._reply(*double.read(self.path))

            def do_POST(self) -> None:
                double.headers.append({name.lower(): value for name, value in self.headers.items()})
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                self._reply(*double.write(urlsplit(self.path).path, body["data"]))

            def _reply(self, status: int, value: Json | bytes) -> None:
                body = value if isinstance(value, bytes) else json.dumps(value).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the overridden method's name for it
                """Silent."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Exchange)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    def read(self, path: str) -> tuple[int, Json]:
        """A page of spans or traces."""
        if self.dead:
            return 500, {"detail": "gone"}
        parts = urlsplit(path)
        wanted = parse_qs(parts.query)
        if parts.path == "/v1/projects":
            return 200, {"data": [{"name": "shop", "id": "1"}], "next_cursor": None}
        if parts.path.endswith("_annotations"):
            level = parts.path.rsplit("/", 1)[1].removesuffix("_annotations")
            ids = wanted.get(f"{level}_ids", [])
            rows = [row for row in self.written.values() if row["level"] == level and row[f"{level}_id"] in ids]
            return 200, {"data": rows, "next_cursor": None}
        if parts.path.endswith("/traces"):
            return 200, {"data": self._traces(), "next_cursor": None}
        found = [
            row
            for row in self.rows
            if ("trace_id" not in wanted or row["context"]["trace_id"] in wanted["trace_id"])
            and ("span_id" not in wanted or row["context"]["span_id"] in wanted["span_id"])
        ]
        return 200, {"data": found, "next_cursor": None}

    def _traces(self) -> list[Json]:
        groups: dict[str, list[Json]] = {}
        for row in self.rows:
            groups.setdefault(row["context"]["trace_id"], []).append(row)
        return [
            {"trace_id": trace_id, "start_time": rows[0]["start_time"], "end_time": rows[0]["end_time"], "spans": rows}
            for trace_id, rows in groups.items()
        ]

    def write(self, path: str, rows: list[Json]) -> tuple[int, Json]:
        """Keep annotations by (name, target, identifier), as the server does."""
        if self.refuse is not None:
            return self.refuse, {"detail": "not today"}
        level = path.rsplit("/", 1)[1].removesuffix("_annotations")
        if any(row[f"{level}_id"] in self.lost for row in rows):
            return 404, {"detail": "unknown id"}
        for row in rows:
            self.written[row["name"], row[f"{level}_id"], row["identifier"]] = {**row, "level": level}
        return 200, {"data": [{"id": f"{level}-{row[f'{level}_id']}-{row['name']}"} for row in rows]}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


def _rest(row: Json) -> Json:
    """A flat span as Phoenix's REST shows it."""
    attributes = dict(row["attributes"])
    return {
        "context": {"trace_id": row["trace_id"], "span_id": row["span_id"]},
        "parent_id": row["parent_id"],
        "name": row["name"],
        "span_kind": attributes.pop("openinference.span.kind", "UNKNOWN"),
        "start_time": _moment(row["start_time"]),
        "end_time": _moment(row["end_time"]),
        "status_code": row["status_code"],
        "status_message": row["status_message"],
        "attributes": attributes,
        "events": [],
    }


def _moment(nanoseconds: int) -> str:
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC).isoformat()
