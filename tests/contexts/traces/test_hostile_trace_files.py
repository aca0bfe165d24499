"""Trace files that somebody else made: no hours over holes, no memory for values that are not there, words for what is broken."""

from __future__ import annotations

import gzip
import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from trace_samples import TRACE, raw_span

from sonde.contexts.traces.filestore import FileStore
from sonde.contexts.traces.importers.records import MAX_LINE_BYTES
from sonde.core.canonical import MAX_JSON_ITEMS
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


@pytest.mark.long
def test_a_database_whose_schema_makes_huge_values_is_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "phoenix.db")) as made, made:
        made.executescript(
            """
            CREATE TABLE projects (id INTEGER PRIMARY KEY, name TEXT);
            CREATE TABLE traces (id INTEGER PRIMARY KEY, trace_id TEXT, project_rowid INTEGER);
            CREATE TABLE spans (id INTEGER PRIMARY KEY, trace_rowid INTEGER, span_id TEXT, parent_id TEXT, name TEXT, span_kind TEXT,
              start_time TEXT, end_time TEXT, status_code TEXT, status_message TEXT, events TEXT,
              attributes TEXT GENERATED ALWAYS AS (hex(zeroblob(450000000))) VIRTUAL);
            INSERT INTO projects VALUES (1, 'p');
            INSERT INTO traces VALUES (1, 't', 1);
            INSERT INTO spans (id, trace_rowid, span_id, name) VALUES (1, 1, 's', 'n');
            """
        )

    with pytest.raises(ConfigError, match="computes its columns"):
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


def repeated(path: Path, value: str, times: int) -> Path:
    """A Parquet file of a few kilobytes in which every row has the same long value."""
    pa: Any = pytest.importorskip("pyarrow")
    parquet: Any = pytest.importorskip("pyarrow.parquet")
    columns = {
        "context.trace_id": [TRACE] * times,
        "context.span_id": [f"{number:016x}" for number in range(times)],
        "start_time": ["2026-01-01T00:00:00Z"] * times,
        "attributes.input.value": pa.DictionaryArray.from_arrays(pa.array([0] * times, pa.int32()), pa.array([value])),
    }
    parquet.write_table(pa.table(columns), path, compression="zstd", store_schema=False)
    return path


@pytest.mark.long
def test_parquet_that_says_one_long_value_many_times_is_read_one_row_at_a_time(tmp_path: Path) -> None:
    path = repeated(tmp_path / "spans.parquet", "x" * (16 << 20), 80)  # a few kB that say 1.3 GB

    script = (
        "import re, sys; from pathlib import Path; from sonde.contexts.traces.importers import read\n"
        "count = sum(1 for _ in read(Path(sys.argv[1])))\n"
        # ru_maxrss would be that of the process that started this one, if it was larger
        "print(count, int(re.search(r'VmHWM:\\s*(\\d+)', Path('/proc/self/status').read_text())[1]) >> 10)"
    )
    shown = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True)

    count, megabytes = map(int, shown.stdout.split())
    assert (count, megabytes < 1000) == (80, True), megabytes


def test_parquet_that_says_terabytes_is_refused(tmp_path: Path) -> None:
    path = repeated(tmp_path / "spans.parquet", "x" * (16 << 20), 100_000)

    with pytest.raises(ConfigError, match="expands to more than"):
        FileStore(path)


@pytest.mark.long
def test_a_line_of_millions_of_values_is_passed_over_and_costs_only_itself(tmp_path: Path) -> None:
    row = {"trace_id": TRACE, "span_id": "a", "start_time": "2026-01-01T00:00:00Z"}
    swollen = json.dumps({**row, "span_id": "b"})[:-1] + ', "attributes": {"x": [' + "[]," * MAX_JSON_ITEMS + "[]]}}"
    (tmp_path / "spans.jsonl").write_text(f"{json.dumps(row)}\n{swollen}\n")

    with FileStore(tmp_path / "spans.jsonl") as store:
        assert [span.span_id for span in store.summaries(TRACE)] == ["a"]
        assert [(row["line"], row["reason"]) for row in store.malformed()] == [
            (2, f"not JSON: it holds more than {MAX_JSON_ITEMS:,} values")
        ]


@pytest.mark.long
def test_a_row_of_parquet_longer_than_a_line_may_be_costs_only_itself(tmp_path: Path) -> None:
    pa: Any = pytest.importorskip("pyarrow")
    parquet: Any = pytest.importorskip("pyarrow.parquet")
    values = ["short", "x" * (MAX_LINE_BYTES + 1), "short"]
    columns = {
        "trace_id": [TRACE] * 3,
        "span_id": ["a", "b", "c"],
        "start_time": ["2026-01-01T00:00:00Z"] * 3,
        "attributes.input.value": values,
    }
    parquet.write_table(pa.table(columns), tmp_path / "spans.parquet")

    with FileStore(tmp_path / "spans.parquet") as store:
        assert [span.span_id for span in store.summaries(TRACE)] == ["a", "c"]
        assert [(row["line"], row["reason"]) for row in store.malformed()] == [
            (2, f"longer than {MAX_LINE_BYTES} bytes")
        ]
