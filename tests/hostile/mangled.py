"""Journals that a stranger has mangled: each line is JSON with a checksum that fits, and what it says makes no sense."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sonde.runs.journal import chain, ending

Events = list[dict[str, Any]]
DEEP = 5_000


def encoded(value: Any) -> bytes:
    """JSON in which "DEEP" stands for lists in lists: no encoder writes so many."""
    return json.dumps(value).replace('"DEEP"', "[" * DEEP + "]" * DEEP).encode()


def write(run: Path, events: Events) -> None:
    """These events as the journal of a run, with fitting checksums."""
    sum_now, lines = "", list[bytes]()
    for event in events:
        body = encoded(event)[:-1]
        sum_now = chain(sum_now, body)
        lines.append(body + ending(sum_now))
    (run / "events.jsonl").write_bytes(b"".join(lines))


def read(run: Path) -> Events:
    """The events of a sound journal, as plain data."""
    lines = (run / "events.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if name != "sum"} for line in lines]


def change(kind: str, **fields: Any) -> Callable[[Events], Events]:
    """Other values in every event of a kind."""
    return lambda events: [{**event, **fields} if event["type"] == kind else event for event in events]


def settings(**fields: Any) -> Callable[[Events], Events]:
    """Other settings in the first event."""
    return lambda events: [{**events[0], "settings": {**events[0]["settings"], **fields}}, *events[1:]]


def everywhere(**fields: Any) -> Callable[[Events], Events]:
    """Other values in all events."""
    return lambda events: [{**event, **fields} for event in events]


EXCERPT = {"kind": "code_excerpt", "ref": "a.txt:1-1", "hash": "0" * 64}
MANGLED: dict[str, Callable[[Events], Events]] = {
    "a deep value": change("run_ended", output="DEEP"),
    "deep settings": settings(schema={"x": "DEEP"}),
    "deep arguments of a tool": change("host_returned", args="DEEP", result="DEEP"),
    "a deep output of an object": change("run_ended", output={"answer": "DEEP", "citations": ["DEEP"]}),
    "an unknown type of run": change("run_started", run_type="nonsense"),
    "an unknown engine": settings(engine="nonsense"),
    "an empty type of run": change("run_started", run_type=""),
    "an unknown status": change("run_ended", status="exploded"),
    "a status that never was": change("status_changed", status="exploded"),
    "an unknown annotator": change("run_ended", annotator_kind="GHOST"),
    "an error without a shape": change("run_ended", error={"code": 7}),
    "an error of a status": change("status_changed", error={"code": "NO_SUCH", "message": [], "stage": "x"}),
    "a fault without a shape": change("code_ran", fault={"kind": 7, "traceback": 1}, ok=False),
    "variables without names": change("code_ran", variables=[{"size": "large"}]),
    "excerpts without a shape": change("host_returned", excerpts=[{"ref": 1}]),
    "excerpts of no kind": change("host_returned", excerpts=[{**EXCERPT, "kind": "nonsense"}]),
    "citations without a shape": change("cited", citation={"x": 1}),
    "citations of the answer without a shape": change(
        "run_ended", output={"answer": [], "citations": [{"path": 1}, 7], "highlights": {}}
    ),
    "a citation before the first line": change(
        "run_ended",
        output={
            "answer": "x",
            "citations": [{"path": "a.txt", "start_line": "x", "end_line": None, "kind": "?", "excerpt_hash": 1}],
        },
    ),
    "an output that is a number": change("run_ended", output=7, output_type="Answer"),
    "an output that is text": change("run_ended", output="x", output_type="Answer"),
    "times at the end of the world": everywhere(at=1e300),
    "times before the beginning": everywhere(at=-1e300),
    "numbers beyond measure": change("model_replied", tokens_in=10**18, tokens_out=10**18, cost_usd=1e308),
    "negative numbers": change("model_replied", tokens_in=-5, tokens_out=-5, cost_usd=-1.0, latency_s=-1.0),
    "turns beyond measure": change("turn_started", turn=10**18, elapsed_s=1e300),
    "sequence numbers that repeat": everywhere(seq=-1),
    "sessions that lead nowhere": everywhere(session="root/../../x"),
    "sessions without a name": everywhere(session=""),
    "a budget of words": change("run_started", budget={"max_iterations": "many"}),
    "an unknown knob": change("run_started", budget={"wings": 2}),
    "limits of words": settings(limits={"memory": "lots", "wall_s": -1}),
    "sources that are no paths": settings(sources={"paths": ["\0", "x" * 9000]}),
    "an input that is empty": change("run_started", input_ref={}, dataset_ref={}),
    "a dataset of another shape": change("run_started", dataset_ref={"dataset_hash": [1]}, input_ref={"trace_ids": 7}),
    "a name with escapes": change("run_started", run_id="\x1b[2J../../x", objective="\x1b]0;x\x07", model="\x1b[31mm"),
    "half a character": change("model_replied", text="\ud800"),
    "messages without a role": change("model_asked", messages=[{}], kept=10**9),
    "a mode that is none": change("run_started", mode="nonsense", profile="nonsense", scaffold="?"),
    "layers of nonsense": change("run_started", layers=["backend: nonsense"]),
    "two beginnings": lambda events: [events[0], *events],
    "no beginning": lambda events: events[1:],
    "only a beginning": lambda events: events[:1],
    "an end before the beginning": lambda events: list(reversed(events)),
    "two ends": lambda events: [*events, events[-1]],
    "an unknown event": lambda events: [*events[:2], {"type": "nonsense", "session": "root"}, *events[2:]],
    "another schema": change("run_started", schema_version="99.0"),
    "a schema of nonsense": change("run_started", schema_version="."),
    "nothing": lambda events: [],
}
