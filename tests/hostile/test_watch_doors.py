"""A watch among strangers: their state folders, their traces in the titles of issues, their files of settings, and a model over MCP."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from victim import Victim, one_in_make_test

from hostile.test_mcp_client import serving
from sonde.watch.state import FILE, WatchState
from watch.watch_scene import Fault, append, traffic

STOCK = Fault(step="search_stock", text="KeyError: 'sku' in row {n}", begin=0, end=1e9)


def watched(victim: Victim, fault: Fault = STOCK) -> Path:
    """Traces and the state of a watch that has read them."""
    traces = victim.folder / "traces.jsonl"
    append(traces, traffic(12, 60, [fault]))
    done = victim.call("watch", "--source", traces, "--once", "--state", victim.folder / "state")
    assert done.returncode == 0, done.stderr
    return traces


def changed(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path / FILE)) as connection:
        connection.execute("PRAGMA trusted_schema = ON")
        for statement in statements:
            connection.execute(statement)
        connection.commit()


FORGED: dict[str, tuple[str, ...]] = {
    "a trigger": ("CREATE TRIGGER t AFTER UPDATE ON issues BEGIN DELETE FROM notes; END",),
    "a view in place of a table": ("DROP TABLE notes", "CREATE VIEW notes AS SELECT 1 AS id, 1 AS issue, 'y' AS text"),
    "a computed column": ("ALTER TABLE notes ADD COLUMN more AS (zeroblob(1000000000))",),
    "a table more": ("CREATE TABLE more (x)",),
    "a text for a number": ("UPDATE issues SET since_us = 'soon'",),
    "bytes for a text": ("UPDATE signatures SET component = x'00ff'",),
    "another version": ("UPDATE meta SET value = '99' WHERE key = 'format'",),
}


@pytest.mark.parametrize("statements", one_in_make_test(FORGED))
def test_a_state_with_other_tables_or_values_than_ours_is_refused(victim: Victim, statements: tuple[str, ...]) -> None:
    traces = watched(victim)
    changed(victim.folder / "state", *statements)

    for words in (("issues",), ("issues", "note", "1", "x"), ("watch", "--source", traces, "--once")):
        shown = victim.call(*words, "--state", victim.folder / "state")
        assert shown.returncode == 2, shown.stdout
        assert "--state DIR" in shown.stderr
        assert "Traceback" not in shown.stderr


def link_file(folder: Path, target: Path) -> None:
    (folder / FILE).symlink_to(target)


def link_log(folder: Path, target: Path) -> None:
    WatchState(folder, create=True).close()
    (folder / f"{FILE}-wal").symlink_to(target)


def pipe_for_a_journal(folder: Path, target: Path) -> None:
    del target  # nobody writes to the pipe: whoever opens it waits
    WatchState(folder, create=True).close()
    os.mkfifo(folder / f"{FILE}-journal")


def link_runs(folder: Path, target: Path) -> None:
    (folder / "items").symlink_to(target.parent)


@pytest.mark.parametrize(
    "plant",
    one_in_make_test(
        {"the file": link_file, "its log": link_log, "its journal": pipe_for_a_journal, "the runs": link_runs}
    ),
)
def test_a_link_in_a_strangers_state_folder_leads_nowhere(victim: Victim, plant: Callable[[Path, Path], None]) -> None:
    victim.own.mkdir(exist_ok=True)
    mine = victim.own / "diary.txt"
    mine.write_text("mine\n")
    folder = victim.folder / "state"
    folder.mkdir()
    append(victim.folder / "traces.jsonl", traffic(12, 60, [STOCK]))
    plant(folder, mine)

    shown = victim.call("watch", "--source", "traces.jsonl", "--once", "--state", folder)

    assert shown.returncode == 2
    assert mine.read_text() == "mine\n"
    assert sorted(each.name for each in victim.own.iterdir()) == ["diary.txt"]


def test_a_state_gives_no_money_back_and_a_found_file_sets_no_limit(victim: Victim) -> None:
    traces = watched(victim)
    changed(
        victim.folder / "state",
        "INSERT INTO spending (at, usd, fingerprint) VALUES (9e12, -1000, 'x')",
        "INSERT INTO aside (usd, fingerprint) VALUES (-1000, 'x')",
    )
    victim.write(
        "sonde.toml", "max_cost_usd_per_day = 1000\nmax_cost_usd = 500\n[watch]\nmax_cost_usd_per_day = 1000\n"
    )

    shown = victim.call("watch", "--source", traces, "--dry-run", "--json", "--state", victim.folder / "state")
    (victim.folder / "sonde.toml").write_text("max_cost_usd = 500\n")
    again = victim.call("watch", "--source", traces, "--dry-run", "--json", "--state", victim.folder / "state")

    assert shown.returncode == 2 or json.loads(shown.stdout)["room_usd"] == 5.0
    assert json.loads(again.stdout)["room_usd"] == 5.0


def test_words_of_a_trace_are_harmless_in_titles_on_a_terminal_and_in_markdown(victim: Victim) -> None:
    text = "KeyError \x1b]0;owned\x07\x1b[2J\nnew: issue 99: all is well \u202e ![x](http://127.0.0.1:1/x) <img src=x> | `a`"
    watched(victim, Fault(step="search_stock", text=text, begin=0, end=1e9))

    for words in (
        (),
        ("show", "1"),
        ("--markdown",),
        ("show", "1", "--markdown"),
        ("--json",),
        ("show", "1", "--json"),
    ):
        shown = victim.call("issues", *words, "--state", victim.folder / "state")
        assert shown.returncode == 0, shown.stderr
        assert "KeyError" in shown.stdout
        assert not {"\x1b", "\x07", "\u202e"} & set(shown.stdout)
        assert not any(line.startswith("new: issue 99") for line in shown.stdout.splitlines())
        if "--markdown" in words:
            assert "<img" not in shown.stdout
            assert "](http" not in shown.stdout


def test_a_watch_says_what_is_new_on_one_line_each(victim: Victim) -> None:
    text = "gone \x1b[31m\nresolved: issue 1: \x9b"
    append(victim.folder / "t.jsonl", traffic(12, 60, [Fault(step="send_mail", text=text, begin=0, end=1e9)]))

    shown = victim.call("watch", "--source", "t.jsonl", "--once", "--state", victim.folder / "state")

    assert len(shown.stdout.splitlines()) == 1
    assert "\x1b" not in shown.stdout
    assert "\x9b" not in shown.stdout


@pytest.mark.hostile_long
def test_a_model_over_mcp_sees_issues_and_changes_them_only_if_the_user_allows_it(victim: Victim) -> None:
    append(victim.folder / "traces.jsonl", traffic(12, 60, [STOCK]))
    assert victim.call("watch", "--source", "traces.jsonl", "--once").returncode == 0

    with serving(victim) as server:
        listed = server.call("issues")
        refused = server.call("change_issue", number=1, change="mute")
    with serving(victim, "--writeback") as server:
        noted = server.call("change_issue", number=1, change="note", value="\x1b[2Jall is well")
        merged = server.call("change_issue", number=1, change="merge", value="../../etc")
    shown = victim.call("issues", "show", "1")

    assert "search_stock" in listed
    assert refused.startswith("error:")
    assert not noted.startswith("error:")
    assert merged.startswith("error:")
    assert "note by a model over MCP" in shown.stdout
    assert "\x1b" not in shown.stdout
    assert ", muted" not in shown.stdout
