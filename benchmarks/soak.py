"""The whole of `sonde watch` under a steady load: listener, loop, scripted model, notices, page and retention in one process, which must
stay as it is.

    python benchmarks/soak.py --minutes 30 --traces 10 --gb 0.05

An app sends traces over OTLP/HTTP. A fault begins every minute, lasts for two and comes back after ten, so issues are found,
investigated, resolved and found again all the time; someone looks at the page every three seconds. Every ten seconds the memory, the
descriptors, the threads and the folders of the watch are sampled. Exits with 1 if the watch ended, a request failed, a trace was not
read exactly once, or it is not flat: in the last third the median of memory may be 5 % and 5 MB above that of the second, the median
of descriptors and threads 5 above, and the store must stay within its retention.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from statistics import linear_regression, median
from typing import Any

from intake import memory_mb

from sonde.testing import ScriptedServer, SeenRequest

SAMPLE_S = 10.0
LOOK_S = 3.0
CATCH_UP_S = 120.0  # after the last trace
FAULTS, LASTS = 10, 2  # one begins in every minute of ten and lasts for so many
MODEL = "openai:gpt-4o-mini"
STEPS = ("plan", "search_stock", "price_order", "charge_card", "send_mail", "write_log")
TEXTS = (
    "timed out after {} ms",
    "order {} has no currency",
    "no route to host, request {}",
    "customer {} is in no shard",
)
LOOK = "```python\nseen = rule['span_id'] or hot_spans[0]['span_id']\nprint(get_span(seen)['summary'])\n```"
SUBMIT = """```python
ref = {'kind': 'SPAN', 'ref': seen}
SUBMIT(primary_label=rule['label'], summary='as the rule says', confidence=0.4, evidence_refs=[ref] if rule['failed'] else [])
```"""


def reply(seen: SeenRequest) -> str:
    """The scripted model: looks, then submits what the rule thinks."""
    return LOOK if len(seen.body["messages"]) < 3 else SUBMIT


def trace(draw: Random, minute: int, now_ns: int) -> list[dict[str, Any]]:
    """The spans of one order. In a part of them the fault of this minute, or of one before, strikes."""
    fault = (minute - draw.randrange(LASTS)) % FAULTS if draw.random() < 0.2 else None
    trace_id = f"{draw.getrandbits(128):032x}"
    ids = [f"{draw.getrandbits(64):016x}" for _ in range(len(STEPS) + 1)]
    words = " ".join(draw.choices(("order", "basket", "payment", "refund", "customer", "page"), k=200))
    spans: list[dict[str, Any]] = []
    for place, name in enumerate(("order", *STEPS)):
        failed = fault is not None and name in ("order", STEPS[fault % len(STEPS)])
        message = TEXTS[fault % len(TEXTS)].format(draw.randrange(10**6)) if failed and fault is not None else ""
        said = {
            "openinference.span.kind": "TOOL" if place else "AGENT",
            "input.value": words,
            "user.id": f"u{draw.randrange(500)}",
        }
        spans.append(
            {
                "traceId": trace_id,
                "spanId": ids[place],
                "parentSpanId": ids[0] if place else "",
                "name": name,
                "startTimeUnixNano": str(now_ns - 10**9 + place * 10**8),
                "endTimeUnixNano": str(now_ns - (place > 0) * 10**8),
                "status": {"code": 2 if failed else 1, "message": message},
                "attributes": [{"key": key, "value": {"stringValue": value}} for key, value in said.items()],
            }
        )
    return spans


@dataclass(slots=True)
class Visitors:
    """The app and the person at the page. What they count is read by whoever samples."""

    otlp: str
    page: str
    rate: int
    over: threading.Event = field(default_factory=threading.Event)
    traces: int = 0
    looks: int = 0
    problems: list[str] = field(default_factory=list[str])

    def start(self) -> list[threading.Thread]:
        """Both, until it is over."""
        threads = [
            threading.Thread(target=self._often, args=each) for each in ((1.0, self._send()), (LOOK_S, self._look))
        ]
        for thread in threads:
            thread.start()
        return threads

    def _often(self, every_s: float, act: Callable[[], None]) -> None:
        due = time.monotonic()
        while not self.over.wait(max(0.0, due - time.monotonic())):
            due += every_s
            try:
                act()
            except (OSError, http.client.HTTPException) as error:
                self.problems.append(f"{type(error).__name__}: {error}")

    def _send(self) -> Callable[[], None]:
        draw, began = Random(26), time.monotonic()

        def act() -> None:
            minute = int((time.monotonic() - began) // 60)
            spans = [span for _ in range(self.rate) for span in trace(draw, minute, time.time_ns())]
            body = gzip.compress(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).encode(), 1)
            kind = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
            urllib.request.urlopen(urllib.request.Request(f"{self.otlp}/v1/traces", body, kind), timeout=60).close()
            self.traces += self.rate

        return act

    def _look(self) -> None:
        def read(path: str) -> bytes:
            return urllib.request.urlopen(f"{self.page}{path}", timeout=60).read()

        read("/")
        read("/metrics")
        issues = json.loads(read("/api/issues"))["watch"]["issues"]
        for each in issues[self.looks % len(issues) :][:1] if issues else ():
            read(f"/api/issues/{each['number']}")
            read(f"/api/issues/{each['number']}/look")
        self.looks += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The watch at one moment. `children`: workers of an investigation, which come and go."""

    minute: float
    memory_mb: float
    descriptors: int
    threads: int
    children: int
    store_mb: float
    state_mb: float

    @classmethod
    def of(cls, pid: int, state: Path, minute: float) -> Sample:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [name for task in tasks for name in _read(task / "children").split()]
        return cls(
            minute=minute,
            memory_mb=memory_mb(pid),
            descriptors=len(list(Path(f"/proc/{pid}/fd").iterdir())),
            threads=len(tasks),
            children=len(children),
            store_mb=_size_mb(state / "traces"),
            state_mb=_size_mb(state) - _size_mb(state / "traces"),
        )


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # the thread has ended
        return ""


