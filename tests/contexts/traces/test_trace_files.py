"""Trace files: every form is read, broken records are named, indexes are built once and appended to."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from trace_samples import START_NS, TRACE, TRAIL, Json, as_otlp, raw_span, spans_in, store_of, write_lines

from sonde.contexts.traces.catalog import open_store
from sonde.contexts.traces.context import trace_hash
from sonde.contexts.traces.filestore import FileStore
from sonde.contexts.traces.importers import records
from sonde.contexts.traces.maskedstore import MaskedIndex
from sonde.contexts.traces.store import TraceQuery
from sonde.contexts.traces.views import chunks_of, messages_of, tool_io_of
from sonde.core.deadline import GRACE_S, Deadline, SystemClock
from sonde.core.mask import Mask
from sonde.errors import ConfigError


def test_malformed_lines_are_counted_named_by_line_and_skipped(tmp_path: Path) -> None:
    rows = [
        raw_span(1),
        "{not json",
        raw_span(2),
        json.dumps({"hello": "world"}),
        "",
        raw_span(3, start_time="yesterday"),
    ]

    store = store_of(tmp_path, rows)

    assert [span.name for span in store.summaries(TRACE)] == ["step 1", "step 2"]
    assert store.malformed_count() == 3
    assert [row["line"] for row in store.malformed()] == [2, 4, 6]
    assert {row["file"] for row in store.malformed()} == {"traces.jsonl"}
    assert "3 malformed records skipped" in store.describe()


@pytest.mark.parametrize(
    "content", ["", "\n\n", "nonsense\n", '{"a": 1}\n', "[1, 2]", '{\n "a": 1\n}\n', "\x00\x01\x02"]
)
def test_a_file_without_a_single_span_is_an_error(content: str, tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    path.write_text(content, "utf-8")

    with pytest.raises(ConfigError, match=r"no span could be read from traces\.jsonl"):
        FileStore(path, cache=tmp_path / "cache")

    assert not list((tmp_path / "cache").glob("*.sqlite*"))


def test_a_source_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    for missing in (tmp_path / "nowhere.jsonl", tmp_path / "empty"):
        with pytest.raises(ConfigError):
            open_store(missing)


def test_an_index_is_built_once_per_content_also_for_a_copy_or_a_touched_file(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [raw_span(1)])
    copy = write_lines(tmp_path / "b.jsonl", [raw_span(1)])

    ways: list[str] = []
    for source in (path, path, copy):
        with FileStore(source, cache=tmp_path / "cache") as store:
            ways.append(store.indexed.how)
    path.touch()
    with FileStore(path, cache=tmp_path / "cache") as store:
        ways.append(store.indexed.how)

    assert ways == ["built", "found", "found", "found"]


@pytest.mark.requirement("O16")
def test_a_file_that_grew_is_appended_to_and_reads_like_one_built_anew(tmp_path: Path) -> None:
    rows = [raw_span(number) for number in range(1, 8)]
    path = write_lines(tmp_path / "a.jsonl", [*rows[:3], "broken"])
    with FileStore(path, cache=tmp_path / "cache") as store:
        assert store.malformed_count() == 1
    with path.open("a", encoding="utf-8") as stream:
        stream.writelines(f"{json.dumps(row)}\n" for row in [*rows[3:], "broken again"])

    with FileStore(path, cache=tmp_path / "cache") as grown, FileStore(path) as fresh:
        assert grown.indexed.how == "appended"
        assert grown.fingerprint() == fresh.fingerprint()
        assert trace_hash(grown, TRACE) == trace_hash(fresh, TRACE)
        assert grown.traces(TraceQuery()) == fresh.traces(TraceQuery())
        assert grown.malformed() == fresh.malformed()
        assert grown.search("step 7") == fresh.search("step 7")


def test_a_rewritten_file_is_indexed_anew(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [raw_span(1), raw_span(2)])
    FileStore(path, cache=tmp_path / "cache").close()
    write_lines(path, [raw_span(1, name="another"), raw_span(2), raw_span(3)])

    with FileStore(path, cache=tmp_path / "cache") as store:
        assert store.indexed.how == "built"
        assert store.summaries(TRACE)[0].name == "another"


def test_a_last_line_still_being_written_is_read_when_it_is_finished(tmp_path: Path) -> None:
    line = json.dumps(raw_span(2))
    path = tmp_path / "a.jsonl"
    path.write_text(f"{json.dumps(raw_span(1))}\n{line[:40]}", "utf-8")
    with FileStore(path, cache=tmp_path / "cache") as store:
        assert store.malformed_count() == 1
    path.write_text(f"{json.dumps(raw_span(1))}\n{line}\n", "utf-8")

    with FileStore(path, cache=tmp_path / "cache") as store:
        assert store.indexed.how == "appended"
        assert len(store.summaries(TRACE)) == 2
        assert store.malformed_count() == 0


def test_a_folder_is_one_source_and_a_new_file_in_it_is_added(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    write_lines(folder / "a.jsonl", [raw_span(1)])
    FileStore(folder, cache=tmp_path / "cache").close()
    write_lines(folder / "b.jsonl", [as_otlp(raw_span(2, trace_id="f" * 32))])

    with FileStore(folder, cache=tmp_path / "cache") as store:
        assert store.indexed.how == "appended"
        assert len(store.traces(TraceQuery()).rows) == 2


def test_projects_come_from_the_resource_or_from_the_caller(tmp_path: Path) -> None:
    named = as_otlp(raw_span(1))
    resource = {"attributes": [{"key": "openinference.project.name", "value": {"stringValue": "shop"}}]}
    named["resourceSpans"][0]["resource"] = resource

    assert store_of(tmp_path, [named, raw_span(2, trace_id="e" * 32)]).projects() == ["default", "shop"]
    assert store_of(tmp_path, [named], project="mine").projects() == ["mine"]


def test_one_document_many_lines_and_pages_of_a_server_are_the_same_spans(tmp_path: Path) -> None:
    rows = [raw_span(1), raw_span(2)]
    lines = write_lines(tmp_path / "a.jsonl", rows)
    listed, page = tmp_path / "b.json", tmp_path / "c.json"
    listed.write_text(json.dumps(rows, indent=2), "utf-8")
    page.write_text(json.dumps({"data": rows, "next_cursor": None}), "utf-8")

    hashes = [[span.hash() for span in spans_in(path)] for path in (lines, listed, page)]

    assert hashes[0] == hashes[1] == hashes[2]
    assert len(hashes[0]) == 2


def test_trail_documents_keep_their_tree(tmp_path: Path) -> None:
    with FileStore(TRAIL) as store:
        rows = store.traces(TraceQuery()).rows
        assert [row.span_count for row in rows] == [13, 15, 11]
        for row in rows:
            spans = store.summaries(row.trace_id)
            assert sum(span.parent_id is None for span in spans) == 1
            assert store.gaps(row.trace_id) == []


def test_parquet_of_a_phoenix_data_frame_reads_like_the_lines(tmp_path: Path) -> None:
    pa: Any = pytest.importorskip("pyarrow")
    pq: Any = pytest.importorskip("pyarrow.parquet")
    raw = raw_span(1, attributes={"input.value": "x", "llm.input_messages.0.message.content": "hi"})
    table = pa.table(
        {
            "context.trace_id": [raw["trace_id"]],
            "context.span_id": [raw["span_id"]],
            "parent_id": pa.array([None], pa.string()),
            "name": [raw["name"]],
            "span_kind": ["CHAIN"],
            "status_code": ["OK"],
            "status_message": [""],
            "start_time": pa.array([raw["start_time"]], pa.timestamp("ns", "UTC")),
            "end_time": pa.array([raw["end_time"]], pa.timestamp("ns", "UTC")),
            "events": [[]],
            "attributes.input.value": ["x"],
            "attributes.output.value": pa.array([None], pa.string()),
            "attributes.llm.input_messages": [[{"message.content": "hi", "message.role": None}]],
        }
    )
    pq.write_table(table, tmp_path / "spans.parquet")

    (read,) = spans_in(tmp_path / "spans.parquet")
    (expected,) = spans_in(write_lines(tmp_path / "a.jsonl", [raw]))

    assert read.text() == expected.text()


def test_a_broken_parquet_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1 and then nothing of the kind PAR1")

    with pytest.raises(ConfigError, match="Parquet"):
        FileStore(tmp_path / "x.parquet")


def phoenix_database(path: Path, raw: Json) -> None:
    """A Phoenix SQLite file as far as we read it."""
    connection = sqlite3.connect(path)
    connection.executescript(
        """CREATE TABLE projects(id INTEGER PRIMARY KEY, name TEXT);
           CREATE TABLE traces(id INTEGER PRIMARY KEY, trace_id TEXT, project_rowid INTEGER);
           CREATE TABLE spans(id INTEGER PRIMARY KEY, trace_rowid INTEGER, span_id TEXT, parent_id TEXT, name TEXT, span_kind TEXT,
             start_time TEXT, end_time TEXT, status_code TEXT, status_message TEXT, attributes TEXT, events TEXT);
           CREATE INDEX ix_spans_session_id ON spans (CAST(JSON_EXTRACT(attributes, '$.session.id') AS VARCHAR));
           INSERT INTO projects VALUES (1, 'shop');"""
    )
    connection.execute("INSERT INTO traces VALUES (1, ?, 1)", (raw["trace_id"],))
    nested = {"input": {"value": "x"}, "openinference": {"span": {"kind": "CHAIN"}}}
    row = (
        1,
        1,
        raw["span_id"],
        None,
        raw["name"],
        "CHAIN",
        "2025-10-09 08:53:20.124456",
        "2025-10-09 08:53:20.129456",
        "OK",
        "",
    )
    connection.execute("INSERT INTO spans VALUES (?,?,?,?,?,?,?,?,?,?,?,?)", (*row, json.dumps(nested), "[]"))
    connection.commit()
    connection.close()


def test_a_phoenix_database_file_reads_like_the_lines(tmp_path: Path) -> None:
    raw = raw_span(1, attributes={"input.value": "x"})
    phoenix_database(tmp_path / "phoenix.db", raw)
    (expected,) = spans_in(write_lines(tmp_path / "a.jsonl", [raw]))

    with FileStore(tmp_path / "phoenix.db") as store:
        assert store.span(raw["span_id"]).text() == expected.text()
        assert store.projects() == ["shop"]


def test_another_sqlite_file_is_refused(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "other.db")
    connection.execute("CREATE TABLE t(a)")
    connection.commit()
    connection.close()

    with pytest.raises(ConfigError, match="Phoenix"):
        FileStore(tmp_path / "other.db")


def test_langfuse_exports_become_a_root_and_its_observations(tmp_path: Path) -> None:
    observation: Json = {
        "id": "gen-1",
        "traceId": "trace-a",
        "type": "GENERATION",
        "name": "chat",
        "startTime": "2026-01-01T00:00:01Z",
        "endTime": "2026-01-01T00:00:02Z",
        "input": [{"role": "user", "content": "hi"}],
        "output": {"role": "assistant", "content": "ho"},
        "model": "gpt-x",
        "usage": {"input": 3, "output": 4, "total": 7},
    }
    tool: Json = {
        **observation,
        "id": "tool-1",
        "type": "TOOL",
        "name": "add",
        "level": "ERROR",
        "statusMessage": "no",
        "output": "1",
    }
    trace = {"id": "trace-a", "name": "run", "timestamp": "2026-01-01T00:00:00Z", "input": "q", "sessionId": "s"}
    path = tmp_path / "langfuse.json"
    path.write_text(json.dumps({"trace": trace, "observations": [observation, tool]}), "utf-8")

    root, llm, failed = spans_in(path)

    assert (root.summary.kind, root.summary.parent_id, root.attributes["session.id"]) == ("CHAIN", None, "s")
    assert (llm.summary.kind, llm.summary.parent_id) == ("LLM", root.summary.span_id)
    assert [artifact.row["content"] for artifact in messages_of(llm)] == ["hi", "ho"]
    assert llm.attributes["llm.token_count.total"] == 7
    found = tool_io_of(failed)
    assert found is not None
    assert (failed.summary.status, failed.summary.status_message, found.row["tool_name"]) == ("ERROR", "no", "add")


def test_langsmith_runs_become_spans_with_their_children(tmp_path: Path) -> None:
    message = {"id": ["langchain", "schema", "HumanMessage"], "kwargs": {"content": "hi"}}
    child: Json = {
        "id": "run-2",
        "name": "model",
        "run_type": "llm",
        "start_time": "2026-01-01T00:00:01",
        "end_time": "2026-01-01T00:00:02",
        "inputs": {"messages": [[message]]},
        "outputs": {"generations": [[{"message": {"kwargs": {"content": "ho", "type": "ai"}}}]]},
        "total_tokens": 9,
        "extra": {"invocation_params": {"model": "gpt-x"}, "metadata": {"k": "v"}},
    }
    found: Json = {
        **child,
        "id": "run-3",
        "run_type": "retriever",
        "outputs": {"documents": [{"page_content": "text", "metadata": {"source": "a.md"}}]},
        "error": "boom",
    }
    root: Json = {
        "id": "run-1",
        "name": "chain",
        "run_type": "chain",
        "start_time": "2026-01-01T00:00:00",
        "inputs": {"q": 1},
    }
    path = write_lines(tmp_path / "runs.jsonl", [{**root, "child_runs": [child, found]}])

    chain, llm, retriever = spans_in(path)

    assert chain.summary.trace_id == llm.summary.trace_id == "run-1"
    assert llm.summary.parent_id == "run-1"
    assert [(a.row["role"], a.row["content"]) for a in messages_of(llm)] == [("user", "hi"), ("assistant", "ho")]
    assert (llm.attributes["llm.model_name"], llm.attributes["metadata.k"]) == ("gpt-x", "v")
    assert (retriever.summary.kind, retriever.summary.status) == ("RETRIEVER", "ERROR")
    assert chunks_of(retriever)[0].row["content"] == "text"


def test_a_conversation_has_one_span_a_step_named_after_the_agent(tmp_path: Path) -> None:
    history = [
        {"role": "Orchestrator (thought)", "content": "q"},
        {"role": "assistant", "name": "Planner", "content": "plan"},
    ]
    path = tmp_path / "4.json"
    gold = {"mistake_agent": "Planner", "mistake_step": "1", "ground_truth": "SECRET"}
    path.write_text(json.dumps({"question": "how?", "history": history, **gold}, indent=1), "utf-8")

    root, first, second = spans_in(path)

    assert root.attributes["input.value"] == "how?"
    assert [span.summary.name for span in (first, second)] == ["Orchestrator (thought)", "Planner"]
    assert [span.attributes["agent.name"] for span in (first, second)] == ["Orchestrator", "Planner"]
    assert second.attributes["conversation.step"] == 1
    assert second.summary.parent_id == root.summary.span_id
    assert "SECRET" not in root.text() + first.text() + second.text()
    assert "invented" in root.gaps[0]


def test_lines_beyond_the_limit_are_skipped_without_being_held(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t.jsonl", [raw_span(1), raw_span(2, attributes={"x": "y" * 5000}), raw_span(3)])

    with path.open("rb") as stream:
        found = list(records.lines(stream, limit=2000))

    assert [type(item).__name__ for item in found] == ["Record", "Malformed", "Record"]
    assert (found[1].line, found[2].end) == (2, path.stat().st_size)


def test_words_are_found_across_traces_and_what_was_not_searched_is_known(tmp_path: Path) -> None:
    long = raw_span(2, attributes={"output.value": "word " * 2000 + "needle"})
    store = store_of(tmp_path, [raw_span(1, status_message="needle here"), long])

    assert store.search("needle") == [(TRACE, "0000000000000001")]
    assert store.deep_spans() == 1
    assert [span.summary.span_id for span in store.deep()] == ["0000000000000002"]
    assert store.search('"; DROP TABLE spans; --') == []


def test_traces_come_by_start_and_id_within_a_window(tmp_path: Path) -> None:
    rows = [
        raw_span(n, trace_id=f"{n:032x}", parent_id=None, start_time=START_NS + (n % 3) * 10**9) for n in range(1, 10)
    ]
    store = store_of(tmp_path, rows)

    every = store.traces(TraceQuery()).rows
    window = store.traces(TraceQuery(start_us=START_NS // 1000 + 10**6, end_us=START_NS // 1000 + 2 * 10**6)).rows

    assert list(every) == sorted(every, key=lambda row: row.order)
    assert {row.start_us for row in window} == {START_NS // 1000 + 10**6}
    paged = [*store.traces(TraceQuery(limit=4)).rows]
    while (page := store.traces(TraceQuery(limit=4, after=paged[-1].trace_id))).rows:
        paged += page.rows
    assert paged == list(every)


def test_the_index_of_content_that_is_gone_is_removed(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [raw_span(1)])
    for name in ("one", "two", "three"):
        write_lines(path, [raw_span(1, name=name)])
        FileStore(path, cache=tmp_path / "cache").close()

    assert len(list((tmp_path / "cache").glob("*.sqlite"))) == 1
    assert (tmp_path / "cache").stat().st_mode & 0o077 == 0


def test_what_a_killed_import_has_left_behind_is_removed_and_what_another_is_writing_is_not(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    for name, age_s in (("old.1.part", 200_000), ("new.2.part", 60)):
        (cache / name).write_text("half an index")
        os.utime(cache / name, (time.time() - age_s, time.time() - age_s))

    store_of(tmp_path, [raw_span(1)], cache=cache).close()

    assert [path.name for path in cache.glob("*.part")] == ["new.2.part"]


def test_files_have_no_page_to_open(tmp_path: Path) -> None:
    assert store_of(tmp_path, [raw_span(1)]).link(TRACE) is None


def test_a_masked_copy_of_a_window_ends_with_the_run_and_says_how_far_it_came(tmp_path: Path) -> None:
    rows = [raw_span(number, trace_id=f"{number:032x}", parent_id=None) for number in range(1, 6)]
    run = Deadline(SystemClock(), None)
    run.stop.set()
    run.overtime = GRACE_S + 1

    with run.in_force():
        copy = MaskedIndex(store_of(tmp_path, rows), TraceQuery(), Mask())
    assert copy.skipped() == ["0 of 5 traces were masked: spans were still being masked when the run had to end"]
    copy.close()
