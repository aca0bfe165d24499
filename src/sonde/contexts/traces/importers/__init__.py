"""Any trace file, read as canonical spans, with what could not be read. The content tells the form, not the name of the file."""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from sonde.contexts.traces.importers import (
    database,
    flat,
    langfuse,
    langsmith,
    otlp,
    records,
    whowhen,
)
from sonde.contexts.traces.importers.records import Malformed, Record
from sonde.contexts.traces.span import Span
from sonde.disk import open_exactly

Json = dict[str, Any]
Found = Iterator[Span | str]
FORMATS: tuple[tuple[str, Callable[[Json], bool], Callable[[Json], Found]], ...] = (
    ("otlp", otlp.recognise, otlp.spans),
    ("whowhen", whowhen.recognise, whowhen.spans),
    ("langfuse", langfuse.recognise, langfuse.spans),
    ("langsmith", langsmith.recognise, langsmith.spans),
    ("trail", lambda record: isinstance(record.get("spans"), list), flat.trail_spans),
    ("flat", flat.recognise, flat.spans),
)
MAX_DOCUMENT_BYTES = 128 * 1024 * 1024
PACKED = {
    b"\x1f\x8b": "it is compressed: unpack it first, for example with gunzip",
    b"\x28\xb5\x2f\xfd": "it is compressed: unpack it first, for example with unzstd",
    b"PK\x03\x04": "it is compressed: unpack it first, for example with unzip",
    codecs.BOM_UTF16_LE: "it is UTF-16: write it as UTF-8",
    codecs.BOM_UTF16_BE: "it is UTF-16: write it as UTF-8",
}
_KNOWN = "OTel JSON, Phoenix spans, flat spans, TRAIL, Langfuse, LangSmith, Who&When"


@dataclass(frozen=True, slots=True)
class Imported:
    """A span, the line it came from, the byte after that line and the name of the form."""

    span: Span
    line: int
    end: int
    form: str


@dataclass(frozen=True, slots=True)
class FilePosition:
    """Where to go on in a file of lines that has grown."""

    offset: int = 0
    line: int = 0


def read(path: Path, place: FilePosition = FilePosition()) -> Iterator[Imported | Malformed]:  # noqa: B008 - a frozen value
    """Every span of the file from `place` on, and every record that could not be read."""
    for record in _records(path, place):
        if isinstance(record, Malformed):
            yield record
            continue
        form, found = spans_of(record.value)
        empty = True
        for item in found:
            empty = False
            if isinstance(item, str):
                yield Malformed(record.line, record.end, item, trace_id=getattr(item, "trace_id", ""))
            else:
                shown = replace(item, gaps=(*record.gaps, *item.gaps)) if record.gaps else item
                yield Imported(shown, record.line, record.end, form)
        if empty:
            yield Malformed(record.line, record.end, f"no spans in it; known forms: {_KNOWN}")


def grows(path: Path) -> bool:
    """True for files of lines: they can be read on from where they ended."""
    with os.fdopen(open_exactly(os.path.realpath(path)), "rb") as stream:
        magic = stream.read(16)
        return not magic.startswith(database.PARQUET) and magic != database.MAGIC and records.is_lines(stream)


def _records(path: Path, place: FilePosition) -> Iterator[Record | Malformed]:
    size = path.stat().st_size
    if size == 0:  # nothing to read; a kernel file that says so may keep its reader waiting for ever
        return
    with os.fdopen(open_exactly(os.path.realpath(path)), "rb") as stream:
        magic = stream.read(16)
        packed = next((reason for start, reason in PACKED.items() if magic.startswith(start)), None)
        if packed:
            yield Malformed(1, size, packed)
        elif magic.startswith(database.PARQUET):
            yield from database.parquet_rows(path)
        elif magic == database.MAGIC:
            yield from database.rows(path)
        elif records.is_lines(stream):
            yield from records.lines(stream, offset=place.offset, line=place.line)
        elif size > MAX_DOCUMENT_BYTES:
            yield Malformed(1, size, f"one JSON document over {MAX_DOCUMENT_BYTES >> 20} MiB; write one span a line")
        else:
            yield from records.document(stream, size)


def spans_of(value: Any) -> tuple[str, Found]:
    """The form of one decoded value and its spans."""
    if not isinstance(value, dict):
        return "unknown", iter(())
    record = cast("Json", value)
    for form, recognise, spans in FORMATS:
        if recognise(record):
            return form, _safely(spans(record))
    if isinstance(record.get("data"), list):
        rows = cast("list[Any]", record["data"])  # a page of a REST interface
        return "page", (span for row in rows for span in spans_of(row)[1])
    return "unknown", iter(())


def _safely(found: Found) -> Found:
    """What an importer gives; where a record is not shaped as its form says, the reason instead of a failure."""
    try:
        yield from found
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError) as broken:
        yield f"not shaped as expected: {broken}"