def _size_mb(folder: Path) -> float:
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            total += path.lstat().st_size
    return total / 1e6


def table(samples: list[Sample]) -> str:
    """First, second and last third: median and highest of each, and the slope of the last two."""
    third = len(samples) // 3
    parts = samples[:third], samples[third : 2 * third], samples[2 * third :]
    lines = ["| | first third | second third | last third | slope per hour |", "|---|---|---|---|---|"]
    for name, title in (
        ("memory_mb", "memory, MB"),
        ("descriptors", "descriptors"),
        ("threads", "threads"),
        ("store_mb", "traces on disk, MB"),
        ("state_mb", "state and runs on disk, MB"),
    ):
        values = [[float(getattr(each, name)) for each in part] for part in parts]
        slope = linear_regression([each.minute / 60 for each in samples[third:]], values[1] + values[2]).slope
        cells = [f"{median(part):.0f} (at most {max(part):.0f})" for part in values]
        lines.append(f"| {title} | {' | '.join(cells)} | {slope:+.1f} |")
    return "\n".join(lines)


def flaws(samples: list[Sample], gb: float) -> list[str]:
    """Why it is not flat."""
    third = len(samples) // 3
    found: list[str] = []
    for name, share, more in (("memory_mb", 1.05, 5.0), ("descriptors", 1.0, 5.0), ("threads", 1.0, 5.0)):
        middle, last = (
            median(getattr(each, name) for each in part) for part in (samples[third : 2 * third], samples[2 * third :])
        )
        if last > middle * share + more:
            found.append(f"{name} rose from {middle:.0f} to {last:.0f}")
    most = max(each.store_mb for each in samples)
    if most > gb * 1000 + 64:  # the log of SQLite comes on top
        found.append(f"the store took {most:.0f} MB, {gb * 1000:.0f} are kept")
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--traces", type=int, default=10, help="a second, of seven spans")
    parser.add_argument("--gb", type=float, default=0.05, help="that the retention keeps")
    options = parser.parse_args()
    with ExitStack() as up:
        folder = Path(up.enter_context(tempfile.TemporaryDirectory(prefix="sonde-soak-")))
        model = up.enter_context(ScriptedServer(reply))
        state = folder / "state"
        command = [
            sys.executable,
            "-m",
            "sonde",
            "watch",
            "--state",
            str(state),
            "--listen",
            "127.0.0.1:0",
            "--page",
            "0",
        ]
        command += ["--every", "10s", "--settle", "5s", "--resolve-after", "12", "--retain-gb", str(options.gb)]
        command += [
            "--model",
            MODEL,
            "--base-url",
            model.base_url,
            "--on-new",
            f"tee -a {folder / 'told'}",
            "--tell",
            "new,regressed,resolved",
        ]
        env = {"PATH": os.environ["PATH"], "HOME": str(folder), "OPENAI_API_KEY": "none"}
        watch = subprocess.Popen(
            command, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        up.callback(watch.wait)
        up.callback(watch.send_signal, signal.SIGTERM)
        assert watch.stderr is not None
        said: dict[str, str] = {}
        while not {"listening", "page"} <= said.keys():
            line = watch.stderr.readline()
            if not line:
                sys.exit("the watch did not start")
            name, _, rest = line.partition(": ")
            said[name] = rest.strip()
        lines: list[str] = []
        threading.Thread(target=lambda: lines.extend(watch.stderr or ()), daemon=True).start()
        visitors = Visitors(said["listening"].split()[0], said["page"].rstrip("/"), options.traces)
        threads = visitors.start()
        samples = sampled(watch, state, options.minutes)
        visitors.over.set()
        for thread in threads:
            thread.join()
        alive = watch.poll() is None
        page: dict[str, Any] = {}
        patience = time.monotonic() + CATCH_UP_S
        while alive and (not page or page["watch"]["traces"] < visitors.traces) and time.monotonic() < patience:
            page = json.loads(urllib.request.urlopen(f"{visitors.page}/api/issues", timeout=60).read())
            time.sleep(1)
    found = flaws(samples, options.gb) + visitors.problems[:5]
    if page:
        unread = visitors.traces - page["watch"]["traces"]
        found += [f"{unread} traces were not read"] * (unread != 0) + [page["problem"]] * bool(page["problem"])
    found += [] if alive else [f"the watch ended with {watch.returncode}: {''.join(lines[-3:])}"]
    print(
        f"\n{options.minutes:g} minutes, {visitors.traces:,} traces of 7 spans sent, page seen {visitors.looks:,} times"
    )
    if page:
        seen = page["watch"]
        print(
            f"{seen['traces']:,} traces read, {len(seen['issues'])} issues, {seen['investigated']} investigations, "
            f"{len(model.requests)} requests to the model, {seen['behind_s']:.0f} s behind\n"
        )
    print(table(samples))
    print("\nflat" if not found else "\nNOT FLAT: " + "; ".join(found))
    sys.exit(bool(found))


def sampled(watch: subprocess.Popen[str], state: Path, minutes: float) -> list[Sample]:
    """A sample every ten seconds, one in six of them printed."""
    samples: list[Sample] = []
    began = time.monotonic()
    print(
        "| minute | memory MB | descriptors | threads | children | traces MB | state MB |\n|---|---|---|---|---|---|---|",
        flush=True,
    )
    for number in count(1):
        time.sleep(max(0.0, began + number * SAMPLE_S - time.monotonic()))
        minute = (time.monotonic() - began) / 60
        if watch.poll() is not None or minute > minutes + 0.01:
            return samples
        samples.append(Sample.of(watch.pid, state, minute))
        last = samples[-1]
        if number % 6 == 0:
            print(
                f"| {minute:.1f} | {last.memory_mb:.0f} | {last.descriptors} | {last.threads} | {last.children} "
                f"| {last.store_mb:.0f} | {last.state_mb:.1f} |",
                flush=True,
            )
    return samples


if __name__ == "__main__":
    main()
