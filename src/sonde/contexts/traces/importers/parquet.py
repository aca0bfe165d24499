"""Parquet files of Phoenix data frames (needs the `data` extra), row by row.

A few kilobytes of Parquet may say gigabytes: a long value named a million times, or text that compresses ten thousandfold. So long values
that repeat are kept once, large rows are opened a few at a time, a row over the limit of a line is named and skipped, and a file that
expands beyond all measure is refused: a group of rows before it is opened, the whole file when it has said too much.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from sonde.contexts.traces.importers.records import MAX_LINE_BYTES, Malformed, Record
from sonde.errors import ConfigError

MAGIC = b"PAR1"
ROWS_AT_ONCE = 500
BYTES_AT_ONCE = 64 * 1024 * 1024
MAX_EXPANSION = 200  # times its size in the file, for what is over these sizes
LARGE_GROUP = 1 << 30
LARGE_FILE = 4 << 30
_REPEATABLE = 256 * 1024  # a column of less is harmless however often its values repeat within ROWS_AT_ONCE


def rows(path: Path) -> Iterator[Record | Malformed]:
    """Every row as one object; times are cut to microseconds."""
    try:
        pa: Any = import_module("pyarrow")
        pq: Any = import_module("pyarrow.parquet")
        import_module("pyarrow.compute")
    except ImportError:
        raise ConfigError(f"{path.name} is Parquet: install the data extra (pip install 'sonde-rlm[data]')") from None
    number = 0
    try:
        with pq.ParquetFile(path) as file:
            repeating = _repeating(path, file.metadata)
        with pq.ParquetFile(path, read_dictionary=repeating) as file:
            for batch in _batches(pa, path, file):
                for row in _rows(pa, batch):
                    number += 1
                    yield Malformed(number, 0, row) if isinstance(row, str) else Record(number, 0, row)
    except (pa.ArrowException, OSError) as broken:
        where = f"cannot be read beyond row {number}" if number else "is not a readable Parquet file"
        raise ConfigError(f"{path.name} {where}: {' '.join(str(broken).split())}") from None


def _repeating(path: Path, metadata: Any) -> list[str]:
    """The columns of text whose repeated values must be kept once. Refuses a file that expands beyond all measure."""
    found: dict[str, None] = {}
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        columns = [group.column(at) for at in range(group.num_columns)]
        size = sum(column.total_uncompressed_size for column in columns)
        if size > max(LARGE_GROUP, MAX_EXPANSION * sum(column.total_compressed_size for column in columns)):
            raise ConfigError(f"{path.name} expands to {size:,} bytes in one group of rows; that is not a trace file")
        texts = (column for column in columns if column.physical_type == "BYTE_ARRAY")
        found |= dict.fromkeys(each.path_in_schema for each in texts if each.total_uncompressed_size > _REPEATABLE)
    return list(found)


def _batches(pa: Any, path: Path, file: Any) -> Iterator[Any]:
    """Batches of rows, the smaller the larger rows are on average, until what they say in full is out of all proportion to the file."""
    most, said = max(LARGE_FILE, MAX_EXPANSION * path.stat().st_size), 0
    for at in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(at)
        fitting = BYTES_AT_ONCE * group.num_rows // max(1, group.total_byte_size)
        for batch in file.iter_batches(batch_size=max(1, min(ROWS_AT_ONCE, fitting)), row_groups=[at]):
            for column in batch.columns:
                if pa.types.is_dictionary(column.type):  # every repeated value counts each time
                    lengths = pa.compute.binary_length(column.dictionary)
                    said += pa.compute.sum(lengths.take(column.indices)).as_py() or 0
                else:
                    said += column.nbytes
            if said > most:
                raise ConfigError(f"{path.name} expands to more than {most:,} bytes; that is not a trace file")
            yield batch


def _rows(pa: Any, batch: Any) -> Iterator[dict[str, Any] | str]:
    """The rows of a batch, one made at a time; a text where a row is too long."""
    columns = [
        column.cast(pa.timestamp("us", tz=column.type.tz), safe=False)  # Python's times have no nanoseconds
        if pa.types.is_timestamp(column.type)
        else column
        for column in batch.columns
    ]
    large = [column for column in columns if column.nbytes > MAX_LINE_BYTES]
    for at in range(batch.num_rows):
        values = (column.slice(at, 1) for column in large)
        size = sum((v.dictionary_decode() if pa.types.is_dictionary(v.type) else v).nbytes for v in values)
        if size > MAX_LINE_BYTES:
            yield f"longer than {MAX_LINE_BYTES} bytes"
        else:
            yield {name: column[at].as_py() for name, column in zip(batch.schema.names, columns, strict=True)}
