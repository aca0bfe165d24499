"""Phoenix's own SQLite file, read-only."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from sonde.contexts.traces.importers.records import MAX_LINE_BYTES, Malformed, Record
from sonde.errors import ConfigError

Json = dict[str, Any]
MAGIC = b"SQLite format 3\x00"
_PHOENIX_ROWS = """
SELECT traces.trace_id, spans.span_id, spans.parent_id, spans.name, spans.span_kind, spans.start_time, spans.end_time,
       spans.status_code, spans.status_message, spans.attributes, spans.events, projects.name AS project_name
FROM spans JOIN traces ON traces.id = spans.trace_rowid JOIN projects ON projects.id = traces.project_rowid
ORDER BY spans.id
"""


def is_phoenix(path: Path) -> bool:
    """True when an SQLite file has Phoenix's tables."""
    with _readable(path), closing(_open(path)) as connection:
        found = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    return {"spans", "traces", "projects"} <= found


@contextmanager
def _readable(path: Path) -> Generator[None]:
    try:
        yield
    except sqlite3.DatabaseError as broken:
        raise ConfigError(f"{path.name} is not a readable SQLite file: {broken}") from None


def rows(path: Path) -> Iterator[Record | Malformed]:
    """Every span of a Phoenix database as one object."""
    if not is_phoenix(path):
        raise ConfigError(f"{path.name} is an SQLite file without Phoenix's tables (spans, traces, projects)")
    with _readable(path), closing(_open(path)) as connection:
        connection.row_factory = sqlite3.Row
        for number, row in enumerate(connection.execute(_PHOENIX_ROWS), start=1):
            try:
                yield Record(number, 0, _phoenix_row(dict(row)))
            except (ValueError, RecursionError) as broken:
                yield Malformed(number, 0, f"attributes or events are not JSON: {broken}")


def _phoenix_row(row: Json) -> Json:
    for column in ("attributes", "events"):
        if isinstance(row[column], str):
            row[column] = json.loads(row[column])
    return row


def _open(path: Path) -> sqlite3.Connection:
    """Read-only; immutable when the folder allows no lock files, as in a backup."""
    connection = _bounded(f"{path.resolve().as_uri()}?mode=ro")
    try:
        connection.execute("SELECT 1 FROM sqlite_master LIMIT 1")
    except sqlite3.Error:
        connection.close()
        return _bounded(f"{path.resolve().as_uri()}?immutable=1")
    return connection


def _bounded(address: str) -> sqlite3.Connection:
    """The schema may be a stranger's: its expressions make no values without measure. It stays trusted otherwise, because Phoenix's own
    indexes use JSON_EXTRACT, which SQLite refuses in others; extensions cannot be loaded here.
    """
    connection = sqlite3.connect(address, uri=True)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_LINE_BYTES)
    return connection
