"""A stranger's run folder holds links, pipes and devices instead of files. Every command that looks at runs still ends."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

import pytest
from victim import Victim

from journeys.journey import SONDE

SECRET = "the victim's own words"


def plant(run: Path, name: str, kind: str, victim: Victim) -> None:
    (run / name).unlink(missing_ok=True)
    match kind:
        case "zero":
            (run / name).symlink_to("/dev/zero")
        case "pipe":
            os.mkfifo(run / name)
        case "link":
            (run / name).symlink_to(victim.home / "secret.txt")
        case _:
            with (run / name).open("wb") as file:
                file.truncate(1 << 40)


@pytest.mark.hostile_long
@pytest.mark.parametrize("kind", ["zero", "pipe", "link", "hole"])
def test_runs_are_listed_and_shown_whatever_lies_in_their_folders(victim: Victim, kind: str) -> None:
    (victim.home / "secret.txt").write_text(SECRET)
    victim.write("notes.txt", "the service is payments\n")
    victim.sonde("ask", "Which service?", "notes.txt", "--runs-dir", "runs")
    run = next(path.parent for path in victim.folder.glob("runs/*/events.jsonl"))
    record = shutil.copytree(run, run.with_name(run.name + "a"))
    plant(record, "run_record.json", kind, victim)
    both = shutil.copytree(run, run.with_name(run.name + "b"), symlinks=True)
    plant(both, "run_record.json", kind, victim)
    plant(both, "events.jsonl", kind, victim)

    words = [
        ("runs",),
        ("runs", "show", record.name),
        ("runs", "show", both.name),
        ("replay", both.name),
        ("resume", both.name),
        ("branch", both.name, "--turn", "1"),
        ("diff", both.name, run.name),
        ("ask", "And then?", "--continue", both.name),
        ("publish", both.name),
        ("export", both.name),
        ("export", both.name, "--html"),
        ("export", record.name, "--html"),
    ]
    done = [victim.sonde(*each, "--runs-dir", "runs") for each in words]

    assert done[0].returncode == 0 and run.name in done[0].stdout
    assert all(each.returncode in (0, 1, 2) for each in done)
    assert not any(SECRET in each.stdout + each.stderr for each in done)


def test_an_export_with_holes_of_gigabytes_is_refused_at_once(victim: Victim) -> None:
    header = tarfile.TarInfo("r/events.jsonl")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        header.pax_headers = {
            "GNU.sparse.major": "0",
            "GNU.sparse.minor": "1",
            "GNU.sparse.name": "r/events.jsonl",
            "GNU.sparse.size": "6000000000",
            "GNU.sparse.map": "6000000000,0",
        }
        archive.addfile(header)
    victim.write("gift.tar.gz", gzip.compress(packed.getvalue()))

    done = victim.run("sh", "-c", f"ulimit -v 3000000; exec {SONDE} runs import gift.tar.gz --runs-dir {victim.own}")

    assert done.returncode == 2
    assert "is not an exported run" in done.stderr


COLUMNS = "trace_rowid, span_id, parent_id, name, span_kind, start_time, end_time, status_code, status_message, events"
OTHERS = "CREATE TABLE projects (id INTEGER PRIMARY KEY, name); CREATE TABLE traces (id INTEGER PRIMARY KEY, trace_id, project_rowid);"
SPANS = f"CREATE TABLE spans (id INTEGER PRIMARY KEY, {COLUMNS}, attributes"
DATABASES = {
    "a join that multiplies": f"CREATE TABLE projects (id, name); CREATE TABLE traces (id, trace_id, project_rowid);"
    f"CREATE TABLE spans (id, {COLUMNS}, attributes);",
    "columns that are computed": f"{OTHERS}{SPANS} AS ('{{\"a\":\"' || hex(zeroblob(500000)) || '\"}}'));",
    "a table that computes its rows": f"{OTHERS}CREATE VIRTUAL TABLE spans USING fts5({COLUMNS}, attributes);",
    "one long value for every row": f"{OTHERS}{SPANS}); INSERT INTO spans (trace_rowid) SELECT 1 FROM numbers;"
    f"""ALTER TABLE spans ADD COLUMN more DEFAULT '{"x" * 1_000_000}';""",
}


@pytest.mark.parametrize("name", DATABASES)
def test_a_database_that_says_more_than_it_holds_is_refused(victim: Victim, name: str) -> None:
    place = victim.folder / "phoenix.db"
    with closing(sqlite3.connect(place)) as made, made:
        made.execute("CREATE TABLE numbers (n)")
        made.executemany("INSERT INTO numbers VALUES (?)", [[number] for number in range(1000)])
        made.executescript(DATABASES[name])
        made.executescript("INSERT INTO projects SELECT 1, 'p'; INSERT INTO traces SELECT 1, 'abc', 1;")
        if name != "one long value for every row":
            made.executescript("INSERT INTO spans (trace_rowid, span_id) SELECT 1, n FROM numbers LIMIT 9;")
        else:  # as if the value stood in the column that is read
            made.executescript(
                "ALTER TABLE spans RENAME COLUMN attributes TO old; ALTER TABLE spans RENAME COLUMN more TO attributes;"
            )

    done = victim.call("rca", "abc", "--source", "phoenix.db", "--runs-dir", victim.own)

    assert done.returncode == 2
    assert "phoenix.db" in done.stderr
    assert sum(each.stat().st_size for each in victim.home.rglob("*") if each.is_file()) < 50_000_000


@pytest.mark.hostile_long
def test_a_row_of_millions_of_values_is_passed_over(victim: Victim) -> None:
    with closing(sqlite3.connect(victim.folder / "phoenix.db")) as made, made:
        made.executescript(
            f"{OTHERS}{SPANS});INSERT INTO projects SELECT 1, 'p'; INSERT INTO traces SELECT 1, 'abc', 1;"
        )
        rows = [("a", "{}"), ("b", f'{{"x": [{"[]," * 20_000_000}0]}}')]
        made.executemany(
            "INSERT INTO spans (trace_rowid, span_id, start_time, attributes) VALUES (1, ?, '2026-01-01T00:00:00', ?)",
            rows,
        )
    limits = f'ulimit -t 60; ulimit -v {1500 << 10}; exec "$@"'  # all of them take more than that

    done = victim.run("sh", "-c", limits, "sh", SONDE, "traces", "overview", "--source", "phoenix.db")

    assert done.returncode == 0, done.stderr
    assert "1 span" in done.stdout


def test_a_parquet_file_of_a_few_bytes_and_millions_of_rows_is_refused(victim: Victim) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    place = victim.folder / "spans.parquet"
    parquet.write_table(arrow.table({"trace_id": arrow.nulls(5_000_000, arrow.string())}), place)
    assert place.stat().st_size < 100_000

    done = victim.call("traces", "ls", "--source", "spans.parquet")

    assert done.returncode == 2
    assert "that is not a trace file" in done.stderr
