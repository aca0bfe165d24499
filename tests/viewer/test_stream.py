"""Following a journal: slim events, whole ones on demand, and honest about what it finds in the file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from runs.streams import Teller, TickingClock, write_story
from sonde.core.events import HostReturned, Noted
from sonde.runs.recorder import Recorder
from sonde.runs.rundir import NoSuchRun, RunDir
from sonde.viewer.stream import RunStream, slim


def test_slim_events_stay_small_whatever_a_run_holds(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "a")
    journal = run.journal()
    recorder = Recorder(TickingClock(), journal)
    big = {"rows": [{"text": "x" * 1000}] * 1000}
    recorder.emit(HostReturned(turn=1, ordinal=1, name="t", args=big, args_hash="h", ok=True, result=big))
    journal.close()

    stream = RunStream(run.path)

    assert len(str(stream.news()["events"][0])) < 2_000
    assert stream.full([0])[0]["result"] == big


def test_what_is_read_in_pieces_is_what_is_read_at_once(tmp_path: Path) -> None:
    whole = write_story(tmp_path, "a")
    data = whole.journal_path.read_bytes()
    growing = RunDir.create(tmp_path, "b")
    stream = RunStream(growing.path)
    pieces: list[dict[str, Any]] = []
    with growing.journal_path.open("wb", buffering=0) as file:
        for at in range(0, len(data), 1_711):
            file.write(data[at : at + 1_711])
            pieces += stream.news(len(pieces) - 1)["events"]

    assert pieces == RunStream(whole.path).news()["events"]


def test_a_torn_end_is_said_once_the_run_is_over(tmp_path: Path) -> None:
    run = write_story(tmp_path)
    os.truncate(run.journal_path, run.journal_path.stat().st_size - 5)

    assert RunStream(run.path).news()["torn"]


def test_a_changed_line_is_named_and_nothing_after_it_is_shown(tmp_path: Path) -> None:
    run = write_story(tmp_path)
    lines = run.journal_path.read_bytes().splitlines(keepends=True)
    lines[9] = lines[9].replace(b"root", b"toor")
    run.journal_path.write_bytes(b"".join(lines))

    news = RunStream(run.path).news()

    assert news["tampered_line"] == 10 and news["total"] == 9


def test_a_journal_that_became_shorter_is_read_anew(tmp_path: Path) -> None:
    run = write_story(tmp_path)
    stream = RunStream(run.path)
    before = stream.news()["total"]
    os.truncate(run.journal_path, run.journal_path.stat().st_size - 5)
    stream.news()
    journal = run.journal()  # drops the torn line, as a resume does
    journal.append(Noted(text="resumed"))
    journal.close()

    assert stream.news()["total"] == before
    assert stream.news()["events"][-1]["text"] == "resumed"


def test_a_missing_journal_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(NoSuchRun):
        RunStream(tmp_path).news()


def test_long_texts_are_cut_with_their_length_named() -> None:
    cut = slim({"type": "code_ran", "stdout": "y" * 100_000}, 3)

    assert len(cut["stdout"]) <= 300 and "100000 chars" in cut["stdout"] and cut["n"] == 3


def test_a_running_story_told_in_memory_is_the_story_on_disk(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "a")
    journal = run.journal()
    teller = Teller(Recorder(TickingClock(), journal))
    teller.start("a", "?")
    journal.close()

    assert [each["type"] for each in RunStream(run.path).news()["events"]] == [
        "run_started",
        "status_changed",
        "state_changed",
    ]
