"""What somebody waits for at an editor, at the page and at a list of runs, and what the journal costs.

    python benchmarks/waiting.py [--events 10000] [--runs 1000]

Everything is real: `sonde serve --stdio` as a process, run folders of runs with a sandbox, the page's own server. Best of three; beside it
the same work done bare, in Python without Sonde, where there is such a thing.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import sonde
from sonde.core.budget import Budget
from sonde.core.events import Event
from sonde.runs.catalog import list_runs
from sonde.runs.journal import Journal
from sonde.runs.rundir import RunDir
from sonde.testing import ScriptedModel, ScriptedReply, ScriptedServer
from sonde.viewer.server import ViewerServer

ROOT = Path(__file__).resolve().parent.parent
DOUBLE = ROOT / "tests" / "server" / "double.py"
CALLS_A_TURN = 1_000
OBSERVED = 1_000_000
OBSERVATIONS = 20
PIPE = subprocess.PIPE


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One thing that is waited for."""

    what: str
    bar: str
    ours: float
    bare: float | None = None


def best(action: Callable[[], float]) -> float:
    """The least of three."""
    return min(action() for _ in range(3))


def seconds(action: Callable[[], object]) -> float:
    """How long it took."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def protocol(events: int) -> Row:
    """Events of a task that only tells, through the pipe of the process; bare: the same lines printed by a loop."""
    with subprocess.Popen([sys.executable, DOUBLE], stdin=PIPE, stdout=PIPE, stderr=subprocess.DEVNULL) as child:
        ours = events / best(lambda: seconds(lambda: _flooded(child, events)))
        child.kill()
    line = json.dumps({"type": "progress", "id": "t", "note": "x" * 60, "seq": 1})
    code = f"import json\nfor _ in range({events}): print(json.dumps({line}), flush=True)"
    bare = events / best(lambda: seconds(lambda: subprocess.run([sys.executable, "-c", code], stdout=PIPE, check=True)))
    return Row(what="events a second through the protocol", bar=">= 10,000", ours=ours, bare=bare)


def _flooded(child: subprocess.Popen[bytes], events: int) -> None:
    assert child.stdout is not None
    _say(child, type="new_task", id=f"t{time.monotonic_ns()}", prompt=f"flood {events}", workspace="/w")
    while json.loads(child.stdout.readline())["type"] != "completion":
        pass


def _say(child: subprocess.Popen[bytes], **message: object) -> None:
    assert child.stdin is not None
    child.stdin.write(json.dumps(message).encode() + b"\n")
    child.stdin.flush()


def first_event(folder: Path) -> Row:
    """From the line that brings a task to the first line about it, in a server that is up."""
    (folder / "a.txt").write_text("one line\n")
    with ScriptedServer(lambda _: ScriptedReply(text="FINAL('done [a.txt:1]')")) as server:
        words = ["--model", "openai:scripted", "--runs-dir", str(folder / "served")]
        environment = {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "none", "HOME": str(folder)}
        command = [sys.executable, "-m", "sonde", "serve", "--stdio", *words]
        with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, cwd=folder, env=environment) as child:
            assert child.stdout is not None
            child.stdout.readline()  # hello
            ours = best(lambda: _first(child, folder))
            child.kill()
    return Row(what="first event of a task, ms", bar="<= 500", ours=ours * 1e3)


def _first(child: subprocess.Popen[bytes], folder: Path) -> float:
    assert child.stdout is not None
    task, began = f"t{time.monotonic_ns()}", time.perf_counter()
    _say(child, type="new_task", id=task, prompt="Read a.txt", workspace=str(folder))
    kind = json.loads(child.stdout.readline())["type"]
    took = time.perf_counter() - began
    _say(child, type="cancel", id=task)
    while kind != "completion":
        kind = json.loads(child.stdout.readline())["type"]
    return took


def long_run(folder: Path, events: int) -> RunDir:
    """A run with so many tool calls, in turns of a thousand."""
    (folder / "long.txt").write_text("".join(f"line {number}\n" for number in range(CALLS_A_TURN)))
    turn = f"for number in range({CALLS_A_TURN}):\n    read_file('long.txt', number + 1, number + 1)\nprint(number)"
    model = ScriptedModel([*[turn] * (events // CALLS_A_TURN), "FINAL('done [long.txt:1]')"])
    budget = Budget(max_tool_calls=2 * events, max_iterations=events, max_wall_time_sec=600)
    answer = sonde.ask("?", folder / "long.txt", model=model, runs_dir=folder / "runs", budget=budget)
    assert answer.run_dir is not None
    return RunDir(answer.run_dir)


def page(run: RunDir) -> Row:
    """What the page asks for when it opens a run; bare: the same lines read and parsed."""
    ours = best(lambda: _served(run))
    lines = run.path / "events.jsonl"
    bare = best(lambda: seconds(lambda: [json.loads(line) for line in lines.read_bytes().splitlines()]))
    count = len(run.events())
    return Row(what=f"a run of {count:,} events for the page, s", bar="<= 1", ours=ours, bare=bare)


def _served(run: RunDir) -> float:
    """By a server that has shown nothing yet."""
    with ViewerServer(run.path.parent) as server:
        address = f"{server.url}api/runs/{run.path.name}/events"
        return seconds(lambda: urllib.request.urlopen(address).read())


def listing(folder: Path, runs: int) -> Row:
    """The newest runs of many; bare: every record read and parsed."""
    pattern = sonde.ask("?", folder / "a.txt", model=ScriptedModel(["FINAL('x [a.txt:1]')"]), runs_dir=folder / "one")
    assert pattern.run_dir is not None
    for number in range(runs):
        shutil.copytree(pattern.run_dir, folder / "runs" / f"run-{number:05}")
    list_runs(folder / "runs")  # a second list is what a user waits for, the first one has just written the folders
    ours = best(lambda: seconds(lambda: list_runs(folder / "runs")))
    records = list((folder / "runs").glob("*/run_record.json"))
    bare = best(lambda: seconds(lambda: [json.loads(record.read_bytes()) for record in records]))
    return Row(what=f"list of {runs + 1:,} runs, s", bar="<= 0.3", ours=ours, bare=bare)


def journal(folder: Path) -> Row:
    """Turns that observe a megabyte each: the time in which the run wrote and synced its journal, as a share of its whole time."""

    def stock() -> str:
        """A megabyte."""
        return "x" * OBSERVED

    turns = ["text = stock()\nprint(len(text))"] * OBSERVATIONS

    def share() -> float:
        model = ScriptedModel([*turns, "FINAL('x [a.txt:1]')"])
        spent.clear()
        asked = partial(sonde.ask, tools=[stock], runs_dir=folder / "big", max_iterations=99)
        took = seconds(lambda: asked("?", folder / "a.txt", model=model))
        return sum(spent) / took

    spent: list[float] = []
    with timed_journal(spent):
        return Row(what="journal, % of a turn's time at 1 MB a turn", bar="<= 5", ours=best(share) * 100)


@contextmanager
def timed_journal(spent: list[float]) -> Generator[None]:
    """While it holds, every write and sync of a journal tells how long it took."""
    write, sync = Journal.write, Journal.sync

    def timed_write(self: Journal, event: Event) -> Event:
        began = time.perf_counter()
        written = write(self, event)
        spent.append(time.perf_counter() - began)
        return written

    def timed_sync(self: Journal) -> None:
        spent.append(seconds(lambda: sync(self)))

    Journal.write, Journal.sync = timed_write, timed_sync
    try:
        yield
    finally:
        Journal.write, Journal.sync = write, sync


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=1_000)
    options = parser.parse_args()
    print("| | bar | sonde | bare |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="sonde-bench-") as name:
        folder = Path(name)
        rows = [protocol(options.events), first_event(folder)]
        run = long_run(folder, options.events)
        rows += [page(run), listing(folder, options.runs), journal(folder)]
    for row in rows:
        print(f"| {row.what} | {row.bar} | {_shown(row.ours)} | {_shown(row.bare)} |")


def _shown(figure: float | None) -> str:
    return "-" if figure is None else f"{figure:,.0f}" if figure >= 100 else f"{figure:.2g}"


if __name__ == "__main__":
    main()
