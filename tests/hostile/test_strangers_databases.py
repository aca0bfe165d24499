"""Databases of strangers: pipes beside them, journals that name a file of the user, pages that are used many times."""

from __future__ import annotations

import os
import shutil
import struct
from contextlib import closing
from pathlib import Path

import pytest
from victim import Victim, one_in_make_test

from hostile.test_watch_doors import watched
from sonde.contexts.traces.importers import Imported, read
from sonde.disk import open_database
from sonde.viewer.issues import IssueBoard
from sonde.watch.intake import Intake
from sonde.watch.state import FILE, WatchState

JOURNAL_MARK = bytes.fromhex("d9d505f920a163d7")


def stored(victim: Victim) -> Path:
    """A store of traces, as the listener of a watch fills it."""
    with Intake(victim.folder / "store") as intake:
        intake.accept(each.span for each in read(watched(victim)) if isinstance(each, Imported)).settled()
    return victim.folder / "store/spans.sqlite"


@pytest.mark.hostile_long
@pytest.mark.parametrize("part", one_in_make_test({each: each for each in ("-journal", "-wal", "-shm", "")}))
def test_a_pipe_in_a_store_of_traces_is_not_waited_for(victim: Victim, part: str) -> None:
    store = stored(victim)
    pipe = store.with_name(store.name + part)
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe)

    shown = [
        victim.sonde("traces", "ls", "--source", "store"),
        victim.sonde("watch", "--once", "--source", "store", "--state", victim.own / "state"),
    ]

    assert [each.returncode for each in shown] == [2, 2]


def test_names_without_end_in_a_store_end_the_command_and_not_the_machine(
    victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stored(victim)
    with closing(open_database(store, "rw")) as forged:
        rows = [(f"{number + 10**6:032x}", f"{number}" + "x" * 2000, 1, 0, number, number) for number in range(1, 30)]
        forged.executemany("INSERT INTO traces VALUES (?, ?, ?, ?, ?, ?)", rows)
        spans = [(-at, trace_id, f"s{at}", "x", at, at) for at, (trace_id, *_) in enumerate(rows, 1)]
        forged.executemany(
            "INSERT INTO spans(id, trace_id, span_id, name, start_us, end_us) VALUES (?, ?, ?, ?, ?, ?)", spans
        )
    monkeypatch.setattr("sonde.contexts.traces.filestore.MOST_HELD", 50_000)

    shown = victim.call("ask", "Why do they fail?", "--source", "store")

    assert shown.returncode == 1, shown.stdout
    assert "at once" in shown.stderr


def journal_that_names(target: Path, database: Path) -> None:
    """What a killed transaction over several files leaves behind: SQLite rolls it back, then removes the file that it names."""
    page = int.from_bytes(database.read_bytes()[16:18], "big")
    pages, name = database.stat().st_size // page, bytes(target)
    head = (JOURNAL_MARK + struct.pack(">5I", 0, 0, pages, 512, page)).ljust(512, b"\0")
    end = struct.pack(">I", (1 << 30) // page + 1) + name + struct.pack(">2I", len(name), sum(name)) + JOURNAL_MARK
    database.with_name(f"{database.name}-journal").write_bytes(head + end)


DOORS: dict[str, tuple[str, ...]] = {
    "a state": ("issues", "--state", "state"),
    "a watch": ("watch", "--once", "--source", "traces.jsonl", "--state", "state"),
    "a store": ("traces", "ls", "--source", "store"),
    "a listener": ("watch", "--listen", "127.0.0.1:0", "--state", "other"),
}


@pytest.mark.parametrize("words", one_in_make_test(DOORS))
def test_no_journal_of_a_stranger_removes_a_file(victim: Victim, words: tuple[str, ...]) -> None:
    mine = victim.own / "diary.txt"
    mine.write_text("mine\n")
    store = stored(victim)
    for database in (store, victim.folder / "state" / FILE):
        journal_that_names(mine, database)
    shutil.copytree(store.parent, victim.folder / "other/traces")

    shown = victim.call(*words)

    assert shown.returncode == 2, shown.stdout
    assert "names another file" in shown.stderr
    assert mine.read_text() == "mine\n"


def test_a_state_whose_texts_share_their_pages_is_refused(victim: Victim) -> None:
    watched(victim)
    with WatchState(victim.folder / "state") as state:
        rows = [(number, f"note-{number:04}-" + "x" * 100_000) for number in range(1, 20)]
        state.change_many("INSERT INTO notes VALUES (?, 1, 0, 'me', ?)", rows)
    file = victim.folder / "state" / FILE
    data = bytearray(file.read_bytes())
    places = [data.index(text[:10].encode()) + 10 for _, text in rows]
    ends = [next(at for at in range(place, len(data)) if data[at] != ord("x")) for place in places]
    for end in ends:  # where the number of the first page with the rest of the text stands
        data[end : end + 4] = data[ends[0] : ends[0] + 4]
    file.write_bytes(data)
    with closing(open_database(file)) as forged:
        assert forged.execute("SELECT count(*), min(length(text)) FROM notes").fetchall() == [(19, 100_010)]

    shown = victim.call("issues", "show", "1", "--state", "state")

    assert shown.returncode == 2
    assert "--state DIR" in shown.stderr


def test_a_number_beyond_all_issues_is_no_issue(victim: Victim) -> None:
    watched(victim)

    shown = victim.call("issues", "show", "99999999999999999999", "--state", "state")

    assert shown.returncode == 2
    assert "there is no issue" in shown.stderr


FIGURES: dict[str, str] = {
    "a note of no day": "INSERT INTO notes (issue, at, author, text) VALUES (1, 9e999, 'me', 'x')",
    "windows without end": "UPDATE meta SET value = 'inf' WHERE key = 'every_s'",
    "a sign that only looks like a digit": "UPDATE meta SET value = '²' WHERE key = 'window'",
    "a number of 5,000 digits": f"UPDATE meta SET value = '{'9' * 5000}' WHERE key = 'window'",
}


@pytest.mark.parametrize("statement", one_in_make_test(FIGURES))
def test_figures_that_are_no_times_break_neither_the_command_nor_the_page(victim: Victim, statement: str) -> None:
    watched(victim)
    with closing(open_database(victim.folder / "state" / FILE, "rw")) as forged:
        forged.execute(statement)

    shown = victim.call("issues", "show", "1", "--state", "state")
    marked = victim.call("issues", "show", "1", "--markdown", "--state", "state")
    if shown.returncode == 0:
        with closing(IssueBoard(victim.folder / "state")) as board:
            assert board.issue(1)["number"] == 1
            assert board.listed()["watch"]

    assert shown.returncode == marked.returncode
    assert shown.returncode == 0 or "--state DIR" in shown.stderr
