"""Nora has no model yet. She asks where Python does two things, and the first lines she sees are those that do them."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest
from journey import Person

STDLIB = Path(sysconfig.get_path("stdlib"))


@pytest.mark.journey
@pytest.mark.parametrize(
    ("question", "path", "line"),
    [
        ("Where does json encode NaN?", "json/encoder.py", "text = 'NaN'"),
        (
            "How does a Counter list its most common elements?",
            "collections/__init__.py",
            "def most_common(self, n=None):",
        ),
    ],
)
def test_the_lines_that_answer_come_first_once_and_as_lines(
    person: Person, question: str, path: str, line: str
) -> None:
    for name in ("collections/__init__.py", "functools.py", "json/encoder.py", "heapq.py", "queue.py"):
        person.write(f"lib/{name}", (STDLIB / name).read_bytes())
    uses = "".join(
        f"def test_lru_cache_{n}():\n    assert lru_cache(Counter).most_common({n}) == full\n\n" for n in range(40)
    )
    person.write("lib/tests/test_functools.py", uses)

    asked = person.sonde("ask", question, "lib")

    heading, _, first = asked.stdout.partition("[1] ")[2].splitlines()[:3]
    assert heading.startswith(f"{path}:"), asked.stdout
    assert first.strip() == line
    assert asked.stdout.count(heading) == 1
    assert "Citations:" not in asked.stdout
