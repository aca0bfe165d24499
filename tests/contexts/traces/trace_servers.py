"""Servers on loopback that answer as Phoenix, Langfuse and LangSmith do, all with the same few traces.

The fields of the replies are those of the products' own definitions: the REST interface of Phoenix, the Fern definitions of Langfuse
(`observations`, `legacy`, `trace`), the OpenAPI models of LangSmith. `make test-sdks` has the products' own clients read them.
Pages are short, so that every list takes several.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast
from urllib.parse import parse_qs, unquote, urlsplit

Json = dict[str, Any]
PROJECT = "shop"
PUBLIC, SECRET, KEY = "pk-lf-0f0f0f0f-public", "sk-lf-5ec2e700-never-shown", "lsv2_pt_5ec2e7_never_shown"
KEYS = {
    "LANGFUSE_PUBLIC_KEY": PUBLIC,
    "LANGFUSE_SECRET_KEY": SECRET,
    "LANGSMITH_API_KEY": KEY,
    "PHOENIX_API_KEY": "px-key-never-shown",
}
SESSION = "5e551017-0000-4000-8000-000000000001"
TENANT = "7e7a7700-0000-4000-8000-000000000002"
PAGE = 3
DAY = "2026-11-02T"


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """One step of a trace, in nobody's form."""

    trace: str
    name: str
    kind: str
    start: str
    end: str
    parent: str | None = None
    error: str = ""
    warning: str = ""
    given: Any = None
    gave: Any = None
    model: str = ""
    tokens: tuple[int, int] = (0, 0)
    cost: tuple[float, float] = (0.0, 0.0)
    metadata: Json = field(default_factory=dict[str, Any])


def _message(role: str, content: str) -> Json:
    return {"role": role, "content": content}


def _call(trace: str, reply: str, **more: Any) -> Step:
    """A checkout asks its model."""
    asked = {"messages": [_message("user", "Where is order 17?")]}
    said = _message("assistant", reply)
    return Step(
        trace=trace,
        name="ask the model",
        kind="LLM",
        parent="checkout",
        given=asked,
        gave=said,
        model="gpt-4o-mini",
        **more,
    )


STEPS = (
    Step(trace="good", name="checkout", kind="CHAIN", start="10:00:00.000", end="10:00:04.000", given={"order": 17}),
    _call(
        "good",
        "I look it up.",
        start="10:00:00.500",
        end="10:00:02.250",
        tokens=(120, 30),
        cost=(0.000018, 0.000018),
        metadata={"prompt_version": "7"},
    ),
    Step(
        trace="good",
        name="find_order",
        kind="TOOL",
        parent="checkout",
        start="10:00:02.250",
        end="10:00:03.900",
        given={"id": 17},
        gave={"state": "sent"},
    ),
    Step(trace="bad", name="checkout", kind="CHAIN", start="11:00:00.000", end="11:00:05.000", error="no stock for 18"),
    _call(
        "bad", "I reserve it.", start="11:00:00.100", end="11:00:01.100", tokens=(90, 10), cost=(0.0000135, 0.000006)
    ),
    Step(
        trace="bad",
        name="reserve_stock",
        kind="TOOL",
        parent="checkout",
        start="11:00:01.200",
        end="11:00:04.800",
        given={"sku": 18},
        error="StockError: no stock for 18",
    ),
    Step(
        trace="bad",
        name="connect",
        kind="CHAIN",
        parent="reserve_stock",
        start="11:00:01.300",
        end="11:00:04.700",
        error="timeout after 3 s",
    ),
    Step(trace="odd", name="lookup", kind="CHAIN", start="12:00:00.000", end="12:00:01.000"),
    Step(
        trace="odd",
        name="search_docs",
        kind="RETRIEVER",
        parent="lookup",
        start="12:00:00.200",
        end="12:00:00.700",
        given={"query": "returns"},
        gave={"documents": [{"page_content": "30 days"}]},
        warning="only one document",
    ),
)


