"""Ana quotes a glob, so that the shell leaves it alone, and expects the same files as without quotes.

She tries the forms that people type, mixes one with a folder, mistypes one, and does the same from Python.
"""

from __future__ import annotations

import json

import pytest
from journey import Person


@pytest.mark.journey
def test_a_quoted_relative_glob_reads_the_files_that_it_matches(person: Person) -> None:
    person.write("t1/a.txt", "all is well\nthe pump failed at noon\n")
    person.write("t1/b.txt", "nothing here\n")
    person.write("t1/deep/c.txt", "the pump failed again\n")
    person.write("t2/d.md", "a pump that failed\n")
    forms = {
        ("t1/*.txt",): ["t1/a.txt"],
        ("./t1/*",): ["t1/a.txt"],
        ("**/*.txt",): ["t1/a.txt", "t1/deep/c.txt"],
        ("t1/*.txt", "t2"): ["t1/a.txt", "t2/d.md"],
    }

    asked = f"""
import json, sonde
forms = {list(map(list, forms))!r}
print(json.dumps([sorted(c.path for c in sonde.ask("When did the pump fail?", *form).citations) for form in forms]))
"""
    from_python = person.python(asked)
    typed = person.sonde("ask", "When did the pump fail?", "t1/*.txt")

    assert json.loads(from_python.stdout) == list(forms.values()), from_python.stderr
    assert "t1/a.txt:2" in typed.stdout
    assert "the pump failed at noon" in typed.stdout


def test_a_glob_that_matches_nothing_is_an_error_that_names_it(person: Person) -> None:
    person.write("t1/a.txt", "the pump failed at noon\n")

    typed = person.sonde("ask", "When did the pump fail?", "t1/*.log")

    assert typed.returncode == 2
    assert "t1/*.log" in typed.stderr
    assert typed.stdout == ""
    assert [path.name for path in person.folder.iterdir()] == ["t1"]
