"""Ines lets a model change one constant in a module of 775 lines, with the limits that `sonde edit` has by itself.

The module is real: the first 775 lines of the standard library's argparse. The model reads it whole before it changes it.
"""

from __future__ import annotations

import argparse
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


@pytest.mark.xfail(
    reason="issue 19, point 17: the default limits of sonde edit end before one file of this size is read"
)
def test_a_file_of_775_lines_is_edited_at_the_default_limits(person: Person) -> None:
    lines = Path(argparse.__file__).read_text().splitlines(keepends=True)[:775]
    changed = lines.index("SUPPRESS = '==SUPPRESS=='\n") + 1
    person.write("options.py", "".join(lines))
    check = f'print(read_file("options.py", {changed}, {changed})["content"])'
    model = person.model(READ, PATCH, check, FINISH % (changed, changed))

    edited = person.sonde("edit", "Hide suppressed options under ==HIDDEN==", ".", "--yes", "--model", model.name)

    now = (person.folder / "options.py").read_text().splitlines(keepends=True)
    assert edited.returncode == 0
    assert "succeeded · 4 turns" in edited.stderr
    assert "changed: options.py" in edited.stderr
    assert [number for number, (old, new) in enumerate(zip(lines, now, strict=True), 1) if old != new] == [changed]
