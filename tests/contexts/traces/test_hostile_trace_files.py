"""Trace files that somebody else made: no hours over holes, no memory for values that are not there, words for what is broken."""

from __future__ import annotations

import gzip
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from trace_samples import raw_span

from sonde.contexts.traces.filestore import FileStore
from sonde.errors import ConfigError

LINE = json.dumps(raw_span(1))


@pytest.mark.parametrize("start", [b"", b"SQLite format 3\x00", b"PAR1", b'{"a": 1}\n'])
@pytest.mark.parametrize("in_folder", [True, False])
def test_a_file_of_terabytes_that_is_a_hole_is_refused_at_once(tmp_path: Path, start: bytes, in_folder: bool) -> None:
    with (tmp_path / "spans.jsonl").open("wb") as file:
        file.write(start)
        file.truncate(1 << 42)

    with pytest.raises(ConfigError, match="is a hole"):
        FileStore(tmp_path if in_folder else tmp_path / "spans.jsonl")


def test_a_database_whose_schema_makes_huge_values_is_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "phoenix.db")) as made, made:
        made.executescript(
            """
            CREATE TABLE projects (id INTEGER, name TEXT);
            CREATE TABLE traces (id INTEGER, trace_id TEXT, project_rowid INTEGER);
            CREATE TABLE spans (id INTEGER, trace_rowid INTEGER, span_id TEXT, parent_id TEXT, name TEXT, span_kind TEXT,
              start_time TEXT, end_time TEXT, status_code TEXT, status_message TEXT, events TEXT,
              attributes TEXT GENERATED ALWAYS AS (hex(zeroblob(450000000))) VIRTUAL);
            INSERT INTO projects VALUES (1, 'p');
            INSERT INTO traces VALUES (1, 't', 1);
            INSERT INTO spans (id, trace_rowid, span_id, name) VALUES (1, 1, 's', 'n');
            """
        )

    with pytest.raises(ConfigError, match="not a readable SQLite file: string or blob too big"):
        FileStore(tmp_path / "phoenix.db")


def test_a_damaged_parquet_file_is_refused_in_words(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow.parquet")
    (tmp_path / "spans.parquet").write_bytes(b"PAR1" + bytes(50) + b"PAR1")

    with pytest.raises(ConfigError, match="not a readable Parquet file"):
        FileStore(tmp_path / "spans.parquet")


def test_a_file_of_the_kernels_that_keeps_its_readers_waiting_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="it is empty"):
        FileStore(Path("/proc/kmsg"))  # a regular file of no length, on which a read waits for the next message


@pytest.mark.parametrize(
    ("packed", "words"),
    [
        (gzip.compress(LINE.encode()), "unpack it first, for example with gunzip"),
        (LINE.encode("utf-16"), "write it as UTF-8"),
    ],
)
def test_a_packed_file_is_refused_with_what_to_do(tmp_path: Path, packed: bytes, words: str) -> None:
    (tmp_path / "t.jsonl").write_bytes(packed)

    with pytest.raises(ConfigError, match=words):
        FileStore(tmp_path / "t.jsonl")
