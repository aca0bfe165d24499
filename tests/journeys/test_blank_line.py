"""Hugo's model cites an empty line for what it says. That proves nothing, and Hugo must not be told that it does."""

from __future__ import annotations

import json

import pytest
from journey import Person


@pytest.mark.journey
def test_a_blank_line_is_no_proof(person: Person) -> None:
    person.write("report.txt", "Sales were flat.\n\nCosts rose by 3 %.\n")
    claim = 'FINAL("Sales doubled. [report.txt:2-2]")'
    model = person.model('print(read_file("report.txt"))', claim, claim, claim)

    asked = person.sonde("ask", "How were sales?", "report.txt", "--model", model.name, "--json")

    answer = json.loads(asked.stdout)
    assert model.calls > 2, "the model was not told that the line proves nothing"
    assert "report.txt:2" in model.prompts[2]
    assert answer["status"] == "partial"
    assert [each for each in answer["citations"] if not each["snippet"].strip()] == []
