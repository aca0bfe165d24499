"""TRAIL with longer traces: several of them under one root, like an agent that worked through one task after the other.

Each original trace is scored by the findings in its own spans, so the figures can be compared with those of the same traces read
alone: any loss is due to length.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

from sonde.bench.metrics import Pair, mean_of
from sonde.bench.suite import BenchCase
from sonde.bench.trail import Trail
from sonde.contexts.traces.importers.flat import duration_us
from sonde.errors import ConfigError
from sonde.runs.rundir import write_atomically

Json = dict[str, Any]
PAUSE = timedelta(seconds=1)


class Joined(Trail):
    """Every `count` traces of a split joined to one; the joined files are written to `folder`."""

    def __init__(self, data: Path, count: int, folder: Path) -> None:
        super().__init__(data)
        if count < 2:
            raise ConfigError("--joined is the number of traces that make one, at least 2")
        self.name = f"trail-x{count}"
        self.count = count
        self.folder = folder
        self._members: dict[str, list[BenchCase]] = {}

    def cases(self) -> list[BenchCase]:
        """One per group of traces of the same split; the last group may be smaller."""
        splits: dict[str, list[BenchCase]] = {}
        for case in super().cases():
            splits.setdefault(case.key.partition("/")[0], []).append(case)
        groups = [
            (f"{split}/{at // self.count}", cases[at : at + self.count])
            for split, cases in splits.items()
            for at in range(0, len(cases), self.count)
        ]
        self._members = dict(groups)
        found: list[BenchCase] = []
        for key, members in groups:
            trace_id = sha256(" ".join(case.trace_id for case in members).encode()).hexdigest()[:32]
            path = self.folder / f"{trace_id}.json"
            if not path.exists():
                self.folder.mkdir(parents=True, exist_ok=True)
                root = _under_one([_spans(case.source) for case in members], trace_id)
                write_atomically(path, json.dumps({"trace_id": trace_id, "spans": [root]}).encode())
            found.append(BenchCase(key=key, source=path, trace_id=trace_id))
        return found

    def score(self, case: BenchCase, predicted: Any) -> dict[str, float]:
        """The mean over the traces in it, each by the findings in its own spans."""
        named = cast("list[list[str]]", predicted or [])
        scores: list[dict[str, float]] = []
        for each in self._members[case.key]:
            own = {span["span_id"] for root in _spans(each.source) for span in _walk(root)}
            scores.append(super().score(each, [pair for pair in named if pair[0] in own]))
        return mean_of(scores)

    def gold(self, case: BenchCase) -> set[Pair]:
        """The gold pairs of a trace, or of all traces in a group."""
        members = self._members.get(case.key)
        found = super().gold
        return found(case) if members is None else {pair for each in members for pair in found(each)}


def _spans(path: Path) -> list[Json]:
    return cast("list[Json]", json.loads(path.read_text("utf-8"))["spans"])


def _walk(span: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield span
    for child in span.get("child_spans", []):
        yield from _walk(child)


def _under_one(members: list[list[Json]], trace_id: str) -> Json:
    """A root over all of them, each moved in time to come after the one before."""
    root_id = trace_id[:16]
    moved: list[Json] = []
    first = now = _start(members[0][0])
    for spans in members:
        shift = now - min(_start(span) for span in spans)
        moved += [_moved({**span, "parent_span_id": root_id}, trace_id, shift) for span in spans]
        ends = (
            _start(span) + timedelta(microseconds=duration_us(span["duration"]))
            for root in spans
            for span in _walk(root)
        )
        now = shift + max(ends) + PAUSE
    root = {**members[0][0], "trace_id": trace_id, "span_id": root_id, "parent_span_id": None, "span_name": "session"}
    return {**root, "duration": f"PT{(now - first).total_seconds():.6f}S", "child_spans": moved}


def _moved(span: Json, trace_id: str, shift: timedelta) -> Json:
    children = [_moved(child, trace_id, shift) for child in span["child_spans"]]
    when = (_start(span) + shift).isoformat()
    return {**span, "trace_id": trace_id, "timestamp": when, "child_spans": children}


def _start(span: Mapping[str, Any]) -> datetime:
    return datetime.fromisoformat(str(span["timestamp"]))
