"""Odd tables: text and maps where objects are expected, files that are broken inside; and searches that say what they left out."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from trace_samples import TRACE, raw_span, store_of

from sonde.contexts.traces.catalog import search_words
from sonde.contexts.traces.filestore import FileStore
from sonde.errors import ConfigError

FIRST = "0000000000000001"
EVENT = {"name": "exception", "timestamp": "2026-01-01T00:00:00Z", "attributes": {"exception.message": "boom"}}
SCHEMA = """
CREATE TABLE projects(id INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE traces(id INTEGER PRIMARY KEY, trace_id TEXT, project_rowid INTEGER);
CREATE TABLE spans(id INTEGER PRIMARY KEY, span_id TEXT, parent_id TEXT, name TEXT, span_kind TEXT, start_time TEXT, end_time TEXT,
  status_code TEXT, status_message TEXT, attributes TEXT, events TEXT, trace_rowid INTEGER);
INSERT INTO projects VALUES (1, 'shop');
"""


def phoenix(path: Path, *attributes: str) -> Path:
    with closing(sqlite3.connect(path)) as database:
        database.executescript(SCHEMA)
        database.execute("INSERT INTO traces VALUES (1, ?, 1)", (TRACE,))
        for number, text in enumerate(attributes, 1):
            row = (f"{number:016x}", "x", "LLM", "2026-01-01 00:00:00", "2026-01-01 00:00:01", "OK", "", text, "[]")
            database.execute("INSERT INTO spans VALUES (NULL, ?, NULL, ?, ?, ?, ?, ?, ?, ?, ?, 1)", row)
        database.commit()
    return path


def test_attributes_and_events_as_json_text_are_read(tmp_path: Path) -> None:
    row = raw_span(1, events=json.dumps([EVENT])) | {"attributes": json.dumps({"input.value": "hello"})}

    span = store_of(tmp_path, [row]).span(FIRST)

    assert span.attributes["input.value"] == "hello"
    assert [event.attributes for event in span.events] == [{"exception.message": "boom"}]


def test_attributes_of_a_parquet_map_are_read(tmp_path: Path) -> None:
    pa: Any = pytest.importorskip("pyarrow")
    parquet: Any = pytest.importorskip("pyarrow.parquet")
    table = pa.table(
        {
            "trace_id": [TRACE],
            "span_id": [FIRST],
            "start_time": ["2026-01-01T00:00:00Z"],
            "attributes": pa.array([[("input.value", "hello")]], pa.map_(pa.string(), pa.string())),
        }
    )
    parquet.write_table(table, tmp_path / "a.parquet")

    with FileStore(tmp_path / "a.parquet") as store:
        assert store.span(FIRST).attributes == {"input.value": "hello"}


def test_a_parquet_file_that_is_broken_inside_is_named(tmp_path: Path) -> None:
    pa: Any = pytest.importorskip("pyarrow")
    parquet: Any = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"trace_id": [TRACE] * 5000, "span_id": [f"s{n}" for n in range(5000)]}), path)
    data = path.read_bytes()
    path.write_bytes(data[:4] + bytes(byte ^ 0x5A for byte in data[4:2000]) + data[2000:])

    with pytest.raises(ConfigError, match=r"a\.parquet"):
        FileStore(path)


def test_a_row_of_a_database_that_is_no_json_costs_only_itself(tmp_path: Path) -> None:
    with FileStore(phoenix(tmp_path / "p.db", '{"llm":', '{"input": {"value": "hello"}}')) as store:
        assert [span.span_id for span in store.summaries(TRACE)] == [f"{2:016x}"]
        assert [bad["line"] for bad in store.malformed()] == [1]


def test_a_database_that_is_broken_is_named(tmp_path: Path) -> None:
    path = phoenix(tmp_path / "p.db", "{}")
    path.write_bytes(path.read_bytes()[:4096] + b"\xff" * 8192)

    with pytest.raises(ConfigError, match=r"p\.db"):
        FileStore(path)


def test_one_observation_of_an_odd_form_costs_only_itself(tmp_path: Path) -> None:
    common = {"type": "GENERATION", "startTime": "2026-01-01T00:00:00Z"}
    observations = [{"id": "a", "usage": [1], **common}, {"id": "b", **common}]

    store = store_of(tmp_path, [{"id": TRACE, "timestamp": "2026-01-01T00:00:00Z", "observations": observations}])

    assert {span.span_id for span in store.summaries(TRACE)} == {"a", "b", f"t-{TRACE}"}


def test_words_are_found_in_lists_and_events_and_what_is_not_shown_is_said(tmp_path: Path) -> None:
    long = {"name": "exception", "timestamp": 1, "attributes": {"exception.stacktrace": "x " * 3000 + "zebra"}}
    rows = [raw_span(1, attributes={"tags": ["giraffe", "lion"]}), raw_span(2, events=[long])]
    store = store_of(tmp_path, rows + [raw_span(n, name="needle") for n in range(3, 10)])

    def found(words: str, **how: Any) -> tuple[int, str | None]:
        result = search_words(store, words, **how)
        return len(result["hits"]), result["not_searched"]

    note = "1 spans have longer attributes, of which only the first 4 kB were searched"
    assert found("giraffe") == (1, note)
    assert found("zebra") == (0, note)
    assert found("zebra", deep=True) == (1, None)
    assert search_words(store, "zebra", deep=True)["hits"][0]["field"] == "events.exception.exception.stacktrace"
    assert found("needle", limit=7) == (7, note)
    assert found("needle", limit=3) == (3, f"more than 3 spans hold these words; {note}")
    assert found('needle - "', limit=7) == (7, note)
    assert found("nee\0dle") == (0, note)
