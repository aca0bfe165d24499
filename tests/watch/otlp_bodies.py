"""Export requests for tests: spans as OTel JSON, and the same in protobuf as the official package writes it."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

Json = dict[str, Any]
START = 1_760_000_000_000_000_000


def trace_id(number: int) -> str:
    return f"{number:032x}"


def span_id(number: int) -> str:
    return f"{number:016x}"


def span(number: int, trace: int = 1, parent: int = 0, **fields: Any) -> Json:
    return {
        "traceId": trace_id(trace),
        "spanId": span_id(number),
        "parentSpanId": span_id(parent) if parent else "",
        "name": f"step {number}",
        "kind": 1,
        "startTimeUnixNano": str(START + number * 1000),
        "endTimeUnixNano": str(START + number * 1000 + 500_000),
        "attributes": [{"key": "input.value", "value": {"stringValue": f"question {number}"}}],
        "status": {"code": 1},
        **fields,
    }


def request(*spans: Json, resource: Json | None = None) -> Json:
    sender = [{"key": key, "value": {"stringValue": value}} for key, value in (resource or {}).items()]
    return {
        "resourceSpans": [{"resource": {"attributes": sender}, "scopeSpans": [{"scope": {}, "spans": list(spans)}]}]
    }


def as_json(record: Json) -> bytes:
    return json.dumps(record).encode()


def as_protobuf(record: Json) -> bytes:
    """JSON of protobuf has ids in base64 where OTLP has them in hex."""
    record = json.loads(json.dumps(record))
    for resource in record["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for each in scope["spans"]:
                for key in ("traceId", "spanId", "parentSpanId"):
                    each[key] = base64.b64encode(bytes.fromhex(each[key])).decode()
    return ParseDict(record, ExportTraceServiceRequest()).SerializeToString()


def values(*pairs: tuple[str, Json]) -> Sequence[Json]:
    return [{"key": key, "value": value} for key, value in pairs]
