"""From bytes to records: lines of JSON, or one JSON document. Broken lines are named by number and skipped, never fatal.

Lines are bounded (128 MiB and two million values); bytes that are not UTF-8 are replaced, and a gap says so. A last line without its
newline that does not parse counts as unfinished: it is read again when the file has grown.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import msgspec

from sonde.contexts.traces.genai import scrubbed
from sonde.core.canonical import MAX_JSON_ITEMS, has_too_many_items

MAX_LINE_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Record:
    """One decoded object, the line it began on and the byte after it."""

    line: int
    end: int
    value: Any
    gaps: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Malformed:
    """What could not be read, and where. `unfinished` marks a last line that may still be growing; `trace_id` is its trace, where known."""

    line: int
    end: int
    reason: str
    unfinished: bool = False
    trace_id: str = ""


def decode(data: bytes) -> tuple[Any, tuple[str, ...]]:
    """The JSON value of these bytes and what had to be replaced; ValueError when it is no JSON."""
    data = data.removeprefix(codecs.BOM_UTF8)
    if has_too_many_items(data):
        raise ValueError(f"it holds more than {MAX_JSON_ITEMS:,} values")
    try:
        return msgspec.json.decode(data), ()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass  # it refuses NaN, lone surrogates and bytes that are not UTF-8
    gaps: tuple[str, ...] = ()
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text, gaps = data.decode("utf-8", "replace"), ("bytes that are not UTF-8 were replaced",)
    try:
        return scrubbed(json.loads(text)), gaps
    except RecursionError:
        raise ValueError("nested too deeply") from None


def lines(
    stream: BinaryIO, *, offset: int = 0, line: int = 0, limit: int = MAX_LINE_BYTES
) -> Iterator[Record | Malformed]:
    """Every line from `offset` on; `line` is the number of the line before it. Lines over `limit` bytes are passed over unread."""
    stream.seek(offset)
    while data := stream.readline(limit):
        line += 1
        offset += len(data)
        if len(data) == limit and not data.endswith(b"\n"):
            while rest := stream.readline(1 << 20):
                offset += len(rest)
                if rest.endswith(b"\n"):
                    break
            yield Malformed(line, offset, f"longer than {limit} bytes")
        elif not data.isspace():
            try:
                value, gaps = decode(data)
            except ValueError as broken:
                yield Malformed(line, offset, f"not JSON: {broken}", unfinished=not data.endswith(b"\n"))
            else:
                yield Record(line, offset, value, gaps)


def document(stream: BinaryIO, size: int) -> Iterator[Record | Malformed]:
    """A whole JSON document; the items of a top-level list are records of their own."""
    stream.seek(0)
    try:
        value, gaps = decode(stream.read(size))
    except ValueError as broken:
        yield Malformed(1, size, f"not JSON: {broken}")
        return
    if not isinstance(value, list):
        yield Record(1, size, value, gaps)
        return
    for item in value:  # pyright: ignore[reportUnknownVariableType] - JSON of a stranger
        yield Record(1, size, item, gaps)


def is_lines(stream: BinaryIO) -> bool:
    """True when the first line that is not blank is a JSON value by itself and not the opening of a longer document."""
    stream.seek(0)
    filled = (data for data in iter(lambda: stream.readline(MAX_LINE_BYTES), b"") if not data.isspace())
    first = next(filled, b"")
    if not first:
        return True
    try:
        return isinstance(decode(first)[0], dict)
    except ValueError:
        pass
    # A line such as `{`, `[` or `{"spans": [` begins a document that goes on; one before a whole object is only broken.
    opened = first.removeprefix(codecs.BOM_UTF8).strip()
    if opened[:1] != b"{":
        return opened[:1] != b"["
    if opened[-1:] in (b"{", b"[", b":"):
        return False
    second = next(filled, b"")
    try:
        return not second or isinstance(decode(second)[0], dict)
    except ValueError:
        return False
