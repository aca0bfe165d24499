"""One span per object: flat JSONL, and spans as Phoenix's REST interface, its JSON export and its data frames write them. TRAIL nests such
objects: a trace with `spans`, each with `child_spans`, a start and an ISO 8601 duration.

The names of the fields vary (`context.trace_id`, `trace_id`, `traceId`); attributes come nested under one field or as `attributes.…`
columns. The field `logs` is never read: in TRAIL it carries the true answers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from sonde.contexts.traces.importers import otlp
from sonde.contexts.traces.importers.payload import opened
from sonde.contexts.traces.span import Broken, Micros, Span, build_span, us_of

Json = dict[str, Any]
_TRACE = ("context.trace_id", "trace_id", "traceId")
_SPAN = ("context.span_id", "span_id", "spanId")
_PARENT = ("parent_id", "parent_span_id", "parentSpanId", "parentId")
_START = ("start_time", "startTime", "startTimeUnixNano", "start_time_unix_nano", "timestamp", "start_timestamp")
_END = ("end_time", "endTime", "endTimeUnixNano", "end_time_unix_nano", "end_timestamp")
_MOMENT = ("timestamp", "time_unix_nano", "timeunixnano")
_KIND = ("span_kind", "openinference_span_kind", "kind")
_ATTRIBUTES = ("attributes", "span_attributes")
_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?")
_UNITS = (86_400_000_000, 3_600_000_000, 60_000_000, 1_000_000)


def recognise(record: Json) -> bool:
    """True when a span's two identifiers are there under some name."""
    row = _opened(record)
    return _first(row, _SPAN) is not None and _first(row, _TRACE) is not None


def spans(record: Json) -> Iterator[Span | str]:
    """The one span of this object, or what is wrong with it."""
    try:
        yield span(record)
    except (ValueError, TypeError) as broken:
        yield Broken(str(broken), _first(_opened(record), _TRACE))


def span(record: Json, **more: Any) -> Span:
    """The canonical span of one object; `more` replaces what the object says."""
    row = _opened(record)
    status = _first(row, ("status_code", "status"))
    message = row.get("status_message") or row.get("statusMessage")
    if isinstance(status, Mapping):
        message = cast("Json", status).get("message") or cast("Json", status).get("description")
    attributes: Json = {key.removeprefix("attributes."): row[key] for key in row if key.startswith("attributes.")}
    gaps: list[str] = []
    for name in _ATTRIBUTES:
        table = _table(row.get(name))
        if not table and str(row.get(name) or "").strip() not in ("", "nan", "null", "{}", "[]"):
            gaps.append(f"attributes were left out: {name} is no table")
        attributes |= {otlp.free(attributes, key): value for key, value in table.items()}
    kind = _first(row, _KIND)
    project: Any = None
    resource: Any = row.get("resource_attributes") or row.get("resource")
    if isinstance(resource, dict):
        inner = cast("Json", resource).get("attributes")
        resource = cast("Json", inner if isinstance(inner, dict) else resource)
        project = resource.get(otlp.PROJECT)
    events = opened(row.get("events"))
    lowered = [{str(key).lower(): value for key, value in event.items()} for event in _objects(events)]
    if isinstance(events, str | list) and len(lowered) < len(cast("str | list[Any]", events)):
        gaps.append("events were left out that are no objects")
    fields: Json = {
        "trace_id": _first(row, _TRACE),
        "span_id": _first(row, _SPAN),
        "parent_id": _first(row, _PARENT),
        "name": _first(row, ("name", "span_name")),
        "start": _first(row, _START),
        "end": _first(row, _END),
        "status": status,
        "status_message": message,
        "attributes": attributes,
        "events": (
            (str(event.get("name", "")), _first(event, _MOMENT), _table(event.get("attributes"))) for event in lowered
        ),
        "kind": kind if isinstance(kind, str) else None,
        "project": str(project or row.get("project_name") or "default"),
        "resource": resource if isinstance(resource, dict) else None,
        "gaps": gaps,
    }
    return build_span(**{**fields, **more})


def trail_spans(record: Json) -> Iterator[Span | str]:
    """All spans of a nested document, parents before children, without recursion: a hostile one may be thousands of levels deep."""
    stack: list[tuple[Json, str | None]] = [(raw, None) for raw in reversed(_objects(record.get("spans")))]
    while stack:
        raw, parent = stack.pop()
        more: Json = {}
        if raw.get("trace_id") is None:
            more["trace_id"] = record.get("trace_id")
        if raw.get("parent_span_id") is None and raw.get("parent_id") is None:
            more["parent_id"] = parent
        try:
            if "duration" in raw:
                start = us_of(raw.get("timestamp"))
                more["end"] = None if start is None else Micros(start + duration_us(raw["duration"]))
            yield span({key: raw[key] for key in raw if key not in {"child_spans", "logs"}}, **more)
        except (ValueError, TypeError) as broken:
            yield Broken(f"span {raw.get('span_id')}: {broken}", more.get("trace_id", raw.get("trace_id")))
        own = raw.get("span_id")
        stack.extend((child, None if own is None else str(own)) for child in reversed(_objects(raw.get("child_spans"))))


def duration_us(text: Any) -> int:
    """Microseconds of an ISO 8601 duration such as PT1M48.75533S; numbers are seconds."""
    if isinstance(text, (int, float)):
        return round(text * 1e6)
    match = _DURATION.fullmatch(str(text))
    if match is None:
        raise ValueError(f"{text!r} is not a duration such as PT1M48.5S")
    return sum(round(float(part) * unit) for part, unit in zip(match.groups(), _UNITS, strict=True) if part)


def _opened(record: Json) -> Json:
    """The object with its nested context spread out."""
    context = record.get("context")
    if not isinstance(context, dict):
        return record
    return {**record, **{f"context.{key}": value for key, value in cast("Json", context).items()}}


def _table(found: Any) -> Json:
    """Attributes as an object, as OTLP's list of pairs, as a map of Parquet, or as JSON text of one of these."""
    found = opened(found)
    if isinstance(found, list):
        items = cast("list[Any]", found)
        is_map = all(isinstance(item, tuple) for item in items)
        return {str(key): value for key, value in items} if is_map else otlp.attributes(items)
    return cast("Json", found) if isinstance(found, dict) else {}


def _first(row: Json, names: tuple[str, ...]) -> Any:
    for name in names:
        value = row.get(name)
        if value is not None and value == value:  # noqa: PLR0124 - a data frame writes NaN where nothing is
            return value
    return None


def _objects(found: Any) -> list[Json]:
    items = cast("list[Any]", found) if isinstance(found, list) else []
    return [cast("Json", item) for item in items if isinstance(item, dict)]
