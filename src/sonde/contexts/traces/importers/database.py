"""Tables of spans: Phoenix's own SQLite file, read-only, and Parquet files of its data frames (extra `data`).

A confined process reads Parquet.
"""

from __future__ import annotations

import importlib.util
import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from sonde.contexts.traces.importers.records import MAX_LINE_BYTES, Malformed, Record
from sonde.errors import ConfigError
from sonde.parsers.documents import ParserLimits, Unparsed, parse

Json = dict[str, Any]
MAGIC = b"SQLite format 3\x00"
PARQUET = b"PAR1"
PARQUET_LIMITS = ParserLimits(
    cpu_s=60, memory=2 << 30, record_bytes=2 * MAX_LINE_BYTES, output_bytes=1 << 50, per_record=True
)
"""A file may have any size; the parser itself refuses one that expands beyond all measure."""
ParquetRow: Any = dict[str, Any] | str
_JSON = ("attributes", "events")
_PHOENIX_ROWS = """
SELECT traces.trace_id, spans.span_id, spans.parent_id, spans.name, spans.span_kind, spans.start_time, spans.end_time,
       spans.status_code, spans.status_message, spans.attributes, spans.events, projects.name AS project_name
FROM spans CROSS JOIN traces ON traces.id = spans.trace_rowid CROSS JOIN projects ON projects.id = traces.project_rowid
ORDER BY spans.rowid
"""
# CROSS JOIN keeps this order of the tables, so nothing is sorted: a stranger's tables without keys could fill the disk with that.
ROW_S = 30.0
STEPS = 100_000


def rows(path: Path) -> Iterator[Record | Malformed]:
    """Every span of a Phoenix database as one object."""
    try:
        with closing(_open(path)) as connection:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if not {"spans", "traces", "projects"} <= tables:
                raise ConfigError(f"{path.name} is an SQLite file without Phoenix's tables (spans, traces, projects)")
            connection.row_factory = sqlite3.Row
            asked = time.monotonic()
            # Also lets Ctrl-C through while SQLite computes.
            connection.set_progress_handler(lambda: time.monotonic() - asked > ROW_S, STEPS)
            spans = connection.execute("SELECT count(*) FROM spans").fetchone()[0]
            for number, row in enumerate(connection.execute(_PHOENIX_ROWS), start=1):
                asked = time.monotonic()
                if number > spans:
                    raise ConfigError(
                        f"{path.name} has several traces or projects of one id; Phoenix writes no such file"
                    )
                found = dict(row)
                try:
                    found |= {name: json.loads(found[name]) for name in _JSON if isinstance(found[name], str)}
                except (ValueError, RecursionError) as broken:
                    yield Malformed(number, 0, f"attributes or events are not JSON: {broken}")
                else:
                    yield Record(number, 0, found)
    except sqlite3.DatabaseError as broken:
        raise ConfigError(f"{path.name} is not a readable SQLite file: {broken}") from None


def _open(path: Path) -> sqlite3.Connection:
    """Read-only; immutable when the folder allows no lock files, as in a backup.

    The schema may be a stranger's, so its expressions make no values beyond a limit. It stays trusted otherwise, because Phoenix's own
    indexes use JSON_EXTRACT, which SQLite refuses in untrusted schemas; extensions cannot be loaded here.
    """
    for mode in ("mode=ro", "immutable=1"):
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?{mode}", uri=True)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_LINE_BYTES)
        try:
            connection.execute("SELECT 1 FROM sqlite_master LIMIT 1")
        except sqlite3.Error as failure:
            connection.close()
            broken = failure
        else:
            return connection
    raise broken


def parquet_rows(path: Path) -> Iterator[Record | Malformed]:
    """Every row as one object; times are cut to microseconds."""
    if importlib.util.find_spec("pyarrow") is None:
        raise ConfigError(f"{path.name} is Parquet: install the data extra (pip install 'sonde-rlm[data]')")
    number = 0
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            for row in parse("parquet", file.fileno(), ParquetRow, PARQUET_LIMITS, size=size, longest=MAX_LINE_BYTES):
                number += 1
                yield Malformed(number, 0, row) if isinstance(row, str) else Record(number, 0, row)
    except (Unparsed, OSError) as broken:
        where = f"cannot be read beyond row {number}" if number else "is not a readable Parquet file"
        raise ConfigError(f"{path.name} {where}: {' '.join(str(broken).split())}") from None