def hex_ids(step: Step | tuple[str, str]) -> tuple[str, str]:
    """(trace id, span id) as OpenTelemetry has them."""
    trace, name = (step.trace, step.name) if isinstance(step, Step) else step
    places = [(each.trace, each.name) for each in STEPS]
    names = list(dict.fromkeys(each.trace for each in STEPS))
    return f"{names.index(trace) + 0xA1:02x}{trace.encode().hex():0>30}", f"{places.index((trace, name)) + 0xB1:016x}"


def uuids(step: Step | tuple[str, str]) -> tuple[str, str]:
    """The same as UUIDs. A root run of LangSmith has the id of its trace."""
    trace, span = hex_ids(step)
    name, known = (step.name, step.trace) if isinstance(step, Step) else (step[1], step[0])
    root = any(each.parent is None and (each.trace, each.name) == (known, name) for each in STEPS)
    whole = f"{trace[:8]}-0000-4000-8000-{trace[-12:]}"
    return whole, whole if root else f"{span[-4:]:0>8}-0000-4000-9000-{span[-12:]}"


def attributes(step: Step) -> Json:
    """The OpenInference attributes of a step."""
    found: Json = {"openinference.span.kind": step.kind}
    for name, value in (("input.value", step.given), ("output.value", step.gave)):
        if value is not None:
            found[name] = json.dumps(value, sort_keys=True, separators=(",", ":"))
    if step.kind == "LLM":
        found["llm.model_name"] = step.model
        for share, count in zip(("prompt", "completion"), step.tokens, strict=True):
            found[f"llm.token_count.{share}"] = count
        found["llm.token_count.total"] = sum(step.tokens)
        for share, cost in zip(("prompt", "completion"), step.cost, strict=True):
            found[f"llm.cost.{share}"] = cost
        found["llm.input_messages"] = [{"message": each} for each in step.given["messages"]]
        found["llm.output_messages"] = [{"message": step.gave}]
    if step.kind == "TOOL":
        found["tool.name"] = step.name
    if step.kind == "RETRIEVER":
        found["retrieval.documents"] = [
            {"document": {"content": each["page_content"]}} for each in step.gave["documents"]
        ]
    if step.metadata:
        found["metadata"] = step.metadata
    return found


