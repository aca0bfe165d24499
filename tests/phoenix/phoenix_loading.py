"""Loads raw TRAIL documents into a Phoenix server the way an instrumented program would: OTLP protobuf over HTTP, then waits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx2
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from sonde.contexts.traces.importers.flat import duration_us
from sonde.contexts.traces.span import us_of_text

Json = dict[str, Any]
_CODES = {"OK": Status.STATUS_CODE_OK, "ERROR": Status.STATUS_CODE_ERROR, "UNSET": Status.STATUS_CODE_UNSET}


def walk(document: Json) -> Iterator[Json]:
    """Every raw span of a TRAIL document."""
    stack = list(document["spans"])
    while stack:
        raw = stack.pop()
        yield raw
        stack.extend(raw.get("child_spans", ()))


def any_value(value: Any) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    return AnyValue(string_value=str(value))


def pairs(table: Json) -> list[KeyValue]:
    return [KeyValue(key=key, value=any_value(value)) for key, value in table.items()]


def protobuf(raw: Json) -> Span:
    """A raw TRAIL span, attributes untouched."""
    start = us_of_text(raw["timestamp"])
    return Span(
        trace_id=bytes.fromhex(raw["trace_id"]),
        span_id=bytes.fromhex(raw["span_id"]),
        parent_span_id=bytes.fromhex(raw["parent_span_id"] or ""),
        name=raw["span_name"],
        start_time_unix_nano=start * 1000,
        end_time_unix_nano=(start + duration_us(raw["duration"])) * 1000,
        status=Status(code=_CODES[raw["status_code"].upper()], message=raw["status_message"]),
        attributes=pairs(raw["span_attributes"]),
        events=[
            Span.Event(
                name=event["Name"],
                time_unix_nano=us_of_text(event["Timestamp"]) * 1000,
                attributes=pairs(event["Attributes"]),
            )
            for event in raw["events"]
        ],
    )


def send(url: str, project: str, spans: list[Span]) -> None:
    """Hand spans over; the server answers 200 when they are queued, not when they are visible."""
    resource = Resource(attributes=pairs({"openinference.project.name": project}))
    request = ExportTraceServiceRequest(
        resource_spans=[ResourceSpans(resource=resource, scope_spans=[ScopeSpans(spans=spans)])]
    )
    headers = {"content-type": "application/x-protobuf"}
    reply = httpx2.post(f"{url}/v1/traces", content=request.SerializeToString(), headers=headers, timeout=60)
    assert reply.status_code == 200, reply.text


def wait_for(count: int, url: str, project: str, seconds: float = 120) -> None:
    """Poll until the project shows that many spans."""
    ends = time.monotonic() + seconds
    seen = -1
    while time.monotonic() < ends:
        seen = _visible(url, project)
        if seen >= count:
            return
        time.sleep(0.2)  # polling a foreign server is the one way to know
    raise AssertionError(f"{seen} of {count} spans are visible after {seconds} s")


def _visible(url: str, project: str) -> int:
    total, cursor = 0, None
    while True:
        params = {"limit": "1000", "include_spans": "true", **({"cursor": cursor} if cursor else {})}
        reply = httpx2.get(f"{url}/v1/projects/{project}/traces", params=params, timeout=60)
        if reply.status_code == 404:
            return 0
        page = reply.json()
        total += sum(len(row["spans"]) for row in page["data"])
        cursor = page["next_cursor"]
        if not cursor:
            return total
