"""Canonical spans back to OTel JSON Lines: one span a line, as a collector would write and read it. Importing them gives equal hashes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import IO, Any, cast

from sonde.contexts.traces.attributes import KIND_KEY
from sonde.contexts.traces.importers.otlp import PROJECT
from sonde.contexts.traces.span import Event, Row, Span

_STATUS = {"UNSET": 0, "OK": 1, "ERROR": 2}


def write_otlp(spans: Iterable[Span], stream: IO[str], *, project: str | None = None) -> int:
    """Write every span as one line; how many there were."""
    count = 0
    for span in spans:
        stream.write(json.dumps(otlp_request(span, project), ensure_ascii=False, separators=(",", ":")))
        stream.write("\n")
        count += 1
    return count


def otlp_request(span: Span, project: str | None = None) -> Row:
    """One span as an export request."""
    resource = {"attributes": _pairs({PROJECT: project or span.project})}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [_span(span)]}]}]}


def _span(span: Span) -> Row:
    summary = span.summary
    kind = {} if summary.kind == "UNKNOWN" else {KIND_KEY: summary.kind}
    return {
        "traceId": summary.trace_id,
        "spanId": summary.span_id,
        "parentSpanId": summary.parent_id or "",
        "name": summary.name,
        "startTimeUnixNano": str(summary.start_us * 1000),
        "endTimeUnixNano": "0" if summary.end_us is None else str(summary.end_us * 1000),
        "status": {"code": _STATUS[summary.status], "message": summary.status_message},
        "attributes": _pairs({**kind, **span.attributes}),
        "events": [_event(event) for event in span.events],
    }


def _event(event: Event) -> Row:
    return {"name": event.name, "timeUnixNano": str(event.time_us * 1000), "attributes": _pairs(event.attributes)}


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
