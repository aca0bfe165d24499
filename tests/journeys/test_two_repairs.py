"""Gita's model first hands in the wrong form, then the right form without proof. It is told each and mends each.

She sees only the answer.
"""

from __future__ import annotations

import json

from journey import Person

SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "string"}, "citations": {"type": "array"}},
    "required": ["answer"],
    "additionalProperties": False,
}


def test_a_wrong_form_and_then_a_missing_citation_are_both_repaired(person: Person) -> None:
    person.write("app.log", "web INFO started\npayments ERROR ledger refused the connection\n")
    person.write("answer.schema.json", json.dumps(SCHEMA))
    model = person.model(
        'print(read_file("app.log"))',
        'FINAL({"service": "payments"})',
        'FINAL({"answer": "payments failed first"})',
        'FINAL({"answer": "payments failed first", "citations": [{"path": "app.log", "start_line": 2, "end_line": 2}]})',
    )

    asked = person.sonde(
        "ask", "Who failed first?", "app.log", "--schema", "answer.schema.json", "--model", model.name, "--json"
    )

    answer = json.loads(asked.stdout)
    assert "does not fit the schema" in model.prompts[2]
    assert model.calls == 4, answer["gaps"]
    assert "no citation" in model.prompts[3]
    assert (answer["status"], answer["gaps"]) == ("succeeded", [])
    assert answer["value"]["answer"] == "payments failed first"
    assert [(each["path"], each["start_line"]) for each in answer["citations"]] == [("app.log", 2)]
