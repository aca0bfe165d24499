"""Traces at scale: index speed, point tools, search and memory over generated span files. Prints the table.

    python benchmarks/traces.py --spans 1000000 --form flat

The cost of one investigation is measured twice, on a tenth of the spans and on all of them: it must not grow.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sonde.contexts.traces.context import TracesContext
from sonde.contexts.traces.filestore import FileStore

WORDS = ["order", "basket", "payment", "refund", "customer", "timeout", "token", "search", "page", "query", "answer"]
SPANS_PER_TRACE = 25


def spans(count: int, size: int) -> Iterator[dict[str, Any]]:
    """Flat spans of about `size` bytes, 25 a trace."""
    draw = random.Random(7)
    for number in range(count):
        trace, place = divmod(number, SPANS_PER_TRACE)
        start = 1_760_000_000_000_000_000 + trace * 1_000_000_000 + place * 1_000_000
        text = " ".join(draw.choices(WORDS, k=(size - 700) // 7))
        failed = draw.random() < 0.02
        yield {
            "trace_id": f"{trace:032x}",
            "span_id": f"{number + 1:016x}",
            "parent_id": None if place == 0 else f"{trace * SPANS_PER_TRACE + 1:016x}",
            "name": draw.choice(["agent.run", "llm.generate", "search", "fetch"]),
            "start_time": start,
            "end_time": start + draw.randrange(10**9),
            "status_code": "ERROR" if failed else "OK",
            "status_message": "deadline passed" if failed else "",
            "attributes": {
                "openinference.span.kind": draw.choice(["AGENT", "LLM", "TOOL", "RETRIEVER"]),
                "input.value": text[: len(text) // 2],
                "output.value": f"{text[len(text) // 2 :]} marker{number}",
                "llm.model_name": "some-model",
                "llm.token_count.total": draw.randrange(4000),
                "llm.input_messages.0.message.role": "user",
                "llm.input_messages.0.message.content": text[:200],
            },
        }


def otlp(span: dict[str, Any]) -> dict[str, Any]:
    """The same span as the collector's file exporter writes it."""
    attributes = [
        {"key": key, "value": {"stringValue": value} if isinstance(value, str) else {"intValue": str(value)}}
        for key, value in span["attributes"].items()
    ]
    inner = {
        "traceId": span["trace_id"],
        "spanId": span["span_id"],
        "parentSpanId": span["parent_id"] or "",
        "name": span["name"],
        "startTimeUnixNano": str(span["start_time"]),
        "endTimeUnixNano": str(span["end_time"]),
        "status": {"code": 2 if span["status_code"] == "ERROR" else 1, "message": span["status_message"]},
        "attributes": attributes,
    }
    return {"resourceSpans": [{"scopeSpans": [{"spans": [inner]}]}]}


def write(path: Path, count: int, size: int, form: str) -> int:
    with path.open("w") as stream:
        for span in spans(count, size):
            stream.write(json.dumps(otlp(span) if form == "otlp" else span) + "\n")
    return path.stat().st_size


def p95(call: Callable[[int], object], count: int, repeats: int = 300) -> float:
    """Milliseconds that 95 of 100 calls stay below, over random spans."""
    draw = random.Random(1)
    times: list[float] = []
    for _ in range(repeats):
        number = draw.randrange(count)
        started = time.perf_counter()
        call(number)
        times.append((time.perf_counter() - started) * 1000)
    return statistics.quantiles(times, n=20)[-1]


def measure(count: int, size: int, form: str, folder: Path) -> dict[str, float]:
    path = folder / f"{form}-{count}.jsonl"
    written = write(path, count, size, form)
    started = time.perf_counter()
    store = FileStore(path, cache=folder / "cache")
    seconds = time.perf_counter() - started
    tools = {tool.name: tool.function for tool in TracesContext(store).tools()}

    def span(number: int) -> str:
        return f"{number + 1:016x}"

    def trace(number: int) -> str:
        return f"{number // SPANS_PER_TRACE:032x}"

    rows = {
        "MB": written / 1e6,
        "spans/s": count / seconds,
        "MB/s": written / 1e6 / seconds,
        "get_span p95 ms": p95(lambda n: tools["get_span"](span(n)), count),
        "get_children p95 ms": p95(lambda n: tools["get_children"](span(n)), count),
        "get_messages p95 ms": p95(lambda n: tools["get_messages"](span(n)), count),
        "get_tool_io p95 ms": p95(lambda n: tools["get_tool_io"](span(n)), count),
        "get_path p95 ms": p95(lambda n: tools["get_path"](span(n)), count),
        "list_spans p95 ms": p95(lambda n: tools["list_spans"](trace(n)), count),
        "search_trace p95 ms": p95(lambda n: tools["search_trace"](trace(n), f"marker{n}"), count),
        "words p95 ms": p95(lambda n: store.search(f"marker{n}"), count),
        "index MB": store.indexed.path.stat().st_size / 1e6,
    }
    store.close()
    started = time.perf_counter()
    FileStore(path, cache=folder / "cache").close()
    return rows | {"open again ms": (time.perf_counter() - started) * 1000}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--spans", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=2000)
    parser.add_argument("--form", choices=["flat", "otlp"], default="flat")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sonde-bench-") as folder:
        small = measure(max(options.spans // 10, 1), options.size, options.form, Path(folder))
        large = measure(options.spans, options.size, options.form, Path(folder))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"| {options.form}, {options.size} B a span | {options.spans // 10} spans | {options.spans} spans |\n|---|---|---|"
    )
    for name, value in large.items():
        print(f"| {name} | {small[name]:.2f} | {value:.2f} |")
    print(f"| peak memory MB | | {peak:.0f} |")


if __name__ == "__main__":
    main()
