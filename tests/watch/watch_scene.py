"""An app whose traces fail on a schedule, a file that they go to, and a watch over it in the traces' own time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

from sonde.api.settings import Settings, resolve
from sonde.api.trace_source import Source
from sonde.watch.issues import KnownIssue, known_issues
from sonde.watch.loop import TraceWatch, WatchOptions
from sonde.watch.state import WatchState

Json = dict[str, Any]
START = datetime(2026, 3, 2, 9, tzinfo=UTC)
STEPS = ("plan", "search_stock", "price_order", "charge_card", "send_mail", "write_log")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What one step throws in a part of the traces that begin in this time, in seconds from the start."""

    step: str
    text: str
    begin: float
    end: float
    every: int = 2
    """One of so many traces meets it."""


@dataclass(slots=True)
class HandClock:
    """A clock that stands until it is moved."""

    seconds: float = 0.0

    def now(self) -> float:
        return self.seconds

    def utc(self) -> datetime:
        return START + timedelta(seconds=self.seconds)


def trace(
    number: int,
    at: float,
    failing: Fault | None = None,
    *,
    release: str = "1.0",
    user: str = "",
    draw: Random | None = None,
) -> list[Json]:
    """One order: a root with its steps below it, the failing one last."""
    start = int((START.timestamp() + at) * 1e6)
    told: list[Json] = []
    root = f"{number:013x}fff"
    shown = STEPS if failing is None else STEPS[: STEPS.index(failing.step) + 1]
    for place, name in enumerate(shown):
        began = start + (place + 1) * 100_000
        bad = failing is not None and name == failing.step
        text = failing.text.format(n=number * 7919 % 100_000) if failing and bad else ""
        told.append(
            {
                "trace_id": f"{number:032x}",
                "span_id": f"{number:013x}{place:03x}",
                "parent_id": root,
                "project_name": "shop",
                "name": name,
                "start_time": began * 1000,
                "end_time": (began + 90_000) * 1000,
                "status_code": "ERROR" if bad else "OK",
                "status_message": text,
                "attributes": {"openinference.span.kind": "TOOL", "tool.name": name},
            }
        )
    about = {
        "openinference.span.kind": "AGENT",
        "release": release,
        "user.id": user or f"u{number % 50}",
        "session.id": f"s{number}",
    }
    end = told[-1]["end_time"] + 1_000_000
    head = {
        **told[0],
        "span_id": root,
        "parent_id": None,
        "name": "handle_order",
        "start_time": start * 1000,
        "end_time": end,
    }
    failed = (
        {"status_code": "ERROR", "status_message": "order failed"}
        if failing
        else {"status_code": "OK", "status_message": ""}
    )
    del draw
    return [{**head, **failed, "attributes": about}, *told]


def traffic(
    count: int, seconds: float, faults: Sequence[Fault], *, first: int = 1, begin: float = 0.0, **more: Any
) -> list[list[Json]]:
    """Traces at even distances; each fault strikes every so many of the traces in its time."""
    told: list[list[Json]] = []
    for number in range(count):
        at = begin + number * (seconds / count)
        open_now = [fault for fault in faults if fault.begin <= at < fault.end]
        failing = next((fault for place, fault in enumerate(open_now) if number % fault.every == place), None)
        told.append(trace(first + number, at, failing, **more))
    return told


def append(path: Path, traces: Iterable[list[Json]]) -> None:
    """The app exports."""
    with path.open("a") as file:
        for spans in traces:
            file.writelines(json.dumps(each) + "\n" for each in spans)


@dataclass(slots=True)
class Post:
    """A folder with a file of traces and the state of a watch over it."""

    path: Path
    options: WatchOptions = field(
        default_factory=lambda: WatchOptions(every_s=60, settle_s=10, min_traces=1, quiet_windows=5)
    )
    clock: HandClock = field(default_factory=HandClock)
    flags: Json = field(default_factory=dict[str, Any])

    @property
    def traces(self) -> Path:
        return self.path / "traces.jsonl"

    @property
    def folder(self) -> Path:
        return self.path / "state"

    def settings(self) -> Settings:
        return resolve(self.flags, {"PATH": "/usr/bin:/bin", "HOME": str(self.path)}, self.path)

    def watch(self, state: WatchState) -> TraceWatch:
        place = Source(source=self.traces, cache=self.path / "cache")
        return TraceWatch(state=state, place=place, settings=self.settings(), options=self.options, clock=self.clock)

    def look(self, at: float) -> list[str]:
        """All that a watch does that is started at this time; the changes of issues it reports."""
        self.clock.seconds = at
        with WatchState(self.folder, create=True) as state:
            watching = self.watch(state)
            told: list[str] = []
            while (turn := watching.turn()).worked:
                told += [f"{each.kind} {each.issue}" for each in turn.happenings]
            return told

    def issues(self) -> dict[int, KnownIssue]:
        with WatchState(self.folder) as state:
            return {each.number: each for each in known_issues(state)}

    def traces_read(self) -> int:
        with WatchState(self.folder) as state:
            return int(state.one("SELECT coalesce(sum(traces), 0) FROM windows"))
