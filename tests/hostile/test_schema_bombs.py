"""A stranger's JSON schema of 3 KB that says the same thing 2^40 times costs nobody an afternoon."""

from __future__ import annotations

import json

import pytest
from victim import Victim

BOMB = {
    "$defs": {
        **{f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]} for n in range(40)},
        "d40": {"type": "string"},
    },
    "$ref": "#/$defs/d0",
}


@pytest.mark.hostile_long
def test_a_schema_that_doubles_forty_times_is_judged_and_replayed_at_once(victim: Victim) -> None:
    victim.write("notes.txt", "the service is payments\n")
    victim.write("bomb.json", json.dumps(BOMB))
    model = victim.model("FINAL(3)", "FINAL('payments')").name

    asked = victim.sonde(
        *("ask", "Which?", "notes.txt", "--schema", "bomb.json", "--no-citations"),
        *("--model", model, "--runs-dir", "runs"),
    )
    (run,) = (victim.folder / "runs").iterdir()
    replayed = victim.sonde("replay", run)

    assert (asked.returncode, replayed.returncode) == (0, 0), (asked, replayed)
    assert "payments" in asked.stdout
