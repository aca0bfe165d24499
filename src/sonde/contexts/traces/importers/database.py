"""Tables of spans: Phoenix's own SQLite file, read-only, and Parquet files of its data frames (extra `data`).

A confined process reads Parquet.
"""

from __future__ import annotations

import importlib.util
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from sonde.contexts.traces.importers.records import MAX_LINE_BYTES, Malformed, Record, decode
from sonde.disk import open_database
from sonde.errors import ConfigError, how_to_install
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
ORDER BY spans.id
"""
# CROSS JOIN keeps this order of the tables. With their keys, every span meets one trace and one project, and nothing is sorted.
ROW_S = 30.0
STEPS = 100_000
EXPANSION = (
    4  # what the rows hold, times the size of the file: names of traces and projects repeat, and UTF-16 grows as UTF-8
)
SLACK = 1 << 20


def rows(path: Path) -> Iterator[Record | Malformed]:
    """Every span of a Phoenix database as one object."""
    try:
        with closing(_open(path)) as connection:
            _check_tables(connection, path.name)
            connection.row_factory = sqlite3.Row
            asked, said = time.monotonic(), 0
            # Also lets Ctrl-C through while SQLite computes.
            connection.set_progress_handler(lambda: time.monotonic() - asked > ROW_S, STEPS)
            log = path.with_name(f"{path.name}-wal")
            most = EXPANSION * (path.stat().st_size + (log.stat().st_size if log.is_file() else 0)) + SLACK
            for number, row in enumerate(connection.execute(_PHOENIX_ROWS), start=1):
                asked = time.monotonic()
                found = dict(row)
                # Pages of a forged file may be used many times, so that a few kilobytes hold rows without end.
                said += 16 + sum(len(value) for value in found.values() if isinstance(value, str | bytes))
                if said > most:
                    raise ConfigError(f"the rows of {path.name} hold more than the file: it is damaged or forged")
                try:
                    found |= {name: decode(found[name].encode())[0] for name in _JSON if isinstance(found[name], str)}
                except (ValueError, RecursionError) as broken:
                    yield Malformed(number, 0, f"attributes or events are not JSON: {broken}")
                else:
                    yield Record(number, 0, found)
    except sqlite3.DatabaseError as broken:
        raise ConfigError(f"{path.name} is not a readable SQLite file: {broken}") from None


def _check_tables(connection: sqlite3.Connection, name: str) -> None:
    """Refuse tables that are not as Phoenix makes them: other ones may compute their values, or join without end."""
    kinds = {row[1]: row[2] for row in connection.execute("PRAGMA table_list") if row[0] == "main"}
    if not {"spans", "traces", "projects"} <= set(kinds):
        raise ConfigError(f"{name} is an SQLite file without Phoenix's tables (spans, traces, projects)")
    for table in ("spans", "traces", "projects"):
        columns = [tuple(row) for row in connection.execute(f"PRAGMA table_xinfo({table})")]
        keys = [(str(column).lower(), str(form).upper()) for _, column, form, _, _, key, _ in columns if key]
        computed = any(hidden and f"{table}.{column}".lower() in _PHOENIX_ROWS for _, column, *_, hidden in columns)
        if kinds[table] != "table" or keys != [("id", "INTEGER")] or computed:
            raise ConfigError(
                f"{name} is not a database of Phoenix: {table} is no table with the key id, or computes its columns"
            )


def _open(path: Path) -> sqlite3.Connection:
    """Read-only; immutable when the folder allows no lock files, as in a backup.

    The schema may be a stranger's, so its expressions make no values beyond a limit. It stays trusted otherwise, because Phoenix's own
    indexes use JSON_EXTRACT, which SQLite refuses in untrusted schemas; extensions cannot be loaded here.
    """
    for mode in ("ro", "immutable"):
        connection = open_database(path.resolve(), mode, trusted=True, longest=MAX_LINE_BYTES)
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
        raise ConfigError(f"{path.name} is Parquet: install the data extra ({how_to_install('data')})")
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
