"""Pia asks in the plural about what her notes say in the singular. Without a model she still gets the very line."""

from __future__ import annotations

import pytest
from journey import Person


@pytest.mark.journey
def test_a_plural_finds_the_line_with_the_singular(person: Person) -> None:
    lines = [f"Paragraph {number} is about something else.\n" for number in range(1, 20)]
    lines[11] = "The boiler had a leaking valve.\n"
    person.write("notes.md", "".join(lines))

    asked = person.sonde("ask", "Which valves leaked in the boilers?", "notes.md")

    place, _, line = asked.stdout.partition("[1] ")[2].splitlines()[:3]
    assert place.startswith("notes.md:12"), asked.stdout
    assert line.strip() == "The boiler had a leaking valve."
