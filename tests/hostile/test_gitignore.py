"""A .gitignore that a stranger wrote: it may hide files, and nothing else."""

from __future__ import annotations

import os

import pytest
from victim import Victim


@pytest.mark.hostile_long
def test_a_gitignore_made_to_take_hours_or_to_lead_elsewhere_only_hides_and_that_is_said(victim: Victim) -> None:
    for number in range(100):
        victim.write(f"{'a' * 200}{number}.txt", "the word alpha\n")
    victim.write(".gitignore", "\n".join(f"{'*a' * 80}?????????b{n}" for n in range(30)) + "\nhidden.txt\n")
    victim.write("hidden.txt", "the word alpha\n")
    victim.write("piped/a.txt", "the word alpha\n")
    os.mkfifo(victim.folder / "piped" / ".gitignore")
    victim.write("linked/b.txt", "the word alpha\n")
    (victim.folder / "linked" / ".gitignore").symlink_to("/dev/zero")

    done = victim.sonde("ask", "alpha?", ".", "--runs-dir", victim.own)

    assert done.returncode == 0, done.stderr
    assert "hidden.txt; --no-ignore" in done.stderr
    assert "not applied" in done.stderr
    assert (victim.folder / "hidden.txt").exists()