@dataclass
class Asked:
    """One request as the server saw it."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: Any

    def one(self, name: str, usual: str = "") -> str:
        return self.query.get(name, [usual])[0]


Reply = tuple[int, Any] | tuple[int, Any, dict[str, str]]
Answer = Callable[[Asked], Reply]


@contextmanager
def serving(answer: Answer) -> Generator[tuple[str, list[Asked]]]:
    """A server that answers with a function, and what it was asked. Text and bytes go out as they are, anything else as JSON."""
    seen: list[Asked] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            parts = urlsplit(self.path)
            raw = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            query = parse_qs(parts.query, keep_blank_values=True)
            asked = Asked(self.command, parts.path, query, headers, json.loads(raw) if raw else None)
            seen.append(asked)
            status, value, *more = answer(asked)
            body = (
                value
                if isinstance(value, bytes)
                else value.encode()
                if isinstance(value, str)
                else json.dumps(value).encode()
            )
            self.send_response(status)
            for name, text in (more[0] if more else {}).items():
                self.send_header(name, text)
            self.send_header("content-type", "text/html" if isinstance(value, str) else "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = handle_any  # noqa: N815  # the names that the base class calls

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # named so by the base class
            """Quiet."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """Quiet: the other side may hang up when it has had enough."""

    server = Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)


# Phoenix


def phoenix_span(step: Step) -> Json:
    """A span as `GET /v1/projects/{project}/spans` gives it."""
    trace_id, span_id = hex_ids(step)
    return {
        "id": f"U3Bhbjo{span_id[-2:]}",
        "name": step.name,
        "context": {"trace_id": trace_id, "span_id": span_id},
        "span_kind": step.kind,
        "parent_id": hex_ids((step.trace, step.parent))[1] if step.parent else None,
        "start_time": f"{DAY}{step.start}+00:00",
        "end_time": f"{DAY}{step.end}+00:00",
        "status_code": "ERROR" if step.error else "OK",
        "status_message": step.error or step.warning,
        "attributes": attributes(step),
        "events": [],
    }


def phoenix(asked: Asked) -> Reply:
    """GET /v1/projects, …/traces and …/spans."""
    if asked.headers.get("authorization") != f"Bearer {KEYS['PHOENIX_API_KEY']}":
        return 401, "Invalid token"
    if asked.path == "/v1/projects":
        return 200, {"data": [{"id": "UHJvamVjdDox", "name": PROJECT, "description": None}], "next_cursor": None}
    spans = [phoenix_span(step) for step in STEPS]
    if asked.path.endswith("_annotations"):
        return 200, {"data": [], "next_cursor": None}
    if asked.path == f"/v1/projects/{PROJECT}/traces":
        rows: list[Json] = []
        for trace in dict.fromkeys(span["context"]["trace_id"] for span in spans):
            own = [span for span in spans if span["context"]["trace_id"] == trace]
            times = {
                "start_time": min(each["start_time"] for each in own),
                "end_time": max(each["end_time"] for each in own),
            }
            outline = [{"id": each["id"], "span_id": each["context"]["span_id"]} for each in own]
            rows.append(
                {"id": f"VHJhY2U6{trace[-2:]}", "trace_id": trace, "project_id": "x", **times, "spans": outline}
            )
        start, end = asked.one("start_time"), asked.one("end_time", "9")
        rows = [row for row in rows if _plain(start) <= _plain(row["start_time"]) < _plain(end)]
        return 200, _cursored(rows, asked.one("cursor"), 2, "next_cursor")
    chosen = [
        span
        for span in spans
        if span["context"]["trace_id"] in asked.query.get("trace_id", [span["context"]["trace_id"]])
        and span["context"]["span_id"] in asked.query.get("span_id", [span["context"]["span_id"]])
        and span["parent_id"] in asked.query.get("parent_id", [span["parent_id"]])
        and span["name"] in asked.query.get("name", [span["name"]])
        and span["span_kind"] in asked.query.get("span_kind", [span["span_kind"]])
        and span["status_code"] in asked.query.get("status_code", [span["status_code"]])
    ]
    return 200, _cursored(chosen, asked.one("cursor"), PAGE, "next_cursor")


def _cursored(rows: list[Json], cursor: str, size: int, name: str) -> Json:
    at = int(cursor or 0)
    return {"data": rows[at : at + size], name: str(at + size) if at + size < len(rows) else None}


def _plain(time: str) -> str:
    """A time that can be compared as text."""
    return time.replace("+00:00", "").replace("Z", "").ljust(26, "0") if time else ""


# Langfuse

_TYPES = {"LLM": "GENERATION", "CHAIN": "SPAN"}
_GROUPS = {
    "core": ("id", "traceId", "startTime", "endTime", "projectId", "parentObservationId", "type"),
    "basic": (
        *("name", "level", "statusMessage", "version", "environment", "bookmarked", "public", "userId", "sessionId"),
        "isRootObservation",
    ),
    "time": ("completionStartTime", "createdAt", "updatedAt"),
    "io": ("input", "output"),
    "metadata": ("metadata",),
    "model": ("providedModelName", "internalModelId", "modelParameters"),
    "usage": ("usageDetails", "costDetails", "totalCost", "usagePricingTierName"),
    "prompt": ("promptId", "promptName", "promptVersion"),
    "metrics": ("latency", "timeToFirstToken"),
    "trace_context": ("tags", "release", "traceName"),
}


def langfuse_observation(step: Step) -> Json:
    """An observation with every field of version 4; inputs are texts there."""
    trace_id, span_id = hex_ids(step)
    usage = {"input": step.tokens[0], "output": step.tokens[1], "total": sum(step.tokens)} if step.model else {}
    cost = {"input": step.cost[0], "output": step.cost[1]} if step.model else {}
    return {
        "id": span_id,
        "traceId": trace_id,
        "startTime": f"{DAY}{step.start}Z",
        "endTime": f"{DAY}{step.end}Z",
        "projectId": "cm0shop",
        "parentObservationId": hex_ids((step.trace, step.parent))[1] if step.parent else None,
        "type": _TYPES.get(step.kind, step.kind),
        "name": step.name,
        "level": "ERROR" if step.error else "WARNING" if step.warning else "DEFAULT",
        "statusMessage": step.error or step.warning or None,
        "version": None,
        "environment": "default",
        "bookmarked": False,
        "public": False,
        "userId": None,
        "sessionId": None,
        "isRootObservation": step.parent is None,
        "completionStartTime": None,
        "createdAt": f"{DAY}{step.end}Z",
        "updatedAt": f"{DAY}{step.end}Z",
        "input": None if step.given is None else json.dumps(step.given),
        "output": None if step.gave is None else json.dumps(step.gave),
        "metadata": step.metadata,
        "providedModelName": step.model or None,
        "internalModelId": None,
        "modelParameters": {},
        "usageDetails": usage,
        "costDetails": cost,
        "totalCost": sum(cost.values()) or None,
        "usagePricingTierName": None,
        "promptId": None,
        "promptName": None,
        "promptVersion": None,
        "latency": None,
        "timeToFirstToken": None,
        "tags": [],
        "release": None,
        "traceName": next(each.name for each in STEPS if each.trace == step.trace),
    }


def langfuse(asked: Asked) -> Reply:
    """Version 4: GET /api/public/v2/observations, newest first."""
    refused = _langfuse_door(asked)
    if refused or asked.path != "/api/public/v2/observations":
        return refused or (404, {"message": "Not Found", "error": "LangfuseNotFoundError"})
    limit = int(asked.one("limit", "50"))
    if limit > 1000:
        return 400, {"message": "Invalid request data", "error": [{"path": ["limit"], "code": "too_big"}]}
    rows = sorted(
        map(langfuse_observation, STEPS), key=lambda row: (row["startTime"], row["traceId"], row["id"]), reverse=True
    )
    if "filter" in asked.query:  # it takes precedence over the parameters
        for condition in json.loads(asked.one("filter")):
            assert (condition["type"], condition["operator"]) == ("stringOptions", "any of")
            rows = [row for row in rows if row[condition["column"]] in condition["value"]]
    else:
        if "isRootObservation" in asked.query:
            rows = [row for row in rows if row["isRootObservation"] == (asked.one("isRootObservation") == "true")]
        start, end = _plain(asked.one("fromStartTime")), _plain(asked.one("toStartTime", "9"))
        rows = [row for row in rows if start <= _plain(row["startTime"]) < end]
    if "cursor" in asked.query:
        last = json.loads(base64.b64decode(asked.one("cursor")))
        passed = (last["lastStartTimeTo"], last["lastTraceId"], last["lastId"])
        rows = [row for row in rows if (row["startTime"], row["traceId"], row["id"]) < passed]
    shown, meta = rows[: min(limit, PAGE)], {}
    if len(rows) > len(shown) and shown:
        last = {
            "lastStartTimeTo": shown[-1]["startTime"],
            "lastTraceId": shown[-1]["traceId"],
            "lastId": shown[-1]["id"],
        }
        meta = {"cursor": base64.b64encode(json.dumps(last).encode()).decode()}
    groups = {"core", *asked.one("fields", "core,basic").split(",")}
    prices = {"modelId": None, "inputPrice": None, "outputPrice": None, "totalPrice": None}
    data = [
        {name: row[name] for group in _GROUPS if group in groups for name in _GROUPS[group]} | prices for row in shown
    ]
    return 200, {"data": data, "meta": meta}


def langfuse_v3(asked: Asked) -> Reply:
    """Version 3: GET /api/public/traces and /observations/{id}; the other interface is not there."""
    refused = _langfuse_door(asked)
    if refused:
        return refused
    if asked.path == "/api/public/v2/observations":
        said = "The observations v2 API is only available in a Langfuse v4 write mode. Learn more at: https://langfuse.com/docs/v4"
        return 404, {"message": said, "error": "LangfuseNotFoundError"}
    traces = {trace["id"]: trace for trace in langfuse_traces()}
    what, _, wanted = asked.path.removeprefix("/api/public/").partition("/")
    if what == "observations":
        found = [each for trace in traces.values() for each in trace["observations"] if each["id"] == unquote(wanted)]
        return (
            (200, found[0]) if found else (404, {"message": "Observation not found", "error": "LangfuseNotFoundError"})
        )
    if wanted:
        trace = traces.get(unquote(wanted))
        return (200, trace) if trace else (404, {"message": "Trace not found", "error": "LangfuseNotFoundError"})
    start, end = _plain(asked.one("fromTimestamp")), _plain(asked.one("toTimestamp", "9"))
    chosen = [row for row in traces.values() if start <= _plain(row["timestamp"]) < end]
    rows = [{**row, "observations": [each["id"] for each in row["observations"]], "scores": []} for row in chosen]
    page = int(asked.one("page", "1"))
    pages = -(-len(rows) // 2)
    meta = {"page": page, "limit": 2, "totalItems": len(rows), "totalPages": pages}
    return 200, {"data": rows[2 * page - 2 : 2 * page], "meta": meta}


def langfuse_traces() -> list[Json]:
    """Every trace with its observations, as version 3 gives it and its page exports it."""
    return [_langfuse_trace(trace_id) for trace_id in dict.fromkeys(hex_ids(step)[0] for step in STEPS)]


def _langfuse_trace(trace_id: str) -> Json:
    steps = [step for step in STEPS if hex_ids(step)[0] == trace_id]
    observations: list[Json] = []
    for step in steps:
        row = langfuse_observation(step)
        usage = {"unit": "TOKENS", "input": step.tokens[0], "output": step.tokens[1], "total": sum(step.tokens)}
        left_out = {"isRootObservation", "bookmarked", "public", "userId", "sessionId", "tags", "release", "traceName"}
        observations.append(
            {name: value for name, value in row.items() if name not in left_out}
            | {"input": step.given, "output": step.gave, "model": row["providedModelName"], "usage": usage}
            | {"unit": "TOKENS", "promptTokens": usage["input"], "completionTokens": usage["output"]}
            | {"totalTokens": usage["total"], "modelId": None, "usagePricingTierId": None}
            | {"inputPrice": None, "outputPrice": None, "totalPrice": None, "calculatedInputCost": None}
            | {"calculatedOutputCost": None, "calculatedTotalCost": None}
        )
    begun, ended = (datetime.fromisoformat(f"{DAY}{time}") for time in (steps[0].start, steps[0].end))
    return {
        "id": trace_id,
        "projectId": "cm0shop",
        "timestamp": observations[0]["startTime"],
        "name": steps[0].name,
        "input": steps[0].given,
        "output": steps[0].gave,
        "sessionId": None,
        "release": None,
        "version": None,
        "userId": None,
        "metadata": {},
        "tags": [],
        "public": False,
        "bookmarked": False,
        "environment": "default",
        "createdAt": observations[0]["createdAt"],
        "updatedAt": observations[0]["updatedAt"],
        "externalId": None,
        "htmlPath": f"/project/cm0shop/traces/{trace_id}",
        "latency": (ended - begun).total_seconds(),
        "totalCost": 0.0,
        "observations": observations,
        "scores": [],
    }


def _langfuse_door(asked: Asked) -> Reply | None:
    basic = base64.b64encode(f"{PUBLIC}:{SECRET}".encode()).decode()
    if asked.headers.get("authorization") != f"Basic {basic}":
        return 401, {
            "message": "Invalid credentials. Confirm that you've configured the correct host.",
            "error": "UnauthorizedError",
        }
    if asked.path == "/api/public/projects":
        organization = {"id": "cm0org", "name": "acme"}
        return 200, {"data": [{"id": "cm0shop", "name": PROJECT, "organization": organization, "metadata": {}}]}
    return None


# LangSmith

_RUN_TYPES = {"LLM": "llm", "TOOL": "tool", "RETRIEVER": "retriever"}


def langsmith_run(step: Step) -> Json:
    """A run with the fields of the schema that a query can select."""
    trace_id, run_id = uuids(step)
    ancestors: list[Step] = []
    above = step.parent
    while above is not None:
        ancestors.insert(0, next(each for each in STEPS if (each.trace, each.name) == (step.trace, above)))
        above = ancestors[0].parent
    dotted = [
        f"{DAY}{each.start}000Z".replace("-", "").replace(":", "") + uuids(each)[1] for each in (*ancestors, step)
    ]
    below = [each for each in STEPS if each.trace == step.trace and each.model] if step.parent is None else [step]
    counts = [sum(each.tokens[side] for each in below) for side in (0, 1)]
    costs = [f"{sum(each.cost[side] for each in below):.7f}" if step.model else None for side in (0, 1)]
    extra: Json = {"metadata": dict(step.metadata), "runtime": {"sdk": "langsmith-py"}}
    if step.model:
        extra["invocation_params"] = {"model": step.model}
    return {
        "id": run_id,
        "name": step.name,
        "run_type": _RUN_TYPES.get(step.kind, "chain"),
        "start_time": f"{DAY}{step.start}000",
        "end_time": f"{DAY}{step.end}000",
        "status": "error" if step.error else "success",
        "error": step.error or None,
        "extra": extra,
        "events": [],
        "inputs": step.given or {},
        "outputs": step.gave,
        "parent_run_id": uuids(ancestors[-1])[1] if ancestors else None,
        "parent_run_ids": [uuids(each)[1] for each in ancestors],
        "trace_id": trace_id,
        "dotted_order": ".".join(dotted),
        "session_id": SESSION,
        "app_path": f"/o/{TENANT}/projects/p/{SESSION}/r/{run_id}",
        "prompt_tokens": counts[0],
        "completion_tokens": counts[1],
        "total_tokens": sum(counts),
        "prompt_cost": costs[0],
        "completion_cost": costs[1],
        "total_cost": None,
        "tags": [],
        "thread_id": None,
        "feedback_stats": None,
        "first_token_time": None,
        "reference_example_id": None,
        "s3_urls": None,
    }


def langsmith(asked: Asked) -> Reply:
    """GET /api/v1/sessions and POST /api/v1/runs/query."""
    if asked.headers.get("x-api-key") != KEY:
        return 401, {"detail": "Invalid token"}
    if asked.path in ("/api/v1/sessions", "/sessions"):
        names = ["another", PROJECT, *(f"eval {number}" for number in range(150))]
        rows: list[Json] = [
            {
                "id": SESSION if name == PROJECT else f"5e551017-0000-4000-8000-{number + 9:012x}",
                "tenant_id": TENANT,
                "name": name,
                "start_time": f"{DAY}00:00:00",
                "reference_dataset_id": None,
                "extra": None,
            }
            for number, name in enumerate(names)
        ]
        wanted, at = asked.one("name"), int(asked.one("offset", "0"))
        rows = [row for row in rows if not wanted or row["name"] == wanted]
        return 200, rows[at : at + int(asked.one("limit", "100"))]
    if asked.path in ("/info", "/api/v1/info"):
        return 200, {"version": "0.16.3"}
    if asked.path not in ("/api/v1/runs/query", "/runs/query"):
        return 404, {"detail": "Not Found"}
    body = asked.body
    if body.get("limit", 100) > 100:
        return 422, {"detail": [{"loc": ["body", "limit"], "msg": "Input should be less than or equal to 100"}]}
    runs = [langsmith_run(step) for step in STEPS if SESSION in body.get("session", [SESSION])]
    if "id" in body:
        runs = [run for run in runs if run["id"] in body["id"]]
    if "trace" in body:
        runs = [run for run in runs if run["trace_id"] == body["trace"]]
    if body.get("is_root"):
        runs = [run for run in runs if run["parent_run_id"] is None]
    if "error" in body:
        runs = [run for run in runs if (run["error"] is not None) == body["error"]]
    if "start_time" in body:
        runs = [run for run in runs if _plain(run["start_time"]) >= _plain(body["start_time"])]
    runs = [run for run in runs if _meets(run, body.get("filter", ""))]
    runs.sort(key=lambda run: run["start_time"], reverse=body.get("order", "desc") == "desc")
    at = int(body.get("cursor") or 0)
    size = min(PAGE, body.get("limit", 100))
    required = {"id", "app_path", "dotted_order", "name", "run_type", "session_id", "status", "trace_id", "start_time"}
    selected = required | set(body.get("select") or runs[0] if runs else ())
    shown = [{name: value for name, value in run.items() if name in selected} for run in runs[at : at + size]]
    cursors = {"next": str(at + size) if at + size < len(runs) else None, "prev": None}
    return 200, {"runs": shown, "cursors": cursors, "search_cursors": None, "parsed_query": None}


def langsmith_v2(asked: Asked) -> Reply:
    """POST /api/v2/runs/query, newest first, where the first interface is gone."""
    if asked.path != "/api/v2/runs/query":
        return (404, {"detail": "Not Found"}) if asked.path.endswith("/runs/query") else langsmith(asked)
    if asked.headers.get("x-api-key") != KEY:
        return 401, {"detail": "Invalid token"}
    body = asked.body
    names = {"trace_id": "trace", "ids": "id", "has_error": "error", "min_start_time": "start_time"}
    known = {"filter", "is_root", "cursor", "project_ids", "page_size", "selects", *names}
    assert body["project_ids"] and set(body) <= known, set(body) - known
    older = {names.get(name, name): value for name, value in body.items()}
    older |= {"session": body["project_ids"], "start_time": body.get("min_start_time", "2999")}
    status, reply, *_ = langsmith(replace(asked, path="/api/v1/runs/query", body=older))
    runs: list[Json] = []
    for run in reply["runs"]:
        whole = next(langsmith_run(step) for step in STEPS if uuids(step)[1] == run["id"])
        whole |= {"project_id": whole["session_id"], "run_type": whole["run_type"].upper()}
        whole |= {
            "status": whole["status"].upper(),
            "metadata": whole["extra"]["metadata"],
            "is_root": not whole["parent_run_ids"],
        }
        whole |= {name: whole[name] and float(whole[name]) for name in ("prompt_cost", "completion_cost")}
        whole |= {name: f"{whole[name]}Z" for name in ("start_time", "end_time")}
        runs.append({name: value for name, value in whole.items() if name.upper() in body.get("selects", ["ID"])})
    return status, {"items": runs, "next_cursor": reply["cursors"]["next"]}


def _meets(run: Json, condition: str) -> bool:
    """The part of LangSmith's filter language that is used here."""
    if not condition:
        return True
    if condition.startswith("and("):
        return all(_meets(run, each) for each in re.findall(r"(?:in|eq|lt)\([^()]*\)", condition[4:-1]))
    found = re.fullmatch(r"(in|eq|lt)\((\w+), (.*)\)", condition)
    assert found is not None, condition
    comparison, column, value = found[1], found[2], json.loads(found[3])
    if comparison == "lt":
        return _plain(run[column]) < _plain(value)
    return run[column] in (cast("Iterable[Any]", value) if comparison == "in" else [value])
