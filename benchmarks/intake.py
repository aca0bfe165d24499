"""The listener under load: minutes of OTLP/HTTP at a share of the bulk indexing rate, with retention on. The bulk rate is measured before
and after, so that the noise of the machine is seen.

    python benchmarks/intake.py --minutes 10 --share 0.5 --gb 0.5

The listener runs in a process of its own, the senders in this one: both on the same cores, as on a small machine. Every request is
protobuf of 512 spans of about 2 kB. Lost are spans that were answered with 200 and are neither in the store nor removed by its retention.
Prints a table that can be pasted into docs/benchmarks.md, after one with a row for each half minute. Exits with 1 when the rate is below
0.4 of the bulk rate that was measured first, a span is lost, or memory grows.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from traces import otlp, spans, write

from sonde.contexts.traces.filestore import FileStore
from sonde.watch.intake import Intake, Retention
from sonde.watch.listener import ListenAddress, OtlpListener

BATCH = 512
SENDERS = 4
LEAST = 0.4
GROWTH = 1.15  # of memory, from the first third of the samples to the last
CHECKED = 100_000


class Requests:
    """Bodies that differ only in their ids, which are put in place: making spans anew would measure this program."""

    def __init__(self, size: int, templates: int = 4) -> None:
        made = list(spans(BATCH * templates, size))
        self._bodies = [self._body(made[start : start + BATCH], start) for start in range(0, len(made), BATCH)]
        self._places = [
            [(body.index(self._trace(start + each)), body.index(self._span(start + each))) for each in range(BATCH)]
            for start, body in zip(range(0, len(made), BATCH), self._bodies, strict=True)
        ]

    @staticmethod
    def _trace(number: int) -> bytes:
        return b"TRACEID!" + (number + 1).to_bytes(8, "big")

    @staticmethod
    def _span(number: int) -> bytes:
        return b"SPAN" + (number + 1).to_bytes(4, "big")

    def _body(self, made: list[dict[str, Any]], start: int) -> bytes:
        inner: list[Any] = []
        for offset, each in enumerate(made):
            (span,) = otlp(each)["resourceSpans"][0]["scopeSpans"][0]["spans"]
            number = start + offset
            span |= {"traceId": _b64(self._trace(number)), "spanId": _b64(self._span(number)), "parentSpanId": ""}
            inner.append(span)
        record = {"resourceSpans": [{"scopeSpans": [{"spans": inner}]}]}
        return ParseDict(record, ExportTraceServiceRequest()).SerializeToString()

    def numbered(self, request: int) -> bytes:
        """The body of the request with this number: traces of 16 spans."""
        which = request % len(self._bodies)
        body = bytearray(self._bodies[which])
        for offset, (trace, span) in enumerate(self._places[which]):
            number = request * BATCH + offset + 1
            body[trace : trace + 16] = (number // 16 + 1).to_bytes(16, "big")
            body[span : span + 8] = number.to_bytes(8, "big")
        return bytes(body)


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def bulk_rate(folder: Path, size: int, count: int = 100_000) -> tuple[float, float]:
    """Spans a second into the index of a file of OTel JSON, and microseconds of processor time a span."""
    path = folder / "bulk.jsonl"
    write(path, count, size, "otlp")
    started, worked = time.perf_counter(), time.process_time()
    FileStore(path, cache=folder / "cache").close()
    rate, work = count / (time.perf_counter() - started), (time.process_time() - worked) / count * 1e6
    path.unlink()
    shutil.rmtree(folder / "cache")
    return rate, work


def serve(store: Path, gb: float) -> None:
    """The other process: says its address, and at each line on its input what it has done."""
    with (
        Intake(store, retention=Retention(gb=gb, days=1)) as intake,
        OtlpListener(intake, ListenAddress.of("0")) as listener,
    ):
        print(listener.url, flush=True)
        for _ in sys.stdin:
            print(json.dumps([intake.kept, intake.expired]), flush=True)


class Load:
    """Senders at a steady rate; what was answered with 200 is counted as acknowledged."""

    def __init__(self, url: str, requests: Requests, rate: float, until: float) -> None:
        self.acknowledged = self.later = 0
        self._place = url.removeprefix("http://")
        self._requests = requests
        self._rate = rate
        self._until = until
        self._next = 0
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self.threads = [threading.Thread(target=self._send, daemon=True) for _ in range(SENDERS)]
        for thread in self.threads:
            thread.start()

    def _send(self) -> None:
        line = http.client.HTTPConnection(self._place, timeout=120)
        while time.monotonic() < self._until:
            with self._lock:
                number, self._next = self._next, self._next + 1
            wait = self._began + number * BATCH / self._rate - time.monotonic()
            if wait > 0:
                time.sleep(wait)
            body = self._requests.numbered(number)
            while True:
                line.request("POST", "/v1/traces", body, {"Content-Type": "application/x-protobuf"})
                reply = line.getresponse()
                told = reply.read()
                if reply.status == 200 and not told:
                    break
                if reply.status != 503:
                    raise RuntimeError(f"{reply.status}: {told!r}")
                with self._lock:
                    self.later += 1
                line.close()
                time.sleep(float(reply.headers["Retry-After"]))
            with self._lock:
                self.acknowledged += BATCH


def memory_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--share", type=float, default=0.5, help="of the bulk rate that is sent")
    parser.add_argument("--size", type=int, default=2000)
    parser.add_argument("--gb", type=float, default=0.5)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.gb)
        return
    with tempfile.TemporaryDirectory(prefix="sonde-bench-") as name:
        folder = Path(name)
        load = os.getloadavg()[0]
        bulk, work = bulk_rate(folder, options.size)
        print(f"bulk: {bulk:,.0f} spans/s, {work:.0f} µs of processor time a span", flush=True)
        print(f"sending {options.share} of that rate for {options.minutes:g} minutes", flush=True)
        store = folder / "store"
        command = [sys.executable, __file__, "--serve", str(store), "--gb", str(options.gb)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
            taken = measure(server, store, bulk, options)
            server.communicate()
        again, later = bulk_rate(folder, options.size)
    print(f"""
{options.minutes:g} minutes, load {load:.1f} before, retention at {options.gb:g} GB

