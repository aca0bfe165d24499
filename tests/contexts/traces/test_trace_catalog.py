"""What `sonde traces` does, as data."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from trace_samples import TRACE, TRAIL, raw_span, store_of, write_lines

from sonde.contexts.traces import catalog
from sonde.contexts.traces.catalog import open_store
from sonde.contexts.traces.context import trace_hash
from sonde.contexts.traces.filestore import FileStore
from sonde.contexts.traces.filters import FilterRefused
from sonde.contexts.traces.phoenixstore import PhoenixStore
from sonde.contexts.traces.store import UnknownTrace
from sonde.errors import ConfigError


def test_import_says_what_was_found_and_skipped(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t.jsonl", [raw_span(1), "broken"])

    first, second = (catalog.import_traces(path, tmp_path / "cache") for _ in range(2))

    assert (first["index"], second["index"]) == ("built", "found")
    assert first["malformed_count"] == 1
    assert first["malformed"][0]["line"] == 2
    assert first["content_hash"] == second["content_hash"]


def test_a_trace_is_shown_as_a_tree(tmp_path: Path) -> None:
    rows = [raw_span(1), raw_span(2), raw_span(3, parent_id=f"{2:016x}"), raw_span(4)]

    shown = catalog.show_trace(store_of(tmp_path, rows), TRACE)

    assert [(row["name"], row["depth"]) for row in shown["spans"]] == [
        ("step 1", 0),
        ("step 2", 1),
        ("step 3", 2),
        ("step 4", 1),
    ]
    assert shown["overview"]["span_count"] == 4


def test_an_overview_counts_over_many_traces(tmp_path: Path) -> None:
    rows = [
        raw_span(n, trace_id=f"{n:032x}", parent_id=None, status_code="ERROR" if n % 2 else "OK") for n in range(1, 6)
    ]
    store = store_of(tmp_path, rows)

    found = catalog.overview(store, catalog.query_of())
    failed = store.traces(catalog.query_of(filter_expr="status_code == 'ERROR'", limit=2))

    assert (found["trace_count"], found["failed_traces"], found["more"]) == (5, 3, None)
    assert len(failed.rows) == 2 and failed.more is not None


def test_words_are_searched_shallow_or_deep_and_it_is_said_which(tmp_path: Path) -> None:
    long = raw_span(2, attributes={"output.value": "word " * 2000 + "needle at the end"})
    store = store_of(tmp_path, [raw_span(1, attributes={"input.value": "a needle here"}), long])

    shallow, deep = (catalog.search_words(store, "Needle", deep=deep) for deep in (False, True))

    assert [hit["span_id"][-1] for hit in shallow["hits"]] == ["1"]
    assert "1 spans have longer attributes" in shallow["not_searched"]
    assert [hit["span_id"][-1] for hit in deep["hits"]] == ["1", "2"]
    assert deep["not_searched"] is None
    assert "needle at the end" in deep["hits"][1]["value_snippet"]
    assert catalog.search_trace(store, TRACE, "needle$|needle here")["hits"][0]["field"] == "input.value"


def test_a_server_is_not_searched_whole() -> None:
    store = open_store("http://127.0.0.1:9")

    assert isinstance(store, PhoenixStore)
    with pytest.raises(ConfigError):
        catalog.search_words(store, "x")


def test_an_export_can_be_imported_to_the_same_hashes(tmp_path: Path) -> None:
    with FileStore(TRAIL) as store:
        ids = [row.trace_id for row in store.traces(catalog.query_of()).rows]
        stream = io.StringIO()
        count = catalog.export_traces(store, ids, stream, project="trail")
        expected = [trace_hash(store, trace_id) for trace_id in ids]
    (tmp_path / "out.jsonl").write_text(stream.getvalue(), "utf-8")

    with FileStore(tmp_path / "out.jsonl") as again:
        assert [trace_hash(again, trace_id) for trace_id in ids] == expected
        assert again.projects() == ["trail"]
    assert count == 39


def test_an_export_keeps_the_project_writes_a_trace_once_and_nothing_when_one_is_missing(tmp_path: Path) -> None:
    named = {**raw_span(1), "resource": {"attributes": {"openinference.project.name": "shop"}}}
    whole, nothing = io.StringIO(), io.StringIO()
    with store_of(tmp_path, [named, raw_span(2)]) as store:
        count = catalog.export_traces(store, [TRACE, TRACE], whole)
        with pytest.raises(UnknownTrace):
            catalog.export_traces(store, [TRACE, "f" * 32], nothing)
    (tmp_path / "out.jsonl").write_text(whole.getvalue(), "utf-8")

    with FileStore(tmp_path / "out.jsonl") as again:
        assert again.projects() == ["shop"]
        assert again.gaps(TRACE) == []
    assert (count, nothing.getvalue()) == (2, "")


@pytest.mark.parametrize("words", ["gpt-4o", "GPT-4o (2024)", "a.b", "NEAR(gpt 4o)", "o'clock", '"gpt'])
def test_words_with_signs_in_them_are_searched_by_their_parts(tmp_path: Path, words: str) -> None:
    said = "near a.b the model gpt-4o of 2024 spoke at five o'clock"

    with store_of(tmp_path, [raw_span(1, attributes={"input.value": said}), raw_span(2)]) as store:
        found = catalog.search_words(store, words)

    assert [hit["span_id"][-1] for hit in found["hits"]] == ["1"]


@pytest.mark.parametrize("words", ["-", '"', "\N{PARTY POPPER}"])
def test_a_search_without_any_word_is_refused_and_not_empty(tmp_path: Path, words: str) -> None:
    with store_of(tmp_path, [raw_span(1)]) as store, pytest.raises(ConfigError, match="no word"):
        catalog.search_words(store, words)


def test_bad_queries_are_refused() -> None:
    with pytest.raises(ConfigError):
        catalog.query_of(start="whenever")
    with pytest.raises(ConfigError, match="the first must be before the second"):
        catalog.query_of(start="2026-11-02T00:00Z", end="2026-11-01T00:00Z")
    with pytest.raises(FilterRefused):
        catalog.query_of(filter_expr="import os")
