"""Real exporters feed a real `sonde watch --listen`: their authors set OTEL_EXPORTER_OTLP_ENDPOINT and nothing else.

scripts/exporters.sh installs them; `make test-watch` runs it.
"""

from __future__ import annotations

import http.client
import itertools
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from otlp_bodies import as_json, as_protobuf, request, span, span_id, trace_id

from sonde.contexts.traces.filestore import FileStore
from sonde.contexts.traces.span import Span
from sonde.contexts.traces.store import TraceQuery
from sonde.testing import ScriptedServer
from sonde.watch.intake import Intake
from sonde.watch.listener import ListenAddress, OtlpListener
from sonde.watch.otlp import read_request

pytestmark = pytest.mark.watch
ROOT = Path(__file__).parents[2]
EXPORTERS = ROOT / ".bench/exporters"
SONDE = Path(sys.executable).parent / "sonde"
LONG_S = 240

PYTHON = """
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
tracer = provider.get_tracer("shop")
"""
CHECKOUTS = """
for number in range(COUNT):
    try:
        with tracer.start_as_current_span("checkout") as outer:
            outer.set_attributes({"order": number, "basket": ["tea", "rice"], "price": 1.5, "paid": False})
            with tracer.start_as_current_span("charge", attributes={"openinference.span.kind": "TOOL"}):
                raise KeyError("currency")
    except KeyError:
        pass
provider.shutdown()
"""
CHAT = """
from openai import OpenAI
from openinference.instrumentation.openai import OpenAIInstrumentor

OpenAIInstrumentor().instrument(tracer_provider=provider)
client = OpenAI(base_url=MODEL, api_key="none")
client.chat.completions.create(model="small", messages=[{"role": "user", "content": "What is tea?"}])
provider.shutdown()
"""
NODE = """
const { NodeTracerProvider, BatchSpanProcessor } = require('@opentelemetry/sdk-trace-node');
const { OTLPTraceExporter } = require(process.argv[2]);
const { SpanStatusCode } = require('@opentelemetry/api');
const provider = new NodeTracerProvider({ spanProcessors: [new BatchSpanProcessor(new OTLPTraceExporter())] });
provider.register();
const tracer = provider.getTracer('shop');
tracer.startActiveSpan('search', (outer) => {
  outer.setAttributes({ 'gen_ai.operation.name': 'chat', 'gen_ai.request.model': 'small', 'gen_ai.usage.input_tokens': 7 });
  tracer.startActiveSpan('fetch', (inner) => {
    inner.recordException(new Error('gone ü'));
    inner.setStatus({ code: SpanStatusCode.ERROR, message: 'gone ü' });
    inner.end();
  });
  outer.end();
});
provider.shutdown();
"""


