"""A stranger's files say that they have terabytes, which are holes and take no room on a disk, or hold text on which a parser spends
minutes or breaks. Whoever reads them whole looks at the size first, and says in one line what is wrong.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from victim import Victim, one_in_make_test

from journeys.journey import SONDE, Shown

TRACE = "c" * 32
SPAN = {
    "name": "own",
    "context": {"trace_id": TRACE, "span_id": "d" * 16},
    "start_time": "2026-01-01T00:00:00Z",
    "end_time": "2026-01-01T00:00:01Z",
    "status_code": "ERROR",
    "attributes": {},
}


def hole(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.truncate(1 << 40)


def bounded(victim: Victim, *words: str | Path) -> Shown:
    """One command with 3 GB of address space: reading a hole would end it with a traceback."""
    limits = f"ulimit -v 3000000; ulimit -t {victim.cpu_seconds}"
    return victim.run("sh", "-c", f'{limits}; exec "$@"', "sh", SONDE, *words)


@pytest.mark.hostile_long
def test_a_hole_among_controls_and_as_a_taxonomy(victim: Victim) -> None:
    victim.write("traces.jsonl", json.dumps(SPAN) + "\n")
    hole(victim.folder / "controls/mine.yaml")

    done = bounded(
        victim, "comply", TRACE, "--source", "traces.jsonl", "--controls-file", "controls", "--runs-dir", victim.own
    )
    named = bounded(
        victim, "rca", TRACE, "--source", "traces.jsonl", "--taxonomy", "controls/mine.yaml", "--runs-dir", victim.own
    )

    assert (done.returncode, named.returncode) == (2, 2)
    assert "it has more than" in done.stderr and "it has more than" in named.stderr
    assert "Traceback" not in done.stderr + named.stderr


@pytest.mark.hostile_long
def test_holes_among_config_snapshots_are_compared_by_size_and_time(victim: Victim) -> None:
    victim.write("traces.jsonl", json.dumps(SPAN) + "\n")
    for number in (1, 2):
        victim.write(f"configs/{number}/metadata.json", json.dumps({"created_at": f"2025-12-31T23:0{number}:00Z"}))
        hole(victim.folder / f"configs/{number}/weights.bin")
        os.utime(victim.folder / f"configs/{number}/weights.bin", (number, number))

    done = bounded(victim, "incident", "--source", "traces.jsonl", "--configs", "configs", "--runs-dir", victim.own)

    assert done.returncode == 0, done.stderr
    assert "weights.bin" in done.stdout


@pytest.mark.parametrize("name", one_in_make_test({"the result": "result.json", "the answer": "answer.md"}))
def test_a_hole_in_a_run_folder_is_not_exported(victim: Victim, name: str) -> None:
    victim.write("notes.txt", "the service is payments\n")
    victim.call("ask", "Which service?", "notes.txt", "--runs-dir", "runs")
    run = next(path.parent for path in victim.folder.glob("runs/*/events.jsonl"))
    hole(run / name)

    done = bounded(victim, "export", run.name, "--runs-dir", "runs", "-o", victim.own / "gift.tar.gz")

    assert done.returncode == 2 and "cannot be exported: it has more than" in done.stderr
    assert not (victim.own / "gift.tar.gz").exists()


@pytest.mark.hostile_long
def test_a_hole_in_a_batch_folder(victim: Victim) -> None:
    victim.write("batch.jsonl", json.dumps({"id": "a", "question": "Which?", "paths": ["notes.txt"]}) + "\n")
    victim.write("notes.txt", "the service is payments\n")
    folder = victim.folder / "batches"
    first = bounded(victim, "batch", "batch.jsonl", "--runs-dir", folder, "--name", "one")
    hole(folder / "batch-one/results.jsonl")
    hole(folder / "two/issues.json")

    again = bounded(victim, "batch", "batch.jsonl", "--runs-dir", folder, "--name", "one")
    compared = bounded(
        victim, "batch", "batch.jsonl", "--runs-dir", folder, "--name", "new", "--compare", folder / "two"
    )

    assert first.returncode == 0, first.stderr
    assert again.returncode == 2 and "too long for a result" in again.stderr
    assert compared.returncode == 2 and "it has more than" in compared.stderr


@pytest.mark.hostile_long
def test_pipes_and_holes_in_place_of_gits_own_files(victim: Victim) -> None:
    victim.write(".git", "gitdir: planted\n")
    victim.write("planted/HEAD", "ref: refs/heads/main\n")
    os.mkfifo(victim.folder / "planted/config")
    hole(victim.folder / "planted/commondir")
    model = victim.model("print(execute_command('git status'))", "FINAL('done')")

    done = victim.sonde(
        "edit", "look", "--model", model.name, "--allow-command", "git status", "--runs-dir", victim.own
    )

    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr


TEXTS = {
    "a number to the base 60": "- control_id: " + "1:" * 400 + "1.5",
    "a number that takes minutes": "- severity: 0x" + "f" * 900_000,
    "deep JSON with tabs": "\t" + "[" * 200_000,
}


@pytest.mark.parametrize("text", one_in_make_test(TEXTS))
def test_controls_that_break_a_parser(victim: Victim, text: str) -> None:
    victim.write("traces.jsonl", json.dumps(SPAN) + "\n")
    victim.write("mine.yaml", text)

    done = victim.call(
        "comply", TRACE, "--source", "traces.jsonl", "--controls-file", "mine.yaml", "--runs-dir", victim.own
    )

    assert done.returncode == 2 and "mine.yaml" in done.stderr


def test_deep_json_in_a_config_snapshot(victim: Victim) -> None:
    victim.write("traces.jsonl", json.dumps(SPAN) + "\n")
    victim.write("configs/a/metadata.json", "[" * 200_000)

    done = victim.call("incident", "--source", "traces.jsonl", "--configs", "configs", "--runs-dir", victim.own)

    assert done.returncode == 2 and "metadata.json" in done.stderr


SETTINGS = {
    "deep": "a = " + "[" * 50_000,
    "a key of many parts": ".".join("a" * 40_000) + " = 1",
    "a number that nobody may print": "sampling_seed = 0x" + "f" * 90_000,
    "too many digits": "sampling_seed = " + "9" * 90_000,
}


@pytest.mark.parametrize("text", SETTINGS.values(), ids=SETTINGS)
def test_a_sonde_toml_that_breaks_a_parser(victim: Victim, text: str) -> None:
    victim.write("sonde.toml", text)

    done = victim.call("config")

    assert done.returncode == 2 and "sonde.toml" in done.stderr
