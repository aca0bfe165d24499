"""The embedded store: what is kept, once; what is removed; who may read and write it at the same time."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest
from otlp_bodies import START, as_json, request, span, span_id, trace_id, values

from sonde.contexts.traces.filestore import FileStore
from sonde.contexts.traces.span import Span
from sonde.contexts.traces.store import TraceQuery
from sonde.errors import ConfigError
from sonde.watch.intake import Delivery, Intake, NotKept, Retention
from sonde.watch.otlp import Json, read_request


def spans(*raw: Json) -> tuple[Span, ...]:
    return read_request(as_json(request(*raw)), "application/json").spans


class Clock:
    def __init__(self) -> None:
        self.now = 1_760_000_000.0

    def __call__(self) -> float:
        return self.now


def names(store: FileStore, trace: int = 1) -> list[str]:
    return [each.name for each in store.summaries(trace_id(trace))]


def test_a_store_is_read_like_a_trace_file_while_it_is_written(tmp_path: Path) -> None:
    with Intake(tmp_path / "store") as intake:
        intake.accept(spans(span(1), span(2, parent=1))).settled()
        with FileStore(tmp_path / "store") as store:
            before = store.fingerprint()
            assert names(store) == ["step 1", "step 2"]
            intake.accept(spans(span(3, parent=1), span(9, trace=2))).settled()

            assert names(store) == ["step 1", "step 2", "step 3"]
            assert [row.span_count for row in store.traces(TraceQuery()).rows] == [3, 1]
            assert store.search("question 3") == [(trace_id(1), span_id(3))]
        with FileStore(tmp_path / "store" / "spans.sqlite") as store:
            assert store.fingerprint() != before


def test_a_span_that_comes_again_is_kept_once_and_without_a_word(tmp_path: Path) -> None:
    with Intake(tmp_path) as intake:
        for _ in range(2):
            assert intake.accept(spans(span(1), span(1), span(2))).settled() == []
    with Intake(tmp_path) as intake:
        assert intake.accept(spans(span(2))).settled() == []
    with FileStore(tmp_path) as store:
        assert names(store) == ["step 1", "step 2"]
        assert store.gaps(trace_id(1)) == []
        assert store.traces(TraceQuery()).rows[0].span_count == 2


def test_other_content_under_a_known_id_is_a_gap_and_under_another_trace_refused(tmp_path: Path) -> None:
    other = values(("input.value", {"stringValue": "something else"}))
    with Intake(tmp_path) as intake:
        intake.accept(spans(span(1))).settled()
        for _ in range(3):
            intake.accept(spans(span(1, attributes=other))).settled()
        (refusal,) = intake.accept(spans(span(1, trace=2), span(2, trace=2))).settled()

    assert span_id(1) in refusal
    with FileStore(tmp_path) as store:
        assert store.span(span_id(1)).attributes["input.value"] == "question 1"
        assert len([gap for gap in store.gaps(trace_id(1)) if "came again" in gap]) == 1
        assert names(store, 2) == ["step 2"]


def test_traces_older_than_the_retention_go_whole_by_the_time_they_arrived(tmp_path: Path) -> None:
    clock = Clock()
    with Intake(tmp_path, retention=Retention(days=2), clock=clock) as intake:
        late = span(3, trace=2, startTimeUnixNano=str(START + 10**18))  # the sender's clock says next century
        intake.accept(spans(span(1), span(2), late)).settled()
        clock.now += 86_400
        intake.accept(spans(span(4, parent=1), span(5, trace=3))).settled()
        clock.now += 86_400 + 120
        intake.accept(spans(span(6, trace=4))).settled()
        intake.accept(spans(span(7, trace=4))).settled()
    assert intake.expired == 4
    with FileStore(tmp_path) as store:
        assert sorted(row.trace_id for row in store.traces(TraceQuery()).rows) == [trace_id(3), trace_id(4)]
        assert store.search("question 1") == []
        assert store.search("question 5") == [(trace_id(3), span_id(5))]
    with sqlite3.connect(tmp_path / "spans.sqlite") as connection:
        connection.execute("INSERT INTO words(words) VALUES ('integrity-check')")
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def test_a_store_stays_within_its_room_and_keeps_the_newest(tmp_path: Path) -> None:
    text = values(("input.value", {"stringValue": "word " * 2000}))
    with Intake(tmp_path, retention=Retention(gb=0.001)) as intake:
        for number in range(1, 200):
            intake.accept(spans(span(number, trace=number, attributes=text))).settled()
    assert (tmp_path / "spans.sqlite").stat().st_size < 1_500_000
    with FileStore(tmp_path) as store:
        rows = store.traces(TraceQuery(limit=1000)).rows
        assert rows[-1].trace_id == trace_id(199)
        assert 10 < len(rows) < 150
        assert [int(row.trace_id, 16) for row in rows] == list(range(200 - len(rows), 200))


def test_a_store_shrinks_when_it_may_keep_less(tmp_path: Path) -> None:
    text = values(("input.value", {"stringValue": "word " * 20_000}))
    with Intake(tmp_path) as intake:
        intake.accept(spans(*(span(number, trace=number, attributes=text) for number in range(1, 60)))).settled()
    assert (tmp_path / "spans.sqlite").stat().st_size > 4_000_000
    with Intake(tmp_path, retention=Retention(gb=0.002)) as intake:
        number = 100
        while intake._pages("page_count") > 2_000_000:
            number += 1
            intake.accept(spans(span(number, trace=number))).settled()
    assert (tmp_path / "spans.sqlite").stat().st_size < 2_500_000


def test_numbers_are_not_used_again_after_everything_has_gone(tmp_path: Path) -> None:
    clock = Clock()
    for number in (1, 2):
        with Intake(tmp_path, retention=Retention(days=1), clock=clock) as intake:
            intake.accept(spans(span(number, trace=number))).settled()
        clock.now += 3 * 86_400
    with sqlite3.connect(tmp_path / "spans.sqlite") as connection:
        assert connection.execute("SELECT id FROM spans").fetchall() == [(2,)]
    connection.close()


def test_a_full_queue_refuses_and_loses_nothing_that_was_accepted(tmp_path: Path) -> None:
    with Intake(tmp_path, queued_bytes=1000) as intake:
        blocker = sqlite3.connect(tmp_path / "spans.sqlite", isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")  # the writer has to wait
        taken: list[Delivery] = []
        with suppress(NotKept):
            taken.extend(intake.accept(spans(span(number))) for number in range(1, 100))
        assert 1 <= len(taken) < 99
        blocker.execute("ROLLBACK")
        blocker.close()
        assert [delivery.settled() for delivery in taken] == [[]] * len(taken)
    with FileStore(tmp_path) as store:
        assert len(store.summaries(trace_id(1))) == len(taken)


def test_a_full_disk_is_told_and_the_next_spans_are_kept(tmp_path: Path) -> None:
    with Intake(tmp_path) as intake:
        intake.accept(spans(span(1))).settled()
        intake._connection.execute("PRAGMA max_page_count = 60")
        big = values(("input.value", {"stringValue": "x" * 1_000_000}))
        with pytest.raises(NotKept, match="full"):
            intake.accept(spans(span(2, attributes=big))).settled()
        intake._connection.execute("PRAGMA max_page_count = 1000000")
        intake.accept(spans(span(3))).settled()
    with FileStore(tmp_path) as store:
        assert names(store) == ["step 1", "step 3"]


def test_one_process_writes_a_store(tmp_path: Path) -> None:
    with Intake(tmp_path), pytest.raises(ConfigError):
        Intake(tmp_path)


def test_a_store_with_other_tables_is_refused_by_readers_and_writers(tmp_path: Path) -> None:
    with Intake(tmp_path) as intake:
        intake.accept(spans(span(1))).settled()
    with sqlite3.connect(tmp_path / "spans.sqlite") as connection:
        connection.execute("CREATE TRIGGER planted AFTER INSERT ON spans BEGIN DELETE FROM spans; END")
    connection.close()
    with pytest.raises(ConfigError):
        FileStore(tmp_path)
    with pytest.raises(ConfigError):
        Intake(tmp_path)


def test_a_store_is_private_and_not_made_through_a_link(tmp_path: Path) -> None:
    with Intake(tmp_path / "store"):
        pass
    assert (tmp_path / "store").stat().st_mode & 0o077 == 0
    assert (tmp_path / "store" / "spans.sqlite").stat().st_mode & 0o077 == 0
    (tmp_path / "trap").mkdir()
    (tmp_path / "trap" / "spans.sqlite").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError):
        Intake(tmp_path / "trap")
    assert not (tmp_path / "elsewhere").exists()


def test_a_span_that_cannot_be_removed_ends_nothing(tmp_path: Path) -> None:
    clock = Clock()
    with Intake(tmp_path, retention=Retention(days=1), clock=clock) as intake:
        intake.accept(spans(span(1))).settled()
        with closing(sqlite3.connect(tmp_path / "spans.sqlite")) as connection, connection:
            connection.execute("UPDATE bodies SET body = x'c1'")
        clock.now += 3 * 86_400
        for number in (2, 3):
            assert intake.accept(spans(span(number, trace=number))).settled() == []