class Watching:
    """A `sonde watch --listen` as a process of its own."""

    def __init__(self, folder: Path, *flags: str, port: int = 0) -> None:
        self.store = folder / "state" / "traces"
        words = [
            "--listen",
            f"127.0.0.1:{port}",
            "--state",
            str(folder / "state"),
            "--every",
            "2s",
            "--settle",
            "1s",
            *flags,
        ]
        home = {"HOME": str(folder), "PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
        self.process = subprocess.Popen(
            [SONDE, "watch", *words], env=home, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if found := re.search(r"listening: (http://\S+)", line):
                self.url = found[1]
                return
        raise AssertionError("it does not listen")

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def run(self, *words: str | Path, **environ: str) -> None:
        """An app whose author set the endpoint."""
        own = {"PATH": os.environ["PATH"], "OTEL_EXPORTER_OTLP_ENDPOINT": self.url, **environ}
        subprocess.run([*map(str, words)], env=own, timeout=LONG_S, check=True, capture_output=True)

    def python(self, code: str, **environ: str) -> None:
        self.run(EXPORTERS / "bin/python", "-c", PYTHON + code, **environ)

    def spans(self) -> list[Span]:
        with FileStore(self.store) as store:
            rows = store.traces(TraceQuery(limit=100_000)).rows
            return [each for row in rows for each in store.spans(row.trace_id)]


@contextmanager
def watching(folder: Path, *flags: str) -> Generator[Watching]:
    watch = Watching(folder, *flags)
    try:
        yield watch
    finally:
        watch.process.kill()
        watch.process.communicate()


@pytest.mark.parametrize("packing", ["none", "gzip"])
def test_the_python_sdk_sends_what_the_store_holds(tmp_path: Path, packing: str) -> None:
    with watching(tmp_path) as watch:
        watch.python(CHECKOUTS.replace("COUNT", "600"), OTEL_EXPORTER_OTLP_COMPRESSION=packing, OTEL_SERVICE_NAME="web")
        spans = watch.spans()

    assert len(spans) == 1200
    outer = next(each for each in spans if each.attributes.get("order") == 41)
    assert outer.attributes == {"order": 41, "basket": ["tea", "rice"], "price": 1.5, "paid": False}
    assert outer.resource["service.name"] == "web"
    inner = next(each for each in spans if each.summary.parent_id == outer.summary.span_id)
    assert (inner.summary.kind, inner.summary.status, inner.summary.exception) == ("TOOL", "ERROR", True)


def test_openinference_of_an_openai_client_arrives_with_its_messages(tmp_path: Path) -> None:
    with watching(tmp_path) as watch, ScriptedServer("A drink.") as model:
        watch.python(CHAT.replace("MODEL", repr(model.base_url)))
        (call,) = watch.spans()

    assert call.summary.kind == "LLM"
    assert call.attributes["llm.input_messages.0.message.content"] == "What is tea?"
    assert call.attributes["llm.output_messages.0.message.content"] == "A drink."


@pytest.mark.parametrize("packing", ["none", "gzip"])
@pytest.mark.parametrize("form", ["http", "proto"])
def test_the_node_sdk_sends_json_and_protobuf(tmp_path: Path, form: str, packing: str) -> None:
    with watching(tmp_path) as watch:
        exporter = f"@opentelemetry/exporter-trace-otlp-{form}"
        modules = {"NODE_PATH": str(EXPORTERS / "node/node_modules"), "OTEL_EXPORTER_OTLP_COMPRESSION": packing}
        (tmp_path / "app.js").write_text(NODE)
        watch.run("node", tmp_path / "app.js", exporter, **modules)
        outer, inner = watch.spans()

    assert (outer.summary.kind, outer.attributes["llm.model_name"]) == ("LLM", "small")
    assert outer.attributes["llm.token_count.prompt"] == 7
    assert (inner.summary.parent_id, inner.summary.status_message) == (outer.summary.span_id, "gone ü")
    assert inner.summary.exception


def test_an_app_that_sets_the_endpoint_sees_its_failure_become_an_issue(tmp_path: Path) -> None:
    with watching(tmp_path) as watch:
        watch.python(CHECKOUTS.replace("COUNT", "5"))
        assert watch.process.stdout is not None
        told = watch.process.stdout.readline()  # the watch reads the store while the listener may write it

        command = [SONDE, "rca", "--source", watch.store, "--json", watch.spans()[0].summary.trace_id[:12]]
        home = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
        looked = subprocess.run(
            [*map(str, command)], env=home, cwd=tmp_path, capture_output=True, text=True, timeout=LONG_S, check=False
        )

    assert told.startswith("new: issue 1")
    assert "charge" in told
    assert looked.returncode == 0, looked.stderr
    assert "currency" in looked.stdout


def test_an_exporter_comes_back_until_the_store_has_room_again(tmp_path: Path) -> None:
    with (
        Intake(tmp_path / "store", queued_bytes=1) as intake,
        OtlpListener(intake, ListenAddress("127.0.0.1", 0)) as listener,
        closing(sqlite3.connect(tmp_path / "store" / "spans.sqlite", isolation_level=None)) as blocker,
    ):
        blocker.execute("BEGIN IMMEDIATE")  # the writer waits
        intake.accept(read_request(as_json(request(span(1))), "application/json").spans)
        assert intake.behind
        own = {
            "PATH": os.environ["PATH"],
            "OTEL_EXPORTER_OTLP_ENDPOINT": listener.url,
            "OTEL_EXPORTER_OTLP_TIMEOUT": "200",
        }
        with subprocess.Popen(
            [str(EXPORTERS / "bin/python"), "-c", PYTHON + CHECKOUTS.replace("COUNT", "5")],
            env=own,
            stderr=subprocess.PIPE,
            text=True,
        ) as app:
            assert app.stderr is not None
            assert "retry" in next(line for line in app.stderr if "rying" in line or "retry" in line)
            blocker.execute("ROLLBACK")
            app.communicate(timeout=LONG_S)
    with FileStore(tmp_path / "store") as store:
        assert sum(row.span_count for row in store.traces(TraceQuery()).rows if row.trace_id != trace_id(1)) == 10


def test_nothing_that_was_answered_with_200_is_lost_by_kill_9(tmp_path: Path) -> None:
    acknowledged: set[str] = set()
    numbers = itertools.count(1)
    enough = threading.Semaphore(0)

    def send(port: int) -> None:
        """One request after the other, until the listener is gone. Each span comes twice, as from an exporter that heard no reply."""
        line = http.client.HTTPConnection("127.0.0.1", port, timeout=LONG_S)
        with closing(line), suppress(OSError, http.client.HTTPException):
            while True:
                number = next(numbers)
                body = as_protobuf(request(span(number, trace=number), span(number, trace=number)))
                line.request("POST", "/v1/traces", body, {"Content-Type": "application/x-protobuf"})
                reply = line.getresponse()
                if (reply.status, reply.read()) == (200, b""):
                    acknowledged.add(span_id(number))
                    enough.release()

    for turn in range(4):
        watch = Watching(tmp_path)
        senders = [threading.Thread(target=send, args=(watch.port,)) for _ in range(3)]
        for sender in senders:
            sender.start()
        for _ in range(50 + 7 * turn):
            enough.acquire()
        os.kill(watch.process.pid, signal.SIGKILL)
        watch.process.communicate()
        for sender in senders:
            sender.join()

    with FileStore(tmp_path / "state" / "traces") as store:
        rows = store.traces(TraceQuery(limit=100_000)).rows
        held = [each.span_id for row in rows for each in store.summaries(row.trace_id)]
    assert len(acknowledged) >= 200
    assert len(held) == len(set(held))
    assert acknowledged <= set(held)
