"""Listing, filtering and pruning of many runs."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from runs.streams import told, write_long_story, write_story
from sonde.core.events import RunStarted
from sonde.errors import ConfigError
from sonde.runs.catalog import list_runs, prune
from sonde.runs.rundir import RECORD, RunDir


def test_a_run_is_one_line_with_its_cost_and_status(tmp_path: Path) -> None:
    write_story(tmp_path)

    (line,) = list_runs(tmp_path)

    assert (line.run_id, line.status, line.run_type, line.model) == ("run-1", "succeeded", "ask", "gpt-4o-mini")
    assert line.objective.startswith("How many times")
    assert (line.iterations, line.subcalls, line.citations, line.seconds) == (7, 4, 2, 6.0)
    assert line.tokens > 9_000 and line.cost_usd is not None and line.cost_usd > 0.003


def test_going_on_killed_and_broken_runs_are_listed_as_what_they_are(tmp_path: Path) -> None:
    for name in ("going-on", "killed", "broken", "old-record"):
        run = write_story(tmp_path, name)
        if name != "old-record":
            (run.path / RECORD).unlink()
    (tmp_path / "broken" / "events.jsonl").write_text("not json\n")
    (tmp_path / "notes").mkdir()
    (tmp_path / "file.txt").write_text("")
    going_on = RunDir(tmp_path / "going-on").journal()
    resumed = RunDir(tmp_path / "old-record").journal()

    states = {line.run_id: line.status for line in list_runs(tmp_path)}
    going_on.close()
    resumed.close()

    assert states == {
        "going-on": "running",
        "killed": "interrupted",
        "broken": "unreadable",
        "old-record": "running",
    }


def test_a_run_without_a_record_is_listed_with_what_its_journal_adds_up_to(tmp_path: Path) -> None:
    for name in ("ended", "killed"):
        run = write_story(tmp_path, name)
    (run.path / RECORD).unlink()

    ended, killed = sorted(list_runs(tmp_path), key=lambda line: line.run_id)

    assert killed.tokens > 0
    assert (killed.iterations, killed.subcalls, killed.tokens, killed.cost_usd) == (
        ended.iterations,
        ended.subcalls,
        ended.tokens,
        ended.cost_usd,
    )


def test_a_killed_run_with_a_question_of_megabytes_can_be_resumed_and_says_so(tmp_path: Path) -> None:
    journal = RunDir.create(tmp_path, "long").journal()
    start = next(event for event in told() if isinstance(event, RunStarted))
    journal.append(msgspec.structs.replace(start, objective="why? " * 500_000))
    journal.close()

    (summary,) = list_runs(tmp_path)

    assert (summary.status, summary.run_type) == ("interrupted", start.run_type)


def test_runs_are_filtered_by_status_type_and_text(tmp_path: Path) -> None:
    write_story(tmp_path, "a")
    write_story(tmp_path, "b", remark="about Zebras")
    killed = write_story(tmp_path, "c")
    (killed.path / RECORD).unlink()

    assert [line.run_id for line in list_runs(tmp_path, status="interrupted")] == ["c"]
    assert [line.run_id for line in list_runs(tmp_path, text="zebra")] == ["b"]
    assert list_runs(tmp_path, run_type="rca") == []
    assert [line.run_id for line in list_runs(tmp_path, limit=2)] == ["c", "b"]


def test_no_more_runs_are_read_than_asked_for_where_ids_say_when_they_began(tmp_path: Path) -> None:
    for day in (1, 2, 3):
        write_story(tmp_path, f"2026010{day}-000000-000000000")
    write_story(tmp_path, "named")
    record = tmp_path / "20260101-000000-000000000" / RECORD
    record.write_text(record.read_text().replace('"started_at": "20', '"started_at": "30'))  # seen only by who reads it

    assert list_runs(tmp_path)[0].run_id == record.parent.name
    listed = [line.run_id for line in list_runs(tmp_path, limit=2)]
    assert record.parent.name not in listed and len(listed) == 2


def test_a_folder_without_runs_or_that_is_not_there_lists_nothing(tmp_path: Path) -> None:
    assert list_runs(tmp_path) == []
    assert list_runs(tmp_path / "nowhere") == []


def test_pruning_keeps_the_newest_and_whatever_is_going_on(tmp_path: Path) -> None:
    for name in "abcd":
        write_story(tmp_path, name)
    journal = RunDir(tmp_path / "a").journal()

    gone = prune(tmp_path, keep=1)
    journal.close()

    assert sorted(line.run_id for line in gone) == ["b", "c"]
    assert sorted(line.run_id for line in list_runs(tmp_path)) == ["a", "d"]


def test_pruning_by_age_and_status_and_as_a_rehearsal(tmp_path: Path) -> None:
    write_story(tmp_path, "a")

    assert prune(tmp_path, before=datetime(2026, 1, 1, tzinfo=UTC)) == []
    assert prune(tmp_path, before=datetime(2027, 1, 1, tzinfo=UTC), status="failed") == []
    assert len(prune(tmp_path, before=datetime(2027, 1, 1, tzinfo=UTC), dry_run=True)) == 1
    assert len(list_runs(tmp_path)) == 1
    assert len(prune(tmp_path, before=datetime(2027, 1, 1, tzinfo=UTC))) == 1
    assert list_runs(tmp_path) == []


def test_pruning_everything_must_be_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="keep="):
        prune(tmp_path)


def test_keeping_less_than_nothing_is_refused_and_deletes_nothing(tmp_path: Path) -> None:
    write_story(tmp_path)

    with pytest.raises(ConfigError, match="keep"):
        prune(tmp_path, keep=-1)

    assert len(list_runs(tmp_path)) == 1


def test_a_linked_run_folder_is_not_deleted(tmp_path: Path) -> None:
    write_story(tmp_path / "elsewhere", "a")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "a").symlink_to(tmp_path / "elsewhere" / "a")

    prune(tmp_path / "runs", keep=0)

    assert (tmp_path / "elsewhere" / "a" / RECORD).exists()


def test_a_finished_run_is_listed_without_a_look_at_its_journal(tmp_path: Path) -> None:
    run = write_long_story(tmp_path, 1_000)
    (run.path / "events.jsonl").write_text("whoever reads this finds no run\n")

    (summary,) = list_runs(tmp_path)

    assert summary.status == "succeeded"
