"""A model that was talked into it sends patches that are cheap to write and dear to read."""

from __future__ import annotations

import json

import pytest
from victim import Victim

PATCHES = {
    "names": "'diff --git ' + ' ' * 500_000 + 'x\\nnew file mode 1\\n'",
    "blank lines before": "'\\n' * 200_000 + 'x'",
    "blank lines after": "'x' + '\\n' * 200_000",
    "blank lines in a section": "'*** Begin Patch\\n*** Update File: a.txt\\n@@\\n-one\\n+two\\n' + '\\n' * 200_000 + 'x\\n*** End Patch'",
    "blank lines in a hunk": "'--- a/a.txt\\n+++ b/a.txt\\n@@ -1 +1 @@\\n-three\\n+two\\n' + '\\n' * 200_000 + 'rename from x'",
    "headers": "'--- a\\n+++ b\\n' * 50_000",
    "files": "'diff --git a/x b/x\\nnew file mode 1\\n' * 20_000",
    "a long line that is nearly there": "'*** Begin Patch\\n*** Update File: long.txt\\n@@\\n-' + 'ab' * 50_000 + 'c\\n+y\\n*** End Patch'",
    "equal lines": "'*** Begin Patch\\n*** Update File: same.txt\\n@@\\n' + ' x\\n' * 20_000 + '-x\\n+z\\n*** End Patch'",
    "anchors": "'*** Begin Patch\\n*** Update File: same.txt\\n' + '@@ x\\n' * 5_000 + '-y\\n+z\\n*** End Patch'",
    "numbers": "'--- a/long.txt\\n+++ b/long.txt\\n@@ -' + '9' * 100_000 + ' +1 @@\\n-x\\n+y\\n'",
}


@pytest.mark.hostile_long
def test_patches_made_to_take_hours_are_refused(victim: Victim) -> None:
    victim.write("a.txt", "one\n")
    victim.write("long.txt", ("ab" * 2_000 + "\n") * 2_000)
    victim.write("same.txt", "x\n" * 60_000 + "y\n")
    before = {path.name: path.read_bytes() for path in victim.folder.iterdir()}
    attempt = "try:\n    print(apply_patch({}))\nexcept Exception as refused:\n    print({!r}, str(refused)[:60])"
    attempts = [attempt.format(patch, name) for name, patch in PATCHES.items()]
    model = victim.model(
        *("\n".join(attempts[n : n + 4]) for n in range(0, len(attempts), 4)),
        "print(read_file('a.txt')['content'])",
        "FINAL('Nothing was done. [a.txt:1-1]')",
    )
    flags = ("--large", "--max-iterations", "20", "--max-tool-calls", "20")
    where = ("--runs-dir", victim.own, "--model", model.name)

    done = victim.sonde("edit", "Look at it", ".", "--yes", "--json", *flags, *where)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["changed"] == []
    told = "".join(model.prompts)
    assert [name for name in PATCHES if f"{name} apply_patch: patch refused" not in told] == []
    assert {path.name: path.read_bytes() for path in victim.folder.iterdir()} == before


@pytest.mark.hostile_long
def test_the_diff_of_a_large_change_is_made_in_time(victim: Victim) -> None:
    victim.write("a.txt", "".join(f"{n % 150}\n" for n in range(20_000)))
    model = victim.model(
        "lines = ''.join(f'-{n % 150}\\n+{n * 7 % 150}\\n' for n in range(20_000))\n"
        "print(apply_patch('*** Begin Patch\\n*** Update File: a.txt\\n@@\\n' + lines + '*** End Patch')['applied'])",
        "print(read_file('a.txt', 1, 3)['content'])",
        "FINAL('Every line was replaced. [a.txt:1-3]')",
    )

    done = victim.sonde(
        "edit", "Replace", ".", "--yes", "--large", "--json", "--model", model.name, "--runs-dir", victim.own
    )

    assert json.loads(done.stdout)["changed"] == ["a.txt"], done.stderr
    assert (victim.folder / "a.txt").read_text().startswith("0\n7\n14\n")
