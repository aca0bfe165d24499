"""Bodies of OTLP/HTTP: an export request of traces as bytes becomes spans, and what is said about it becomes bytes again.

Protobuf is read by hand, field by field, with as much work as the body has bytes: lengths beyond their message, varints of more than ten
bytes, groups, nesting beyond MAX_NESTING and more than MAX_JSON_ITEMS fields are refused. Unknown fields are passed over. The spans are
then built as from a file of OTel JSON, so both encodings give equal hashes.
"""

from __future__ import annotations

import base64
import re
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import msgspec

from sonde.contexts.traces.importers import otlp
from sonde.contexts.traces.importers.records import decode
from sonde.contexts.traces.span import Broken, Span
from sonde.core.canonical import MAX_JSON_ITEMS, has_too_many_items

Json = dict[str, Any]
Encoding = Literal["application/x-protobuf", "application/json"]
MAX_NESTING = 64
MAX_SPANS = 20_000
MAX_ATTRIBUTE_CHARS = 1024 * 1024
MAX_SPAN_CHARS = 16 * 1024 * 1024
MAX_REQUEST_BYTES = 192 * 1024 * 1024
"""Memory that all attributes of a request may take, by their characters. What is nested under a long name repeats it."""
VALUE_BYTES, ITEM_BYTES, LIST_BYTES = 100, 30, 80  # beside their characters: an attribute, an item of a list, a list
_TRACE_ID = re.compile(r"(?!0+$)[0-9a-f]{32}")
_SPAN_ID = re.compile(r"(?!0+$)[0-9a-f]{16}")
_DOUBLE = struct.Struct("<d")


class BadRequest(Exception):
    """The body is no export request."""


class TooMuch(Exception):
    """The request holds more than is taken at once."""


@dataclass(frozen=True, slots=True)
class ReceivedSpans:
    """The spans of one request, and why others of it were refused."""

    spans: tuple[Span, ...]
    refused: tuple[str, ...] = ()
    lost: Mapping[str, int] = field(default_factory=dict[str, int])
    """How many were refused, by trace."""


def read_request(body: bytes, encoding: Encoding) -> ReceivedSpans:
    """The spans of a body; BadRequest if it cannot be read, TooMuch if it is beyond the limits."""
    try:
        record = _json(body) if encoding == "application/json" else _Protobuf(body).request()
        spans: list[Span] = []
        refused: list[str] = []
        built = 0
        for number, item in enumerate(otlp.spans(record)):
            if number == MAX_SPANS:
                raise _too_many_spans()
            chars, taken = (0, 0) if isinstance(item, str) else _size(item)
            built += taken
            if built > MAX_REQUEST_BYTES:
                raise TooMuch("the attributes of one request take too much memory: export smaller batches")
            kept = item if isinstance(item, str) else _within_limits(item, chars)
            if isinstance(kept, str):
                refused.append(kept)
            else:
                spans.append(kept)
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError) as broken:
        raise BadRequest(f"this is no export request of OTLP: {broken}") from None
    lost = Counter(named for why in refused if _TRACE_ID.fullmatch(named := getattr(why, "trace_id", "")))
    return ReceivedSpans(tuple(spans), tuple(refused), lost)


def _too_many_spans() -> TooMuch:
    return TooMuch(f"more than {MAX_SPANS:,} spans in one request: export smaller batches")


def _json(body: bytes) -> Json:
    if has_too_many_items(body):
        raise TooMuch(f"more than {MAX_JSON_ITEMS:,} values in one request: export smaller batches")
    try:
        record, _ = decode(body)
    except ValueError as broken:
        raise BadRequest(f"the body is not JSON: {broken}") from None
    if not isinstance(record, dict) or (record and not otlp.recognise(record)):  # pyright: ignore[reportUnknownArgumentType]  # JSON of a stranger
        raise BadRequest("the body is JSON, but has no resourceSpans: is it an export request of traces?")
    return record  # pyright: ignore[reportUnknownVariableType]  # JSON of a stranger


def _size(span: Span) -> tuple[int, int]:
    """Characters of a span's attributes, and about how much memory they take."""
    chars = taken = 0
    for table in (span.attributes, *(event.attributes for event in span.events)):
        for key, value in table.items():
            text = value if isinstance(value, str) else str(value)
            chars += len(key) + len(text)
            taken += VALUE_BYTES
            if isinstance(value, list):
                taken += ITEM_BYTES * text.count(",") + LIST_BYTES * text.count("[")
    return chars, chars + taken


