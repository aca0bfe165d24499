"""Batches: what an item costs beyond waiting for its model, here and on Ray, and whether the limits hold.

    python benchmarks/batch.py [--full] [--on local,ray] [--json]          # Ray: sh scripts/ray.sh run python benchmarks/batch.py --on ray

Every item is an ask of two turns with sandboxed code, a journal and a full run folder. Wall time an item is the batch's own: from the
first item handed out to the last result, with the start of local workers in it. Two more columns leave nothing out: `start s` is from
the start of the command to the first item begun, once a batch; `command s` is the whole command, from its start to its exit. CPU seconds
are those of the driver, its workers, their sandboxes and Ray's own processes together; the ideal is what the model's delay alone would
take at this concurrency. `others %` is the share of the machine that everybody else used meanwhile (the model server is one of them):
above a third or so the wall times say little. `--full` goes from 100 to 10,000 items; without it to 1,000.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import sonde
from sonde.sandbox import Limits, Sandbox
from sonde.sandbox.forkserver import ForkServer
from sonde.sandbox.policy import profile_named
from sonde.testing import ScriptedReply, ScriptedServer, SeenRequest

DELAY_S = 0.1
TURNS = 2
AT_ONCE = 16
MARK = "SONDE_BENCH"
BARS = {"local": 20.0, "ray": 40.0}
SESSIONS_BAR = 150.0
TOKENS, PROMPT_TOKENS = 3000, 2800  # what a server says that a request took: about twice what we expect of this prompt
TICK = os.sysconf("SC_CLK_TCK")
REPLY = "```python\nprint(read_file('note.txt'))\nFINAL('it says so [note.txt:1-1]')\n```"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One batch, measured."""

    place: str
    items: int
    wall_s: float
    start_s: float
    command_s: float
    others: float
    cpu_s: float
    worker_mb: float

    @property
    def ideal_s(self) -> float:
        return self.items * TURNS * DELAY_S / AT_ONCE

    def row(self) -> dict[str, Any]:
        return {
            "place": self.place,
            "items": self.items,
            "wall ms/item": round(self.wall_s / self.items * 1e3, 1),
            "ideal ms/item": round(self.ideal_s / self.items * 1e3, 1),
            "overhead ms/item": round((self.wall_s - self.ideal_s) / self.items * 1e3, 1),
            "bar": BARS[self.place],
            "start s": round(self.start_s, 2),
            "command s": round(self.command_s, 2),
            "CPU ms/item": round(self.cpu_s / self.items * 1e3, 1),
            "MB/worker": round(self.worker_mb, 1),
            "others %": round(100 * self.others),
        }


@contextmanager
def model_server(delay_s: float) -> Generator[str]:
    """A server in a process of its own, so that its time is not ours."""
    command = [sys.executable, "-m", "sonde.testing", "--delay", str(delay_s), "--text", REPLY]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.wait()


def write_manifest(folder: Path, count: int) -> Path:
    (folder / "note.txt").write_text("the note says so\n")
    line = '{{"id": "q{0}", "engine": "ask", "question": "What does the note say? ({0})", "paths": ["note.txt"]}}\n'
    (folder / "items.jsonl").write_text("".join(line.format(number) for number in range(count)))
    return folder / "items.jsonl"


class Family:
    """The processes that carry a mark in their environment, and their children: CPU seconds and memory."""

    def __init__(self, mark: str) -> None:
        self._mark = f"{MARK}={mark}".encode()

    def pids(self) -> dict[int, str]:
        parents: dict[int, int] = {}
        marked: dict[int, str] = {}
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                try:
                    parents[int(entry.name)] = int(Path(entry.path, "stat").read_text().rpartition(") ")[2].split()[1])
                    if self._mark in Path(entry.path, "environ").read_bytes():
                        marked[int(entry.name)] = Path(entry.path, "cmdline").read_bytes().decode("utf-8", "replace")
                except OSError:
                    continue
        for pid, parent in parents.items():
            if parent in marked and pid not in marked:
                marked[pid] = "child"
        return marked

    def cpu_s(self) -> float:
        """Of all that live, and of all that they have seen to their end."""
        ticks = 0
        for pid in self.pids():
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
            except OSError:
                continue
            ticks += sum(int(fields[number]) for number in (11, 12, 13, 14))
        return ticks / TICK

    def worker_mb(self) -> float:
        """The largest worker with what it shares divided fairly."""
        sizes = [_pss(pid) for pid, name in self.pids().items() if "batch.worker" in name or "ray::WorkerActor" in name]
        return max(sizes, default=0.0)


