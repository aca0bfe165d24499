"""A day of an app in which five faults begin and end, under a watch that is killed and whose source goes away.

The watch runs as a process of its own, in the traces' time; a scripted server is its model and counts what it is asked.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from sonde.bench.businesses import BUSINESSES
from sonde.bench.traffic import Traffic, Trouble
from sonde.models.base import TokenUsage, cost_of
from sonde.testing import ScriptedServer, SeenRequest
from sonde.watch.issues import known_issues
from sonde.watch.loop import WatchOptions
from sonde.watch.state import WatchState, happenings
from watch.watch_scene import START, Post

Json = dict[str, Any]
MODEL = "openai:gpt-4o-mini"
HOURS = 10.0
WINDOW = 600.0
QUIET = 6
LOOK = """```python
seen = rule['span_id'] or hot_spans[0]['span_id']
print(get_span(seen)['summary'], get_tool_io(seen))
```"""
SUBMIT = """```python
ref = {'kind': 'SPAN', 'ref': seen}
SUBMIT(primary_label=rule['label'], summary='as the rule says', confidence=0.4, evidence_refs=[ref] if rule['failed'] else [])
```"""
THROWN = (
    ("KeyError", "'currency' of order {id}"),
    ("ReadTimeout", "ledger gave no reply within {n} ms, call {hex}"),
    ("ValidationError", "1 validation error for Quote: total Field required [input_value={{'id': '{id}'}}]"),
    ("ConnectionError", "No route to host stock-next:8443, request {hex}"),
    ("LookupError", "customer {id} is not in shard {n}"),
)
TIMES = (((0.10, 0.25),), ((0.2, 0.4),), ((0.3, 0.4), (0.7, 1.0)), ((0.5, 1.0),), ((0.9, 1.0),))
"""When each fault is there, as parts of the day."""


@dataclass(slots=True)
class Model:
    """The scripted model: looks, then submits what the rule thinks. It knows what it was paid, and when."""

    now: float = 0.0
    paid: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])

    def reply(self, seen: SeenRequest) -> str:
        """Two turns."""
        messages = seen.body["messages"]
        text = LOOK if len(messages) < 3 else SUBMIT
        sent = -(-sum(len(str(message.get("content"))) for message in messages) // 4)
        cost = cost_of(MODEL, TokenUsage(sent, -(-len(text) // 4)))
        assert cost
        self.paid.append((self.now, cost))
        return text


def day(seed: int, count: int) -> tuple[list[tuple[float, list[Json]]], dict[str, list[float]]]:
    """Traces by the second in which they end, and by the component of each fault when it struck."""
    draw = Random(seed)
    traffic = Traffic(draw, draw.choice(BUSINESSES), one_release=False, stamped="all", hours=HOURS)
    traffic.start_us = int(START.timestamp() * 1e6)
    traffic.stray_rate = 0.004
    stages = sorted(traffic.tools, key=lambda stage: -traffic.share(stage))[: len(THROWN)]
    traffic.troubles = [
        Trouble(stage=stage.name, begin=begin * traffic.seconds, end=end * traffic.seconds, rate=0.6, thrown=thrown)
        for stage, thrown, times in zip(stages, THROWN, TIMES, strict=True)
        for begin, end in times
    ]
    traces: dict[str, list[Json]] = {}
    for span in traffic.spans(count):
        traces.setdefault(span["trace_id"], []).append(span)
    ended = [((max(span["end_time"] for span in spans) / 1e9 - START.timestamp()), spans) for spans in traces.values()]
    return sorted(ended, key=lambda one: one[0]), {
        name: traffic.met.get(name, []) for name in [each.name for each in stages]
    }


@dataclass(slots=True)
class Day:
    """The app, its model and a watch that is started again whenever it dies."""

    post: Post
    config: Path
    traces: list[tuple[float, list[Json]]]
    model: Model
    away: set[float]
    sent: int = 0
    deaths: int = 0
    outages: int = 0

    def export(self) -> None:
        """The app writes what has ended by now; then the file may be gone for a while."""
        hidden = self.post.traces.with_suffix(".away")
        if hidden.exists():
            hidden.rename(self.post.traces)
        with self.post.traces.open("a") as file:
            while self.sent < len(self.traces) and self.traces[self.sent][0] <= self.model.now:
                file.writelines(json.dumps(span) + "\n" for span in self.traces[self.sent][1])
                self.sent += 1
        if self.model.now in self.away:
            self.post.traces.rename(hidden)

    def live(self, times: list[float], kill_at: int) -> list[float]:
        """Start a watch and let it work at these times until it dies; the times that are left."""
        command = [sys.executable, str(Path(__file__).with_name("watch_child.py")), str(self.config), str(kill_at)]
        left = list(times)
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin
            assert process.stdout
            while left:
                self.model.now = left[0]
                self.export()
                with suppress(BrokenPipeError):
                    process.stdin.write(f"{self.model.now}\n")
                    process.stdin.flush()
                reply = process.stdout.readline()
                if not reply:
                    self.deaths += 1
                    break
                self.outages += json.loads(reply)["outages"]
                left.pop(0)
        return left


@pytest.mark.parametrize(
    ("count", "kills"),
    [pytest.param(10_000, 40, marks=pytest.mark.watch), pytest.param(900, 6, marks=pytest.mark.long)],
)
@pytest.mark.timeout(1800)
def test_five_faults_are_five_issues_whatever_happens_to_the_watch(tmp_path: Path, count: int, kills: int) -> None:
    draw, model = Random(26), Model()
    traces, struck = day(5, count)
    options = WatchOptions(
        every_s=WINDOW,
        settle_s=30.0,
        usd_per_day=0.02,
        usd_per_hour=0.005,
        control_share=0.25,
        quiet_windows=QUIET,
    )
    times = [WINDOW * number for number in range(1, int(HOURS * 3600 / WINDOW) + 9)]
    with ScriptedServer(model.reply) as server:
        post = Post(tmp_path, options=options, flags={"model": MODEL, "base_url": server.base_url, "api_key": "none"})
        config = tmp_path / "post.json"
        config.write_text(json.dumps({"path": str(tmp_path), "options": asdict(options), "flags": post.flags}))
        lived = Day(post, config, traces, model, set(draw.sample(times[3:-12], k=5)))
        while times:
            times = lived.live(times, draw.randrange(1, 2 * count // kills) if lived.deaths < kills else 0)

    with WatchState(post.folder) as state:
        issues = known_issues(state)
        told = happenings(state)
        read = state.one("SELECT sum(traces) FROM windows")
        done = state.rows("SELECT kind, state FROM investigations")
    first_window = int(START.timestamp() // WINDOW)
    onsets = {name: int(min(moments) // WINDOW) for name, moments in struck.items()}
    reported = [(each.issue, each.window - first_window) for each in told if each.kind == "new"]
    by_number = {each.number: each for each in issues}

    assert lived.sent == count == read
    assert lived.deaths >= kills // 2, "the watch was hardly killed"
    assert lived.outages >= len(lived.away)
    assert len(reported) == len(issues) == 5, [each.title for each in issues]
    assert {by_number[number].component for number, _ in reported} == set(onsets)
    assert all(0 <= window - onsets[by_number[number].component] <= 1 for number, window in reported), reported
    states = {each.component: each.state for each in issues}
    assert [states[name] for name in struck] == ["resolved", "resolved", "regressed", "ongoing", "ongoing"]
    assert sum(each.kind == "regressed" for each in told) == 1
    assert sum(each.count for each in issues) == pytest.approx(sum(map(len, struck.values())), rel=0.02)
    assert sum(each.proof is not None and each.proof.judge == "LLM" for each in issues) == 5
    assert sorted(how for kind, how in done if kind != "control") == ["done"] * 5
    assert ("control", "done") in done, "healthy traces are looked at as well"
    assert sum(cost for _, cost in model.paid) <= options.usd_per_day
    for moment, _ in model.paid:
        assert sum(cost for then, cost in model.paid if moment - 3600 < then <= moment) <= 0.005