def _within_limits(span: Span, size: int) -> Span | str:
    """The span with long values cut, which its gaps say; a text when it cannot be kept at all."""
    summary = span.summary
    if not _TRACE_ID.fullmatch(summary.trace_id) or not _SPAN_ID.fullmatch(summary.span_id):
        why = f"span {summary.span_id[:40]!r} of trace {summary.trace_id[:40]!r}: ids are 16 and 32 hex digits, not all zero"
        return Broken(why, summary.trace_id)
    if summary.parent_id is not None and not _SPAN_ID.fullmatch(summary.parent_id):
        why = f"span {summary.span_id}: its parent {summary.parent_id[:40]!r} is not 16 hex digits"
        return Broken(why, summary.trace_id)
    tables = (span.attributes, *(event.attributes for event in span.events))
    long = [key for table in tables for key, value in table.items() if len(str(value)) > MAX_ATTRIBUTE_CHARS]
    if size > MAX_SPAN_CHARS:
        why = f"span {summary.span_id}: {size:,} characters of attributes, and {MAX_SPAN_CHARS:,} is the limit"
        return Broken(why, summary.trace_id)
    if not long:
        return span
    gaps = [f"attribute {key[:80]} was cut: at most {MAX_ATTRIBUTE_CHARS:,} characters are kept" for key in long[:10]]
    events = tuple(replace(event, attributes=_cut(event.attributes)) for event in span.events)
    return replace(span, attributes=_cut(span.attributes), events=events, gaps=(*span.gaps, *gaps))


def _cut(table: Mapping[str, Any]) -> Json:
    kept: Json = {}
    for key, value in table.items():
        text = str(value)
        kept[key] = text[:MAX_ATTRIBUTE_CHARS] if len(text) > MAX_ATTRIBUTE_CHARS else value
    return kept


def accepted(encoding: Encoding, refused: int = 0, reason: str = "") -> bytes:
    """The reply to a request that was stored, with how many spans were refused and why."""
    if encoding == "application/json":
        told = {"rejectedSpans": str(refused), "errorMessage": reason} if refused else {}
        return msgspec.json.encode({"partialSuccess": told} if told else {})
    text = reason.encode()
    partial = b"\x08" + _varint(refused) + b"\x12" + _varint(len(text)) + text if refused else b""
    return b"\x0a" + _varint(len(partial)) + partial if partial else b""


def failure(encoding: Encoding, code: int, reason: str) -> bytes:
    """The reply to a request that was not stored: a google.rpc.Status."""
    if encoding == "application/json":
        return msgspec.json.encode({"code": code, "message": reason})
    text = reason.encode()
    return b"\x08" + _varint(code) + b"\x12" + _varint(len(text)) + text


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


