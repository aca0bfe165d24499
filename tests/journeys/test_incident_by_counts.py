"""Lena has the traces of a bad hour and no model. A deploy broke checkout in 7 of 30 traces; three others failed for reasons of their own,
one of them before everything else. The dossier must name the large group and say how much of the hour it was.
"""

from __future__ import annotations

import json
import re
from typing import Any

from journey import Person

START_NS = 1_772_000_000_000_000_000
STRAYS = {1: "429 too many requests", 9: "socket closed early", 20: "cache is cold"}
BROKEN = (14, 16, 18, 22, 24, 26, 28)


def _span(number: int, name: str, parent: str | None, offset_s: int, error: str = "") -> dict[str, Any]:
    start = START_NS + (number * 60 + offset_s) * 1_000_000_000
    return {
        "trace_id": f"{number + 1:032x}",
        "span_id": f"{number + 1:012x}{offset_s:04x}",
        "parent_id": parent,
        "project_name": "shop",
        "name": name,
        "start_time": start,
        "end_time": start + 500_000_000,
        "status_code": "ERROR" if error else "OK",
        "status_message": error,
        "events": [],
        "attributes": {"openinference.span.kind": "CHAIN" if parent is None else "TOOL"},
    }


def _trace(number: int) -> list[dict[str, Any]]:
    wrong = "KeyError: 'currency'" if number in BROKEN else ""
    root = _span(number, "checkout", None, 0, error="step failed" if wrong or number in STRAYS else "")
    stock = _span(number, "reserve_stock", root["span_id"], 1, error=STRAYS.get(number, ""))
    return [root, stock, _span(number, "charge_card", root["span_id"], 2, error=wrong)]


def test_an_incident_without_a_model_names_the_largest_group_and_how_many_failed(person: Person) -> None:
    spans = [span for number in range(30) for span in _trace(number)]
    person.write("hour.jsonl", "".join(f"{json.dumps(span)}\n" for span in spans))

    told = person.sonde("incident", "--source", "hour.jsonl")

    result = json.loads(next(person.folder.glob("artifacts/investigator_runs/*/result.json")).read_text())["output"]
    headline = told.stdout.partition("## Timeline")[0]
    assert told.returncode == 0
    assert "charge_card" in headline
    assert "KeyError: 'currency'" in headline
    assert re.search(r"\b10 of (the |all )?30\b", headline)
    assert (result["window"]["traces"], result["window"]["failed"]) == (30, 10)
    assert [result["groups"][0]["count"], *(group["count"] for group in result["groups"][1:])] == [7, 1, 1, 1]
