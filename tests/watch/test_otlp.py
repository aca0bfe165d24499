"""What a body of OTLP/HTTP becomes, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from otlp_bodies import Json, as_json, as_protobuf, request, span, values

from sonde.watch import otlp
from sonde.watch.otlp import BadRequest, Encoding, TooMuch, accepted, read_request

PROTOBUF: Encoding = "application/x-protobuf"
JSON: Encoding = "application/json"
KINDS: list[Json] = [
    {"stringValue": "grüße 🙂"},
    {"intValue": "-7"},
    {"intValue": str(2**63 - 1)},
    {"doubleValue": 0.25},
    {"boolValue": True},
    {"boolValue": False},
    {"arrayValue": {"values": [{"stringValue": "a"}, {"intValue": "2"}]}},
    {
        "kvlistValue": {
            "values": [{"key": "deep", "value": {"kvlistValue": {"values": values(("er", {"intValue": "1"}))}}}]
        }
    },
    {"bytesValue": "AAEC"},
]


def everything() -> Json:
    return span(
        2,
        parent=1,
        attributes=values(*((f"kind{number}", value) for number, value in enumerate(KINDS))),
        events=[
            {
                "name": "exception",
                "timeUnixNano": "1760000000000001000",
                "attributes": values(("exception.message", {"stringValue": "no"})),
            }
        ],
        status={"code": 2, "message": "it failed"},
        droppedAttributesCount=3,
    )


def test_protobuf_and_json_give_equal_spans() -> None:
    record = request(everything(), resource={"openinference.project.name": "shop", "service.name": "web"})

    (binary,) = read_request(as_protobuf(record), PROTOBUF).spans
    (text,) = read_request(as_json(record), JSON).spans

    assert binary.hash() == text.hash()
    assert (binary.project, binary.gaps, dict(binary.resource)) == (text.project, text.gaps, dict(text.resource))
    assert binary.project == "shop"
    assert binary.summary.status_message == "it failed"
    assert binary.gaps == ("3 attributes were dropped by the exporter",)


def test_genai_attributes_are_read_as_openinference() -> None:
    attributes = values(
        ("gen_ai.operation.name", {"stringValue": "chat"}),
        ("gen_ai.request.model", {"stringValue": "small"}),
        ("gen_ai.usage.input_tokens", {"intValue": "12"}),
    )

    (read,) = read_request(as_protobuf(request(span(1, attributes=attributes))), PROTOBUF).spans

    assert read.summary.kind == "LLM"
    assert read.attributes["llm.model_name"] == "small"
    assert read.attributes["llm.token_count.prompt"] == 12


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    for encoding in (PROTOBUF, JSON):
        try:
            read_request(body, encoding)
        except BadRequest:
            pass


@given(st.data())
def test_a_cut_or_changed_request_is_read_or_refused(data: st.DataObject) -> None:
    whole = bytearray(as_protobuf(request(everything())))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        read_request(bytes(whole[: data.draw(st.integers(0, len(whole)))]), PROTOBUF)
    except BadRequest:
        pass


def nested(depth: int) -> bytes:
    """A span with an array within an array within an array."""

    def field(tag: int, inner: bytes) -> bytes:
        return bytes([tag]) + otlp._varint(len(inner)) + inner

    value = b""
    for _ in range(depth):
        value = field(0x2A, field(0x0A, value))
    pair = field(0x0A, b"k") + field(0x12, value)
    return field(0x0A, field(0x12, field(0x12, field(0x4A, pair))))


@pytest.mark.parametrize(
    "body",
    [
        b"\x0a\xff\xff\xff\xff\x0f",
        b"\x0a\x05ab",
        b"\x08" + b"\xff" * 11,
        b"\x0b\x0c",
        b"\x0a\x02\x12\x7f",
        b"\x0a",
        b"\x80" * 20,
        nested(200),
    ],
    ids=[
        "length of 4 GiB",
        "cut",
        "varint without end",
        "group",
        "beyond its message",
        "tag alone",
        "tag without end",
        "deep",
    ],
)
def test_malformed_protobuf_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        read_request(body, PROTOBUF)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"3",
        b"{",
        b'{"a": 1}',
        b"[" * 100_000,
        b'{"resourceSpans":' * 5000,
        b'{"resourceSpans":[{"resource":{"attributes":[{"key":"n","value":{"intValue":"x"}}]},"scopeSpans":[{"spans":[{}]}]}]}',
    ],
    ids=["empty", "list", "number", "open", "other", "deep lists", "deep objects", "broken resource"],
)
def test_json_that_is_no_export_request_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        read_request(body, JSON)


def test_more_fields_or_values_than_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "MAX_JSON_ITEMS", 1000)
    with pytest.raises(TooMuch):
        read_request(b"\x0a\x00" * 1001, PROTOBUF)
    monkeypatch.setattr(otlp, "MAX_SPANS", 2)
    with pytest.raises(TooMuch):
        read_request(as_json(request(span(1), span(2), span(3))), JSON)


@pytest.mark.parametrize(
    "wrong",
    [
        {"traceId": "../../etc/passwd"},
        {"traceId": "0" * 32},
        {"spanId": "'; DROP TABLE spans; --"},
        {"spanId": "0" * 16},
        {"parentSpanId": "\x1b[2J"},
        {"startTimeUnixNano": "soon"},
        {"startTimeUnixNano": "9" * 400},
        {"startTimeUnixNano": None},
        {"attributes": [{"key": ["x"], "value": {"intValue": "1"}}]},
        {"attributes": [{"key": "n", "value": {"intValue": "9" * 5000}}]},
    ],
    ids=str,
)
def test_a_span_that_cannot_be_kept_is_refused_alone(wrong: dict[str, Any]) -> None:
    read = read_request(as_json(request(span(1), span(2, **wrong), span(3))), JSON)

    assert [each.summary.name for each in read.spans] == ["step 1", "step 3"]
    assert len(read.refused) == 1


def test_long_attributes_are_cut_and_the_gap_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "MAX_ATTRIBUTE_CHARS", 100)
    pairs = values(("input.value", {"stringValue": "x" * 101}), ("k" * 1001, {"stringValue": "y"}))

    (read,) = read_request(as_json(request(span(1, attributes=pairs))), JSON).spans

    assert read.attributes == {"input.value": "x" * 100, "k" * 1000: "y"}
    assert len(read.gaps) == 2


def test_refused_spans_are_counted_in_the_reply_of_the_same_encoding() -> None:
    told = ExportTraceServiceResponse.FromString(accepted(PROTOBUF, 300, "no id"))

    assert (told.partial_success.rejected_spans, told.partial_success.error_message) == (300, "no id")
    assert json.loads(accepted(JSON, 3, "no id")) == {"partialSuccess": {"rejectedSpans": "3", "errorMessage": "no id"}}
    assert (accepted(PROTOBUF), accepted(JSON)) == (b"", b"{}")


def test_keys_of_any_length_and_shape_take_time_and_memory_in_proportion() -> None:
    long = values(*((f"{number}{'.1' * 50_000}", {"boolValue": True}) for number in range(200)))
    many = values(*((f"a{number}.5.b", {"boolValue": True}) for number in range(300)))

    first, second = read_request(as_json(request(span(1, attributes=long), span(2, attributes=many))), JSON).spans

    assert max(map(len, first.attributes)) <= 1000
    assert 100 <= len(first.gaps) <= 300
    assert len(second.gaps) == 101
    assert "a299.0.b" in second.attributes
