"""Run folders: found, read, written whole or not at all; and clear words for what is none."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest

from runs.streams import TickingClock, told, write_story
from sonde.core.events import RunStarted
from sonde.errors import ConfigError
from sonde.runs.journal import JournalUnreadable
from sonde.runs.rundir import ANSWER, RECORD, SUMMARY, NoSuchRun, RunDir, find_run, new_run_id, write_atomically


@pytest.mark.requirement(103)
def test_a_run_folder_holds_the_journal_the_record_and_the_result(tmp_path: Path) -> None:
    run = write_story(tmp_path)
    run.write_text(SUMMARY, "# Summary")
    run.write_text(ANSWER, "Three times.")

    assert sorted(each.name for each in run.path.iterdir()) == [
        "answer.md",
        "events.jsonl",
        "result.json",
        "run_record.json",
        "summary.md",
    ]


def test_the_record_file_has_sorted_keys_and_an_indent_of_two(tmp_path: Path) -> None:
    run = write_story(tmp_path)

    text = (run.path / RECORD).read_text()

    assert text == json.dumps(json.loads(text), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def test_the_record_of_a_killed_run_is_folded_from_its_journal(tmp_path: Path) -> None:
    run = write_story(tmp_path)
    written = run.record()
    (run.path / RECORD).unlink()

    assert run.record() == written


def test_a_half_written_run_has_a_record_that_says_running(tmp_path: Path) -> None:
    run = write_story(tmp_path)
    (run.path / RECORD).unlink()
    os.truncate(run.journal_path, run.journal_path.stat().st_size // 2)

    record = run.record()

    assert record.status == "running" and record.completed_at is None


def test_runs_are_found_by_id_beginning_last_and_folder(tmp_path: Path) -> None:
    first, second = write_story(tmp_path, "20260101-a"), write_story(tmp_path, "20260102-b")

    assert find_run(tmp_path, "20260101-a") == first
    assert find_run(tmp_path, "20260102") == second
    assert find_run(tmp_path, "last") == second
    assert find_run(tmp_path / "elsewhere", first.path) == first


def test_the_last_run_is_the_one_that_began_last_whatever_its_name(tmp_path: Path) -> None:
    start = next(event for event in told() if isinstance(event, RunStarted))
    for name, later in (("b-second", 60.0), ("z-first", 0.0), ("a-third", 120.0)):
        journal = RunDir.create(tmp_path, name).journal()
        journal.append(msgspec.structs.replace(start, at=start.at + later))
        journal.close()

    assert find_run(tmp_path, "last").run_id == "a-third"


@pytest.mark.parametrize("wanted", ["20260101", "nosuch"])
def test_an_ambiguous_or_unknown_name_is_refused_with_names(tmp_path: Path, wanted: str) -> None:
    write_story(tmp_path, "20260101-a")
    write_story(tmp_path, "20260101-b")

    with pytest.raises(NoSuchRun, match="20260101-b"):
        find_run(tmp_path, wanted)


@pytest.mark.parametrize("wanted", ["", " "])
def test_an_empty_name_is_not_the_beginning_of_the_only_run(tmp_path: Path, wanted: str) -> None:
    write_story(tmp_path, "20260101-a")

    with pytest.raises(NoSuchRun, match="is empty"):
        find_run(tmp_path, wanted)


def test_a_folder_that_is_no_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(NoSuchRun, match="not a run folder"):
        find_run(tmp_path, tmp_path)
    with pytest.raises(NoSuchRun, match="no runs in"):
        find_run(tmp_path, "last")
    with pytest.raises(NoSuchRun, match="not a run folder"):
        RunDir(tmp_path).read()


def test_a_journal_cut_off_before_its_first_event_is_no_run(tmp_path: Path) -> None:
    run = write_story(tmp_path)
    (run.path / RECORD).unlink()
    os.truncate(run.journal_path, 10)

    with pytest.raises(NoSuchRun):
        run.record()


def test_tampering_is_named_by_its_line(tmp_path: Path) -> None:
    run = write_story(tmp_path)
    lines = run.journal_path.read_bytes().splitlines(keepends=True)
    lines[6] = lines[6].replace(b"gpt-4o-mini", b"gpt-5-large")
    run.journal_path.write_bytes(b"".join(lines))

    with pytest.raises(JournalUnreadable, match="line 7"):
        run.events()


@pytest.mark.parametrize("content", ["", "{", '{"schema_version": "9.0.0"}', "[1]", '{"run_id": 3}'])
def test_a_record_that_is_none_or_newer_is_refused(tmp_path: Path, content: str) -> None:
    run = write_story(tmp_path)
    (run.path / RECORD).write_text(content)

    with pytest.raises(JournalUnreadable, match=RECORD):
        run.record()


def test_a_folder_is_not_used_twice(tmp_path: Path) -> None:
    RunDir.create(tmp_path, "a")

    with pytest.raises(ConfigError, match="exists already"):
        RunDir.create(tmp_path, "a")


def test_a_place_where_nothing_can_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(ConfigError, match="cannot be made"):
        RunDir.create(tmp_path / "file", "a")


def test_ids_sort_by_time_and_differ() -> None:
    clock = TickingClock()
    ids = [new_run_id(clock) for _ in range(50)]

    assert ids == sorted(ids) and len(set(ids)) == 50


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    write_atomically(target, b"old")

    with pytest.raises(TypeError):
        write_atomically(target, "not bytes")  # pyright: ignore[reportArgumentType]  # the failure that is tested

    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def test_results_that_are_not_json_are_written_as_well_as_can_be(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "a")

    path = run.write_result({"when": {3, 1}, "half": "\ud800", "object": object})

    assert json.loads(path.read_text())["when"] == [1, 3]