def _pss(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")), 0.0)


def measure(place: str, count: int, base_url: str, environ: dict[str, str], family: Family) -> Figures:
    """Run one batch by the command line and look at its processes while it runs."""
    with tempfile.TemporaryDirectory(prefix="sonde-bench-") as name:
        folder = Path(name)
        manifest = write_manifest(folder, count)
        command = [sys.executable, "-m", "sonde", "batch", str(manifest), "--runs-dir", str(folder / "runs"), "--json"]
        flags = ["--model", "openai:gpt-4o-mini", "--base-url", base_url, "--concurrency", str(AT_ONCE), "--on", place]
        before, busy, started = family.cpu_s(), busy_s(), time.time()
        process = subprocess.Popen([*command, *flags], stdout=subprocess.PIPE, text=True, env=environ, cwd=folder)
        seen = Watching(family)
        out, _ = process.communicate()
        ended = time.time()
        seen.stop.set()
        seen.thread.join()
        report = json.loads(out)
        assert report["statuses"] == {"succeeded": count}, report
        return Figures(
            place=place,
            items=count,
            wall_s=report["elapsed_s"],
            start_s=first_begun(Path(report["folder"])) - started,
            command_s=ended - started,
            others=max(0.0, busy_s() - busy - (seen.cpu_s - before)) / (ended - started) / (os.cpu_count() or 1),
            cpu_s=seen.cpu_s - before,
            worker_mb=seen.worker_mb,
        )


def busy_s() -> float:
    """CPU seconds that this machine has worked, for anybody."""
    user, nice, system, _, _, *interrupts = map(int, Path("/proc/stat").read_text().split(maxsplit=9)[1:9])
    return (user + nice + system + sum(interrupts)) / TICK


def first_begun(batch: Path) -> float:
    """When the first item began, in seconds since 1970."""
    begun: list[float] = []
    for journal in batch.glob("items/*/events.jsonl"):
        with journal.open() as lines:
            begun.append(json.loads(lines.readline())["at"])
    return min(begun)


class Watching:
    """Looks at a family twice a second; the last look before its end is what counts."""

    def __init__(self, family: Family) -> None:
        self.family, self.cpu_s, self.worker_mb = family, 0.0, 0.0
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._look)
        self.thread.start()

    def _look(self) -> None:
        while not self.stop.wait(0.5):
            self.cpu_s = max(self.cpu_s, self.family.cpu_s())
            self.worker_mb = max(self.worker_mb, self.family.worker_mb())


