"""The rows of a Parquet file; by pyarrow, of the extra `data`.

A few kilobytes of Parquet may say gigabytes: a long value named a million times, or text that compresses ten thousandfold. So long values
that repeat are kept once, large rows are opened a few at a time, a row over the limit is named and skipped, and a file that expands beyond
all measure is refused: a group of rows before it is opened, the whole file when it has said too much.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from importlib import import_module
from typing import Any, BinaryIO, cast
from zoneinfo import ZoneInfo, available_timezones

from msgspec import msgpack

from sonde.parsers import BadDocument
from sonde.parsers.extensions import DATE, DECIMAL, DURATION, MOMENT, PAIR, TIME

pa: Any = import_module("pyarrow")
pq: Any = import_module("pyarrow.parquet")
pc: Any = import_module("pyarrow.compute")
ZONES = [ZoneInfo(name) for name in available_timezones()]
"""Loaded and kept: pyarrow asks for a zone when a column has one, and then no file can be opened any more."""
ROWS_AT_ONCE = 500
BYTES_AT_ONCE = 64 * 1024 * 1024
MAX_EXPANSION = 200  # times its size in the file, for what is over these sizes
LARGE_GROUP = 1 << 30
LARGE_FILE = 4 << 30
FEW_ROWS = 100_000
_REPEATABLE = 256 * 1024  # a column of less is harmless however often its values repeat within ROWS_AT_ONCE


def read(document: BinaryIO, *, size: int, longest: int) -> Iterator[dict[str, Any] | str]:
    """Every row as one object; a text where a row is longer than `longest` bytes. Times are cut to microseconds."""
    # One thread, and nothing read ahead in another: this process can start none.
    file = pq.ParquetFile(document, pre_buffer=False)
    if file.metadata.num_rows > max(FEW_ROWS, size):  # a run of equal values takes a few bytes, however long it is
        raise BadDocument(f"it says {file.metadata.num_rows:,} rows in {size:,} bytes; that is not a trace file")
    file = pq.ParquetFile(document, pre_buffer=False, read_dictionary=_repeating(file.metadata))
    for batch in _batches(file, size):
        yield from _rows(batch, longest)


def _repeating(metadata: Any) -> list[str]:
    """The columns of text whose repeated values must be kept once. Refuses a file that expands beyond all measure."""
    found: dict[str, None] = {}
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        columns = [group.column(at) for at in range(group.num_columns)]
        size = sum(column.total_uncompressed_size for column in columns)
        if size > max(LARGE_GROUP, MAX_EXPANSION * sum(column.total_compressed_size for column in columns)):
            raise BadDocument(f"it expands to {size:,} bytes in one group of rows; that is not a trace file")
        texts = (column for column in columns if column.physical_type == "BYTE_ARRAY")
        found |= dict.fromkeys(each.path_in_schema for each in texts if each.total_uncompressed_size > _REPEATABLE)
    return list(found)


def _batches(file: Any, size: int) -> Iterator[Any]:
    """Batches of rows, the smaller the larger rows are on average, until what they say in full is out of all proportion to the file."""
    most, said = max(LARGE_FILE, MAX_EXPANSION * size), 0
    for at in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(at)
        fitting = BYTES_AT_ONCE * group.num_rows // max(1, group.total_byte_size)
        rows = max(1, min(ROWS_AT_ONCE, fitting))
        for batch in file.iter_batches(batch_size=rows, row_groups=[at], use_threads=False):
            for column in batch.columns:
                if pa.types.is_dictionary(column.type):  # every repeated value counts each time
                    lengths = pc.binary_length(column.dictionary)
                    said += pc.sum(lengths.take(column.indices)).as_py() or 0
                else:
                    said += column.nbytes
            if said > most:
                raise BadDocument(f"it expands to more than {most:,} bytes; that is not a trace file")
            yield batch


def _rows(batch: Any, longest: int) -> Iterator[dict[str, Any] | str]:
    """The rows of a batch, one made at a time; a text where a row is too long."""
    columns = [
        column.cast(pa.timestamp("us", tz=column.type.tz), safe=False)  # Python's times have no nanoseconds
        if pa.types.is_timestamp(column.type)
        else column
        for column in batch.columns
    ]
    large = [column for column in columns if column.nbytes > longest]
    odd = {name for name, column in zip(batch.schema.names, columns, strict=True) if _is_odd(column.type)}
    for at in range(batch.num_rows):
        values = (column.slice(at, 1) for column in large)
        size = sum((v.dictionary_decode() if pa.types.is_dictionary(v.type) else v).nbytes for v in values)
        if size > longest:
            yield f"longer than {longest} bytes"
        else:
            row = {name: column[at].as_py() for name, column in zip(batch.schema.names, columns, strict=True)}
            yield row | {name: _packed(row[name]) for name in odd}


def _is_odd(kind: Any) -> bool:
    """Whether values of this type are more than text, numbers, bytes and lists and objects of them."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if kind.num_fields:
        return pa.types.is_map(kind) or any(_is_odd(kind.field(at).type) for at in range(kind.num_fields))
    return not (
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_null(kind)
    )


def _packed(value: Any) -> Any:
    """The value with what msgpack has no form for marked by its kind."""
    match value:
        case dict():
            return {key: _packed(item) for key, item in cast("dict[str, Any]", value).items()}
        case list():
            return [_packed(item) for item in cast("list[Any]", value)]
        case tuple():  # a pair of a map
            items = cast("tuple[Any, ...]", value)
            return msgpack.Ext(PAIR, msgpack.encode([_packed(item) for item in items]))
        case datetime():
            return msgpack.Ext(MOMENT, value.isoformat().encode())
        case date():
            return msgpack.Ext(DATE, value.isoformat().encode())
        case time():
            return msgpack.Ext(TIME, value.isoformat().encode())
        case timedelta():
            return msgpack.Ext(DURATION, str(value // timedelta(microseconds=1)).encode())
        case Decimal():
            return msgpack.Ext(DECIMAL, str(value).encode())
        case _:
            return value
