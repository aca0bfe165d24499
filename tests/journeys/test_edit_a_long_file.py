"""Ines lets a model change one constant in a module of 775 lines, with the limits that `sonde edit` has by itself.

The module is real: the first 775 lines of the standard library's argparse. The model reads it whole before it changes it.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

import pytest
from journey import Person

READ = """
for start in range(1, 776, 200):
    print(read_file("options.py", start, min(start + 199, 775))["content"])
"""
PATCH = '''
print(apply_patch("""*** Begin Patch
*** Update File: options.py
@@
-SUPPRESS = '==SUPPRESS=='
+SUPPRESS = '==HIDDEN=='
*** End Patch"""))
'''
FINISH = """FINAL("SUPPRESS is now '==HIDDEN=='. [options.py:%d-%d]")"""


def test_a_file_of_775_lines_is_edited_at_the_default_limits(person: Person) -> None:
    lines = Path(argparse.__file__).read_text().splitlines(keepends=True)[:775]
    changed = lines.index("SUPPRESS = '==SUPPRESS=='\n") + 1
    person.write("options.py", "".join(lines))
    check = f'print(read_file("options.py", {changed}, {changed})["content"])'
    model = person.model(READ, PATCH, check, FINISH % (changed, changed))

    edited = person.sonde("edit", "Hide suppressed options under ==HIDDEN==", ".", "--yes", "--model", model.name)

    now = (person.folder / "options.py").read_text().splitlines(keepends=True)
    assert edited.returncode == 0
    assert "limits: 200,000 tokens, 600 s, 30 sub-calls" in edited.stderr
    assert "succeeded · 4 turns" in edited.stderr
    assert "changed: options.py" in edited.stderr
    assert [number for number, (old, new) in enumerate(zip(lines, now, strict=True), 1) if old != new] == [changed]


@pytest.mark.journey
def test_a_reached_limit_prints_a_command_that_goes_on_and_does_not_pay_again(person: Person) -> None:
    person.write("a.py", "".join(f"x{n} = {n}\n" for n in range(400)))
    patch = PATCH.replace("options.py", "a.py").replace("SUPPRESS = '==SUPPRESS=='", "x7 = 7")
    patch = patch.replace("SUPPRESS = '==HIDDEN=='", "x7 = 8")
    model = person.model(
        'first = read_file("a.py", 1, 20)["content"]\nprint(first)',
        patch,
        'for start in (1, 150):\n    print(read_file("a.py", start, start + 149)["content"])',
        'print(first.count("\\n"), read_file("a.py", 8, 8)["content"])',
        """FINAL("x7 is now 8. [a.py:8]")""",
    )
    words = ("edit", "Make x7 eight; it's urgent", ".", "--yes", "--model", model.name, "--max-tokens-total", "3300")

    stopped = person.sonde(*words)
    command = next(line for line in stopped.stderr.splitlines() if line.startswith("to go on: "))
    went_on = person.run(*shlex.split(command.removeprefix("to go on: ")))

    assert "partial" in stopped.stderr
    assert "changed: a.py" in stopped.stderr
    assert command.count("--max-tokens-total") == 1
    assert int(command.partition("--max-tokens-total ")[2]) > 3300
    assert went_on.returncode == 0, went_on.stderr
    assert "succeeded" in went_on.stderr
    assert "x7 is now 8." in went_on.stdout
    assert model.calls == 5


@pytest.mark.journey
def test_what_a_found_file_may_not_set_is_said(person: Person) -> None:
    person.write("sonde.toml", 'model = "command:./evil"\n')
    person.environ = {"SONDE_MAX_TOKENS": "5"}

    edited = person.sonde("edit", "Do it", ".")

    assert "sonde.toml may not set model" in edited.stderr
    assert "note: SONDE_MAX_TOKENS sets nothing" in edited.stderr
