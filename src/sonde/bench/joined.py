"""TRAIL with longer traces: several of them under one root, as of an agent that worked through one task after the other.

Each original trace is scored for itself, by the findings in its own spans, so that the figures can be laid beside those of the same traces
read alone: what is lost is lost by length.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

from sonde.bench.metrics import Pair, mean_of
from sonde.bench.suite import Case
from sonde.bench.trail import Trail
from sonde.contexts.traces.importers.trail import duration_us
from sonde.errors import ConfigError

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
        self._members: dict[str, list[Case]] = {}

    def cases(self) -> list[Case]:
        """One a group of traces of the same split; the last group may be smaller."""
        splits: dict[str, list[Case]] = {}
        for case in super().cases():
            splits.setdefault(case.key.partition("/")[0], []).append(case)
        groups = [
            (f"{split}/{at // self.count}", cases[at : at + self.count])
            for split, cases in splits.items()
            for at in range(0, len(cases), self.count)
        ]
        self._members = dict(groups)
        return [self._joined(key, members) for key, members in groups]

    def _joined(self, key: str, members: list[Case]) -> Case:
        trace_id = sha256(" ".join(case.trace_id for case in members).encode()).hexdigest()[:32]
        path = self.folder / f"{trace_id}.json"
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            root = _under_one([_spans(case.source) for case in members], trace_id)
            path.write_text(json.dumps({"trace_id": trace_id, "spans": [root]}), "utf-8")
        return Case(key=key, source=path, trace_id=trace_id)

    def score(self, case: Case, predicted: Any) -> dict[str, float]:
        """The mean over the traces in it, each by the findings in its own spans."""
        return mean_of(
            [super(Joined, self).score(each, self._own(each, predicted)) for each in self._members[case.key]]
        )

    def gold(self, case: Case) -> set[Pair]:
        """The gold pairs of a trace, or of all traces in a group."""
        members = self._members.get(case.key)
        found = super().gold
        return found(case) if members is None else {pair for each in members for pair in found(each)}

    def _own(self, case: Case, predicted: Any) -> list[list[str]]:
        own = {span["span_id"] for root in _spans(case.source) for span in _walk(root)}
        return [pair for pair in cast("list[list[str]]", predicted or []) if pair[0] in own]


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
    now = _start(members[0][0])
    first = now
    for spans in members:
        shift = now - min(_start(span) for span in spans)
        moved += [_moved({**span, "parent_span_id": root_id}, trace_id, shift) for span in spans]
        now = shift + max(_end(span) for root in spans for span in _walk(root)) + PAUSE
    root = {**members[0][0], "trace_id": trace_id, "span_id": root_id, "parent_span_id": None, "span_name": "session"}
    return {**root, "duration": f"PT{(now - first).total_seconds():.6f}S", "child_spans": moved}


def _moved(span: Json, trace_id: str, shift: timedelta) -> Json:
    children = [_moved(child, trace_id, shift) for child in span["child_spans"]]
    when = (_start(span) + shift).isoformat()
    return {**span, "trace_id": trace_id, "timestamp": when, "child_spans": children}


def _start(span: Mapping[str, Any]) -> datetime:
    return datetime.fromisoformat(str(span["timestamp"]))


def _end(span: Mapping[str, Any]) -> datetime:
    return _start(span) + timedelta(microseconds=duration_us(span["duration"]))
