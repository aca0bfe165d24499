"""Olga runs a model of her own, for which nobody knows a price. She is told that the cost is unknown, never that it was nothing."""

from __future__ import annotations

import pytest
from journey import Person


@pytest.mark.journey
def test_an_unknown_cost_is_not_shown_as_nothing(person: Person) -> None:
    person.write("notes.md", "The pump failed at noon.\n")
    model = person.model('print(read_file("notes.md"))', 'FINAL("At noon. [notes.md:1-1]")')

    asked = person.sonde("ask", "When did the pump fail?", "notes.md", "--model", model.name)

    ended = asked.stderr.splitlines()[-1]
    second_turn = next(line for line in asked.stderr.splitlines() if line.startswith("turn 2"))
    assert ended.startswith("succeeded · 2 turns")
    assert "cost unknown" in ended
    assert "$" not in ended
    assert "$" not in second_turn
