"""Parquet files of Phoenix data frames (needs the `data` extra), row by row. A confined process reads them."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sonde.contexts.traces.importers.records import MAX_LINE_BYTES, Malformed, Record
from sonde.errors import ConfigError
from sonde.parsers.documents import ParserLimits, Unparsed, parse

MAGIC = b"PAR1"
LIMITS = ParserLimits(cpu_s=60, memory=2 << 30, record_bytes=2 * MAX_LINE_BYTES, output_bytes=1 << 50, per_record=True)
"""A file may have any size; the parser itself refuses one that expands beyond all measure."""
Row: Any = dict[str, Any] | str


def rows(path: Path) -> Iterator[Record | Malformed]:
    """Every row as one object; times are cut to microseconds."""
    if importlib.util.find_spec("pyarrow") is None:
        raise ConfigError(f"{path.name} is Parquet: install the data extra (pip install 'sonde-rlm[data]')")
    number = 0
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            for row in parse("parquet", file.fileno(), Row, LIMITS, size=size, longest=MAX_LINE_BYTES):
                number += 1
                yield Malformed(number, 0, row) if isinstance(row, str) else Record(number, 0, row)
    except (Unparsed, OSError) as broken:
        where = f"cannot be read beyond row {number}" if number else "is not a readable Parquet file"
        raise ConfigError(f"{path.name} {where}: {' '.join(str(broken).split())}") from None
