"""Nils meets the library in a Python prompt: he looks at what there is, asks something, and wants to know what it took."""

from __future__ import annotations

import json

from journey import Person

LOOK = """
import json, sonde
from sonde.testing import ScriptedModel
model = ScriptedModel(['print(read_file("notes.md"))', 'FINAL("At noon. [notes.md:1-1]")'])
answer = sonde.ask("When did the pump fail?", "notes.md", model=model)
print(json.dumps({"names": dir(sonde), "turns": answer.usage.iterations, "tokens": answer.usage.tokens_in, "text": answer.text}))
"""


def test_dir_shows_what_there_is_and_an_answer_knows_its_usage(person: Person) -> None:
    person.write("notes.md", "The pump failed at noon.\n")

    shown = person.python(LOOK)

    assert shown.returncode == 0, shown.stderr
    seen = json.loads(shown.stdout)
    assert {"ask", "edit", "rca", "comply", "incident", "resume", "replay", "branch"} <= set(seen["names"])
    assert (seen["turns"], seen["text"]) == (2, "At noon. [notes.md:1-1]")
    assert seen["tokens"] > 100
