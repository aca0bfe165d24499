"""OpenTelemetry JSON: one export request per line (what the collector's file exporter writes) or a whole document."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from sonde.contexts.traces.span import Broken, Micros, Span, build_span, us_of_nanos

Json = dict[str, Any]
PROJECT = "openinference.project.name"


def recognise(record: Json) -> bool:
    """True for an export request in either spelling."""
    return "resourceSpans" in record or "resource_spans" in record


def spans(record: Json) -> Iterator[Span | str]:
    """Every span of an export request; a text where one of them is broken."""
    for resource in _list(record, "resourceSpans", "resource_spans"):
        described: Json = resource.get("resource") or {}
        sender = attributes(described.get("attributes"))
        for scope in _list(resource, "scopeSpans", "scope_spans", "instrumentationLibrarySpans"):
            for raw in _list(scope, "spans"):
                yield _span(raw, sender)


def _span(raw: Json, sender: Json) -> Span | str:
    status: Json = raw.get("status") or {}
    end = _first(raw, "endTimeUnixNano", "end_time_unix_nano")
    dropped = [
        f"{count} {what.lower()} were dropped by the exporter"
        for what in ("Attributes", "Events")
        if (count := _first(raw, f"dropped{what}Count", f"dropped_{what.lower()}_count"))
    ]
    torn = sum(
        bool(_first(event, "droppedAttributesCount", "dropped_attributes_count")) for event in _list(raw, "events")
    )
    dropped += [f"attributes of {torn} events were dropped by the exporter"] if torn else []
    try:
        return build_span(
            trace_id=_id(_first(raw, "traceId", "trace_id")),
            span_id=_id(_first(raw, "spanId", "span_id")),
            parent_id=_id(_first(raw, "parentSpanId", "parent_span_id")),
            name=raw.get("name"),
            start=_nanos(_first(raw, "startTimeUnixNano", "start_time_unix_nano")),
            end=None if end in (0, "0") else _nanos(end),  # zero: the span never ended
            status=status.get("code"),
            status_message=status.get("message"),
            attributes=attributes(raw.get("attributes")),
            events=(
                (
                    str(event.get("name", "")),
                    _nanos(_first(event, "timeUnixNano", "time_unix_nano")),
                    attributes(event.get("attributes")),
                )
                for event in _list(raw, "events")
            ),
            project=str(sender.get(PROJECT) or "default"),
            gaps=dropped,
            resource=sender,
        )
    except (ValueError, TypeError, AttributeError, ArithmeticError) as broken:
        return Broken(f"span {_first(raw, 'spanId', 'span_id')}: {broken}", _id(_first(raw, "traceId", "trace_id")))


def attributes(pairs: Mapping[str, Any] | Iterable[Json] | None) -> Json:
    """The values behind a list of OTLP key-value pairs; a table holds them already (see `watch.otlp`)."""
    if isinstance(pairs, Mapping):
        return dict(cast("Mapping[str, Any]", pairs))
    table: Json = {}
    for pair in pairs or ():
        if "key" in pair:
            table[free(table, pair["key"])] = value_of(pair.get("value") or {})
    return table


def free(table: Json, key: Any) -> Any:
    """The name for one more value: one that is taken gets a space, so that `canonical_attributes` finds both and tells it."""
    return f"{key} " if key in table else key


def value_of(wrapped: Mapping[str, Any]) -> Any:
    """The plain value inside an OTLP AnyValue."""
    for kind, value in wrapped.items():
        match kind:
            case "stringValue" | "string_value" | "boolValue" | "bool_value":
                return value
            case "intValue" | "int_value":
                return int(value)
            case "doubleValue" | "double_value":
                return float(value)
            case "arrayValue" | "array_value":
                return [value_of(item) for item in _values(value)]
            case "kvlistValue" | "kvlist_value":
                return attributes(_values(value))
            case "bytesValue" | "bytes_value":
                return str(value)
            case _:
                continue
    return dict(wrapped) or None  # of no known kind


def _values(wrapped: Any) -> list[Json]:
    return _list(cast("Json", wrapped), "values") if isinstance(wrapped, dict) else []


def _nanos(value: Any) -> Micros | None:
    return None if value in (None, "") else Micros(us_of_nanos(int(value)))


def _id(value: Any) -> Any:
    """Identifiers are hex in OTLP; some writers use protobuf's base64."""
    if not isinstance(value, str) or len(value) not in {12, 24}:
        return value
    try:
        return base64.b64decode(value, validate=True).hex()
    except (ValueError, binascii.Error):
        return value


def _first(raw: Json, *names: str) -> Any:
    return next((raw[name] for name in names if raw.get(name) is not None), None)


def _list(raw: Json, *names: str) -> list[Json]:
    found = _first(raw, *names)
    items = cast("list[Any]", found) if isinstance(found, list) else []
    return [cast("Json", item) for item in items if isinstance(item, dict)]