class _Protobuf:
    """A request in protobuf. A field is known by its tag, which holds the number and the wire type: one of the wrong type is unknown."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left = MAX_JSON_ITEMS
        self._spans = 0

    def request(self) -> Json:
        """The request as OTel JSON has it, except that attributes are plain tables."""
        return {
            "resource_spans": [
                self._resource_spans(at, end) for tag, at, end in self._fields(0, len(self._data)) if tag == 0x0A
            ]
        }

    def _fields(self, at: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Tag, begin and end of each field of the message between `at` and `end`; of a varint its value and 0."""
        data = self._data
        while at < end:
            self._left -= 1
            if self._left < 0:
                raise TooMuch(f"more than {MAX_JSON_ITEMS:,} values in one request: export smaller batches")
            tag = data[at]
            at += 1
            if tag > 127:
                tag, at = self._number(at - 1)
            match tag & 7:
                case 2:
                    size = data[at]
                    at += 1
                    if size > 127:
                        size, at = self._number(at - 1)
                    begin, at = at, at + size
                case 0:
                    begin, at = self._number(at)
                    yield tag, begin, 0
                    continue
                case 1:
                    begin, at = at, at + 8
                case 5:
                    begin, at = at, at + 4
                case _:
                    raise BadRequest(f"byte {at}: no field of protobuf 3 has the wire type {tag & 7}")
            if at > end:
                raise BadRequest(f"byte {begin}: a field is longer than the message around it")
            yield tag, begin, at
        if at != end:
            raise BadRequest(f"byte {end}: the message ends in the middle of a field")

    def _number(self, at: int) -> tuple[int, int]:
        """A varint, and the place behind it."""
        value = shift = 0
        while True:
            byte = self._data[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value & 0xFFFF_FFFF_FFFF_FFFF, at
            shift += 7
            if shift > 63:
                raise BadRequest(f"byte {at}: a number of more than ten bytes")

    def _text(self, at: int, end: int) -> str:
        return self._data[at:end].decode("utf-8", "replace")

    def _fixed(self, at: int, end: int) -> int:
        return int.from_bytes(self._data[at:end], "little")

    def _resource_spans(self, at: int, end: int) -> Json:
        sender: Json = {}
        scopes: list[Json] = []
        for tag, begin, stop in self._fields(at, end):
            if tag == 0x0A:
                for inner, first, last in self._fields(begin, stop):
                    if inner == 0x0A:
                        self._pair(sender, first, last, 0)
            elif tag == 0x12:
                spans = [self._span(first, last) for inner, first, last in self._fields(begin, stop) if inner == 0x12]
                scopes.append({"spans": spans})
        return {"resource": {"attributes": sender}, "scope_spans": scopes}

    def _span(self, at: int, end: int) -> Json:
        self._spans += 1
        if self._spans > MAX_SPANS:
            raise _too_many_spans()
        attributes: Json = {}
        events: list[Json] = []
        span: Json = {"attributes": attributes, "events": events}
        for tag, begin, stop in self._fields(at, end):
            match tag:
                case 0x4A:
                    self._pair(attributes, begin, stop, 0)
                case 0x0A:
                    span["trace_id"] = self._data[begin:stop].hex()
                case 0x12:
                    span["span_id"] = self._data[begin:stop].hex()
                case 0x22:
                    span["parent_span_id"] = self._data[begin:stop].hex()
                case 0x2A:
                    span["name"] = self._text(begin, stop)
                case 0x39:
                    span["start_time_unix_nano"] = self._fixed(begin, stop)
                case 0x41:
                    span["end_time_unix_nano"] = self._fixed(begin, stop)
                case 0x50:
                    span["dropped_attributes_count"] = begin
                case 0x60:
                    span["dropped_events_count"] = begin
                case 0x5A:
                    events.append(self._event(begin, stop))
                case 0x7A:
                    span["status"] = self._status(begin, stop)
                case _:
                    pass
        return span

    def _event(self, at: int, end: int) -> Json:
        attributes: Json = {}
        event: Json = {"attributes": attributes}
        for tag, begin, stop in self._fields(at, end):
            if tag == 0x09:
                event["time_unix_nano"] = self._fixed(begin, stop)
            elif tag == 0x12:
                event["name"] = self._text(begin, stop)
            elif tag == 0x1A:
                self._pair(attributes, begin, stop, 0)
            elif tag == 0x20:
                event["dropped_attributes_count"] = begin
        return event

    def _status(self, at: int, end: int) -> Json:
        status: Json = {}
        for tag, begin, stop in self._fields(at, end):
            if tag == 0x12:
                status["message"] = self._text(begin, stop)
            elif tag == 0x18:
                status["code"] = begin
        return status

    def _pair(self, table: Json, at: int, end: int, depth: int) -> None:
        key, value = "", None
        for tag, begin, stop in self._fields(at, end):
            if tag == 0x0A:
                key = self._text(begin, stop)
            elif tag == 0x12:
                value = self._value(begin, stop, depth)
        table[otlp.free(table, key)] = value

    def _value(self, at: int, end: int, depth: int) -> Any:
        if depth > MAX_NESTING:
            raise BadRequest(f"byte {at}: values are nested deeper than {MAX_NESTING} levels")
        value: Any = None
        for tag, begin, stop in self._fields(at, end):
            match tag:
                case 0x0A:
                    value = self._text(begin, stop)
                case 0x10:
                    value = begin != 0
                case 0x18:
                    value = begin - (1 << 64) if begin >> 63 else begin
                case 0x21:
                    (value,) = _DOUBLE.unpack_from(self._data, begin)
                case 0x2A:
                    value = [
                        self._value(first, last, depth + 1)
                        for inner, first, last in self._fields(begin, stop)
                        if inner == 0x0A
                    ]
                case 0x32:
                    value = {}
                    for inner, first, last in self._fields(begin, stop):
                        if inner == 0x0A:
                            self._pair(value, first, last, depth + 1)
                case 0x3A:
                    value = base64.b64encode(self._data[begin:stop]).decode()
                case _:
                    pass
        return value