def sessions_per_core_second(count: int, turns: int) -> float:
    """New sandboxes, so many turns each, per second of CPU that they and we use; all on one core, as the bar says."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        return _sessions(count, turns)
    finally:
        os.sched_setaffinity(0, cores)


def _sessions(count: int, turns: int) -> float:
    server = ForkServer(profile_named("analysis").preload)

    def cpu() -> float:
        fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(") ")[2].split()
        own = os.times()
        return own.user + own.system + sum(int(fields[number]) for number in (11, 12, 13, 14)) / TICK

    for round_ in (10, count):
        before = cpu()
        for _ in range(round_):
            with Sandbox(server=server, limits=Limits()) as box:
                assert all(box.execute("x = 1").ok for _ in range(turns))
    time.sleep(1.0)  # states are retired without waiting for them
    used = cpu() - before
    server.close()
    return count / used


def rate_error(flag: str, per_minute: float, each: float, seconds: float) -> dict[str, Any]:
    """How far a limited batch is from its rate. A request counts as `each`: 1, or the tokens that the server says it took.

    The mean is taken after the first second. `worst minute` is by how much any stretch of the batch was over the limit, of a minute's.
    """
    times: list[float] = []
    usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": TOKENS - PROMPT_TOKENS, "total_tokens": TOKENS}

    def note(_: SeenRequest) -> ScriptedReply:
        times.append(time.monotonic())
        return ScriptedReply(text=REPLY, usage=usage)

    count = int(per_minute / each / 60 * seconds / TURNS)
    with ScriptedServer(note) as server, tempfile.TemporaryDirectory(prefix="sonde-bench-") as name:
        manifest = write_manifest(Path(name), count)
        command = [sys.executable, "-m", "sonde", "batch", str(manifest), "--runs-dir", f"{name}/runs", "--json"]
        flags = ["--model", "openai:gpt-4o-mini", "--base-url", server.base_url, "--concurrency", str(AT_ONCE)]
        subprocess.run([*command, *flags, flag, str(per_minute)], check=True, capture_output=True, cwd=name)
    steady = [moment for moment in times if moment > times[0] + 1.0]
    rate = each * (len(steady) - 1) / (steady[-1] - steady[0]) * 60
    return {
        "limit": flag,
        "a minute": per_minute,
        "measured": round(rate, 1),
        "error %": round((rate / per_minute - 1) * 100, 2),
        "worst minute %": round(100 * _most_over(times, each, per_minute) / per_minute, 2),
    }


def _most_over(times: list[float], each: float, per_minute: float) -> float:
    """The most by which any stretch, from one request up to another, was over the rate."""
    most = lowest = 0.0
    for number, moment in enumerate(times):
        line = each * number - per_minute / 60 * (moment - times[0])
        lowest = min(lowest, line)
        most = max(most, line - lowest)
    return most


@contextmanager
def ray_cluster(environ: dict[str, str]) -> Generator[str]:
    """Two nodes on this machine."""
    os.environ.update(environ)
    cluster: Any = import_module("ray.cluster_utils").Cluster(
        initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False}
    )
    cluster.add_node(num_cpus=2)
    try:
        yield cluster.address
    finally:
        cluster.shutdown()


def batches(places: list[str], counts: list[int]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for place in places:
        mark = uuid.uuid4().hex
        environ = {**os.environ, MARK: mark}
        with model_server(DELAY_S) as base_url:
            if place == "ray":
                with ray_cluster({MARK: mark}) as address:
                    environ["RAY_ADDRESS"] = address
                    rows += [measure(place, count, base_url, environ, Family(mark)).row() for count in counts]
            else:
                rows += [measure(place, count, base_url, environ, Family(mark)).row() for count in counts]
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    heads = list(rows[0])
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join(lines + ["| " + " | ".join(str(row[head]) for head in heads) + " |" for row in rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="up to 10,000 items")
    parser.add_argument("--on", default="local", help="local, ray, or both with a comma")
    parser.add_argument("--counts", help="other counts, such as 100,300")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    counts = [100, 300, 1000, 3000, 10_000] if chosen.full else [100, 300, 1000]
    counts = [int(count) for count in chosen.counts.split(",")] if chosen.counts else counts
    compileall.compile_dir(Path(sonde.__file__).parent, quiet=1)  # as in an installed package
    rows = batches(chosen.on.split(","), counts)
    found: dict[str, Any] = {
        "load": os.getloadavg()[0],
        "batches": rows,
        "sessions": {f"{turns} turns": round(sessions_per_core_second(200, turns), 1) for turns in (0, 1)},
        "rates": [
            rate_error("--requests-per-minute", 1200, 1, 20),
            rate_error("--tokens-per-minute", 1200 * TOKENS, TOKENS, 20),
        ],
    }
    if chosen.json:
        print(json.dumps(found, indent=1))
        return
    print(f"load {found['load']:.1f} on {os.cpu_count()} cores\n\n{table(rows)}\n")
    print(f"sandbox sessions per core and second: {found['sessions']} (bar {SESSIONS_BAR:.0f})")
    print(f"\nrates, to be held within 2 %:\n\n{table(found['rates'])}")


if __name__ == "__main__":
    main()