| | |
|---|---|
| bulk indexing, spans/s before and after | {bulk:,.0f} and {again:,.0f} |
| µs of processor time a span, before and after | {work:.0f} and {later:.0f} |
| taken, spans/s | {taken.rate:,.0f} |
| of the bulk rate before and after | {taken.rate / bulk:.2f} and {taken.rate / again:.2f} |
| spans answered with 200 | {taken.acknowledged:,} |
| of these lost | {taken.lost} |
| removed by the retention | {taken.expired:,} |
| requests sent again after a 503 | {taken.later:,} |
| memory, MB: first minute, last minute, highest | {taken.memory[0]:.0f}, {taken.memory[1]:.0f}, {taken.memory[2]:.0f} |
| memory: highest of the last third to that of the second | {taken.growth:.2f} |""")
    sys.exit(taken.rate < LEAST * bulk or taken.lost != 0 or taken.growth > GROWTH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What the listener did. `memory`: the mean of the first and of the last minute, and the most, in MB."""

    rate: float
    acknowledged: int
    lost: int
    expired: int
    later: int
    memory: tuple[float, float, float]
    growth: float


def measure(server: subprocess.Popen[str], store: Path, bulk: float, options: argparse.Namespace) -> Taken:
    assert server.stdin is not None
    assert server.stdout is not None
    url = server.stdout.readline().strip()
    began = time.monotonic()
    load = Load(url, Requests(options.size), options.share * bulk, began + options.minutes * 60)
    samples = max(6, round(options.minutes * 2))
    print(
        "| minute | spans/s | of bulk | µs/span | memory MB | store MB | log MB | sent again |\n|---|---|---|---|---|---|---|---|"
    )
    sizes: list[float] = []
    before, at, worked = 0, began, 0.0
    for sample in range(1, samples + 1):
        time.sleep(max(0.0, began + sample * options.minutes * 60 / samples - time.monotonic()))
        done, now = load.acknowledged, time.monotonic()
        work = processor_s(server.pid)
        spent = (work - worked) / max(1, done - before) * 1e6
        rate, before, at, worked = (done - before) / (now - at), done, now, work
        sizes.append(memory_mb(server.pid))
        disk = [(store / f"spans.sqlite{each}").stat().st_size / 1e6 for each in ("", "-wal")]
        row = [f"{(now - began) / 60:.1f}", f"{rate:,.0f}", f"{rate / bulk:.2f}", f"{spent:.0f}", f"{sizes[-1]:.0f}"]
        print(f"| {' | '.join([*row, *(f'{each:.0f}' for each in disk), str(load.later)])} |", flush=True)
    for thread in load.threads:
        thread.join()
    mean = load.acknowledged / (time.monotonic() - began)
    server.stdin.write("\n")
    server.stdin.flush()
    kept, expired = json.loads(server.stdout.readline())
    third = samples // 3
    minute = max(1, round(samples / options.minutes))
    return Taken(
        rate=mean,
        acknowledged=load.acknowledged,
        lost=load.acknowledged - kept + missing(store, load.acknowledged, expired, kept),
        expired=expired,
        later=load.later,
        memory=(fmean(sizes[:minute]), fmean(sizes[-minute:]), max(sizes)),
        growth=max(sizes[-third:]) / max(sizes[third : 2 * third]),
    )


def missing(store: Path, acknowledged: int, expired: int, kept: int) -> int:
    """Spans that should be in the store and are not: of the last ones each is looked up, of all of them the number."""
    connection = sqlite3.connect(f"{(store / 'spans.sqlite').as_uri()}?mode=ro", uri=True)
    (held,) = connection.execute("SELECT count(*) FROM spans").fetchone()
    known = {int(span_id, 16) for (span_id,) in connection.execute("SELECT span_id FROM spans")}
    connection.close()
    newest = range(max(1, acknowledged - min(CHECKED, held // 2) + 1), acknowledged - SENDERS * BATCH)
    return abs(kept - expired - held) + sum(number not in known for number in newest)


if __name__ == "__main__":
    main()
