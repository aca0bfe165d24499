"""A stranger's run folder holds links, pipes and devices instead of files. Every command that looks at runs still ends."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from victim import Victim

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
