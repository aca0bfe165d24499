"""Spans and files for the trace tests."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sonde.contexts.traces.filestore import FileStore
from sonde.contexts.traces.importers import Imported, read
from sonde.contexts.traces.span import Span

Json = dict[str, Any]
TRACE = "0af7651916cd43dd8448eb211c80319c"
START_NS = 1_760_000_000_123_456_000
TRAIL = Path(__file__).parents[2] / "data" / "trail"


def raw_span(number: int = 1, **changes: Any) -> Json:
    """A flat span; keyword arguments replace its fields, `attributes` are added to."""
    attributes = {"openinference.span.kind": "CHAIN", **changes.pop("attributes", {})}
    span: Json = {
        "trace_id": TRACE,
        "span_id": f"{number:016x}",
        "parent_id": None if number == 1 else f"{1:016x}",
        "name": f"step {number}",
        "start_time": START_NS + number * 1_000_000,
        "end_time": START_NS + number * 1_000_000 + 5_000_000,
        "status_code": "OK",
        "status_message": "",
        "attributes": attributes,
        "events": [],
    }
    return {**span, **changes}


def write_lines(path: Path, rows: Iterable[Any]) -> Path:
    """Rows as JSON Lines; texts are written as they are."""
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows), "utf-8")
    return path


def spans_in(path: Path) -> list[Span]:
    """Every span that can be read from a file."""
    return [item.span for item in read(path) if isinstance(item, Imported)]


def store_of(folder: Path, rows: Iterable[Any], **options: Any) -> FileStore:
    """A store over rows."""
    return FileStore(write_lines(folder / "traces.jsonl", rows), **options)


def pairs(table: Json) -> list[Json]:
    """OTLP key-value pairs."""
    return [{"key": key, "value": wrapped(value)} for key, value in table.items()]


def wrapped(value: Any) -> Json:
    """An OTLP AnyValue."""
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [wrapped(item) for item in value]}}  # pyright: ignore[reportUnknownVariableType] - test data
    return {"stringValue": value}


def as_otlp(span: Json) -> Json:
    """A flat span as the collector's file exporter writes it."""
    codes = {"UNSET": 0, "OK": 1, "ERROR": 2}
    inner = {
        "traceId": span["trace_id"],
        "spanId": span["span_id"],
        "parentSpanId": span["parent_id"] or "",
        "name": span["name"],
        "startTimeUnixNano": str(span["start_time"]),
        "endTimeUnixNano": str(span["end_time"]),
        "status": {"code": codes[span["status_code"]], "message": span["status_message"]},
        "attributes": pairs(span["attributes"]),
        "events": [
            {"name": event["name"], "timeUnixNano": str(event["timestamp"]), "attributes": pairs(event["attributes"])}
            for event in span["events"]
        ],
    }
    return {"resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": [{"spans": [inner]}]}]}
