"""Kofi asks for the root cause of a trace in which nothing went wrong. He is told so, and no failure is invented."""

from __future__ import annotations

import json

from journey import Person

from sonde.bench.seeded import HEALTHY, Dataset


def test_a_healthy_trace_gets_no_failure(person: Person, traces: Dataset) -> None:
    troubled = {span["trace_id"] for span in traces.spans if span["status_code"] != "OK" or span["events"]}
    healthy = next(gold.trace_id for gold in traces.gold if gold.label == HEALTHY and gold.trace_id not in troubled)
    traces.write(person.folder / "traces.jsonl", person.home / "gold.json")

    judged = person.sonde("rca", healthy, "--source", "traces.jsonl", "--json")

    report = json.loads(judged.stdout)["report"]
    assert judged.returncode == 0
    assert report["primary_label"] == "no_failure_found"
    assert any("no model read the content" in gap for gap in report["gaps"])
