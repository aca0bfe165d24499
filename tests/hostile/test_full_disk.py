"""Code that was talked into it fills the disk through the journal: the run ends at its limit, and says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from victim import Victim

FLAG = "--max-journal-mb"
FILLS = {
    "results of tools": "while True:\n    read_file('big.txt')",
    "arguments of tools": "while True:\n    try:\n        grep('x' * 100_000)\n    except Exception:\n        pass",
    "turns": "print('x' * 1_000_000)\nread_file('big.txt')",
}


@pytest.mark.parametrize("code", FILLS.values(), ids=FILLS)
def test_a_run_takes_no_more_of_the_disk_than_its_journal_may(victim: Victim, code: str) -> None:
    victim.write("big.txt", "a line of some length\n" * 10_000)
    model = victim.model(*[code] * 8)
    limits = ("--max-iterations", "8", "--max-tool-calls", "10000", "--max-wall-time-sec", "60", FLAG, "1")

    done = victim.call(
        "ask", "Which service?", "big.txt", "--model", model.name, "--runs-dir", victim.own, *limits, "--json"
    )

    [run] = victim.own.iterdir()
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "partial"
    assert FLAG in (run / "run_record.json").read_text()
    assert used(run) < 8 << 20
    replayed = victim.call("replay", run, "--max-tool-calls", "10000")
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr


def test_one_large_event_does_not_go_beyond_it(victim: Victim) -> None:
    victim.write("big.txt", "a line of some length\n" * 10_000)
    model = victim.model("FINAL('done')" + " " * 3_000_000)

    done = victim.call("ask", "Which service?", "big.txt", "--model", model.name, "--runs-dir", victim.own, FLAG, "1")

    [run] = victim.own.iterdir()
    assert done.returncode == 0, done.stderr
    assert FLAG in (run / "run_record.json").read_text()
    assert (run / "events.jsonl").stat().st_size < 1 << 20
    replayed = victim.call("replay", run)
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr


def test_a_found_file_does_not_raise_it(victim: Victim) -> None:
    victim.write("sonde.toml", "max_journal_mb = 7777777")

    shown = victim.call("config")

    assert "7777777" not in shown.stdout and "may not set max_journal_mb" in shown.stderr + shown.stdout


def used(run: Path) -> int:
    return sum(path.stat().st_size for path in run.iterdir())
