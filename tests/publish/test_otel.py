"""A run as a trace: the right kinds, counts and tree, no content unless allowed, and nothing global."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from openinference.semconv.trace import SpanAttributes
from opentelemetry import trace as otel_api
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from runs.streams import Teller, TickingClock, long_story, story, told
from sonde.api.ask_run import ask
from sonde.api.settings import Settings
from sonde.core.events import Event, ModelReplied, Noted, RunEnded
from sonde.publish.otel import TraceNotSent, TraceSender, otlp_exporter, readable_spans, send_trace
from sonde.publish.spans import RunSpan, spans_of, trace_id
from sonde.runs.recorder import Recorder
from sonde.testing import ScriptedModel, run_in_memory


class Receiver(HTTPServer):
    """An OTLP backend on loopback that keeps what it gets."""

    def __init__(self, status: int = 200) -> None:
        super().__init__(("127.0.0.1", 0), _Exchange)
        self.status = status
        self.requests: list[ExportTraceServiceRequest] = []
        self.paths: list[str] = []
        self.elsewhere = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def spans(self) -> list[Any]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


class _Exchange(BaseHTTPRequestHandler):
    server: Receiver  # pyright: ignore[reportIncompatibleVariableOverride]  # only a Receiver starts it

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.paths.append(self.path)
        self.server.requests.append(ExportTraceServiceRequest.FromString(body))
        self.send_response(self.server.status)
        self.send_header("content-length", "0")
        if self.server.elsewhere:
            self.send_header("location", self.server.elsewhere)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the overridden method's name for it
        """Silent."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    yield from _serve(Receiver())


def _serve(server: Receiver) -> Iterator[Receiver]:
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def kinds(spans: list[RunSpan]) -> dict[str, int]:
    found: dict[str, int] = {}
    for span in spans:
        found[span.kind] = found.get(span.kind, 0) + 1
    return found


def test_sessions_replies_calls_and_gates_have_their_kinds() -> None:
    assert kinds(spans_of(told())) == {"AGENT": 2, "LLM": 11, "CHAIN": 10, "TOOL": 7, "EVALUATOR": 2}


def test_the_tree_is_one_tree_with_sub_calls_below_the_code_that_made_them() -> None:
    spans = {span.id: span for span in spans_of(told())}
    roots = [span for span in spans.values() if span.parent is None]
    child = next(span for span in spans.values() if span.name == "sub-call")

    assert [root.name for root in roots] == ["sonde ask"]
    assert all(span.parent in spans for span in spans.values() if span.parent)
    around = spans[str(child.parent)]
    assert (around.name, around.attributes["sonde.turn"]) == ("python", 3)
    assert spans[str(around.parent)] is roots[0]


def test_tokens_and_cost_add_up_to_the_runs() -> None:
    replies = [event for event in told() if isinstance(event, ModelReplied)]
    spans = [span for span in spans_of(told()) if span.kind == "LLM"]

    def total(name: str) -> float:
        return sum(float(span.attributes.get(name, 0)) for span in spans)  # pyright: ignore[reportArgumentType]  # numbers

    assert total(SpanAttributes.LLM_TOKEN_COUNT_PROMPT) == sum(reply.tokens_in for reply in replies) + 50
    assert total(SpanAttributes.LLM_TOKEN_COUNT_COMPLETION) == sum(reply.tokens_out for reply in replies)
    assert total(SpanAttributes.LLM_COST_TOTAL) == pytest.approx(sum(reply.cost_usd or 0 for reply in replies))


def test_our_names_are_those_of_the_convention() -> None:
    known = {getattr(SpanAttributes, name) for name in dir(SpanAttributes) if name.isupper()}

    for span in spans_of(told(), content=True):
        ours = {name.split(".0.")[0].split(".1.")[0].split(".2.")[0] for name in span.attributes}
        assert {name for name in ours if not name.startswith(("sonde.", "llm.input", "llm.output"))} <= known


def test_content_is_left_out_unless_it_is_allowed() -> None:
    events = told(remark="TOP-SECRET-WORDS")

    assert "TOP-SECRET-WORDS" not in str(spans_of(events))
    assert "RETRIES" not in str(spans_of(events))
    allowed = spans_of(events, content=True)
    assert "TOP-SECRET-WORDS" in str(allowed)
    model = [span for span in allowed if span.kind == "LLM"][1].attributes
    assert model["llm.input_messages.0.message.role"] == "system"
    assert model["llm.input_messages.3.message.content"] == "Output of turn 1"
    assert model["llm.output_messages.0.message.role"] == "assistant"


def test_the_error_of_a_run_may_quote_its_answer_and_is_content_too() -> None:
    words = "the final value does not fit the schema: value must be integer, not 'the key is under the mat'"
    error = {"code": "SCHEMA_VALIDATION_FAILED", "message": words, "stage": "runtime_validation", "retryable": False}
    events = [*(event for event in told() if not isinstance(event, RunEnded)), RunEnded(status="failed", error=error)]

    kept, allowed = (spans_of(events, content=content)[0] for content in (False, True))

    assert "under the mat" not in str(spans_of(events))
    assert kept.error == "SCHEMA_VALIDATION_FAILED"
    assert allowed.error == words


def test_failures_are_errors() -> None:
    spans = spans_of(told())

    assert {span.name for span in spans if span.error} == {"model attempt 1", "python", "read_file"}


def test_a_run_that_was_cut_off_has_spans_that_say_so() -> None:
    cut = spans_of(told()[:30])

    assert any(span.error and "cut off" in span.error for span in cut)
    assert all(span.end >= span.start for span in cut)


def test_sending_twice_sends_the_same_ids() -> None:
    first, second = InMemorySpanExporter(), InMemorySpanExporter()

    assert send_trace(told(), first) == send_trace(told(), second) == 32
    ids = [[span.context.span_id for span in exporter.get_finished_spans()] for exporter in (first, second)]  # pyright: ignore[reportOptionalMemberAccess]  # ours have one
    assert ids[0] == ids[1] and len(set(ids[0])) == 32


def test_no_tracer_provider_is_made_or_changed() -> None:
    before = otel_api.get_tracer_provider()

    send_trace(told(), InMemorySpanExporter())

    assert otel_api.get_tracer_provider() is before


def test_a_listener_sends_the_trace_when_the_run_ends() -> None:
    exporter = InMemorySpanExporter()
    story(Teller(Recorder(TickingClock(), listeners=[TraceSender(exporter)])))

    spans = exporter.get_finished_spans()
    assert len(spans) == 32
    assert {span.context.trace_id for span in spans} == {int(trace_id("run-1"), 16)}  # pyright: ignore[reportOptionalMemberAccess]  # ours have one


def test_a_real_receiver_gets_the_whole_trace(receiver: Receiver) -> None:
    sent = send_trace(told(), otlp_exporter(receiver.url), content=True, project="night-shift")

    assert receiver.paths == ["/v1/traces"]
    assert len(receiver.spans) == sent == 32
    resource = {
        each.key: each.value.string_value for each in receiver.requests[0].resource_spans[0].resource.attributes
    }
    assert resource["openinference.project.name"] == "night-shift"
    root = next(span for span in receiver.spans if not span.parent_span_id)
    attributes = {each.key: each.value.string_value for each in root.attributes}
    assert attributes["openinference.span.kind"] == "AGENT"
    assert "three times" in attributes["output.value"]
    assert root.end_time_unix_nano > root.start_time_unix_nano


def test_a_long_run_is_sent_in_parts(receiver: Receiver) -> None:
    teller = Teller(Recorder(TickingClock()))
    long_story(teller, 2_000)

    sent = send_trace(teller.events, otlp_exporter(f"{receiver.url}/v1/traces"))

    assert len(receiver.spans) == sent > 1_000 and len(receiver.requests) > 1


def test_a_backend_that_refuses_is_named_and_does_not_hurt_the_run() -> None:
    heard: list[Event] = []
    for receiver in _serve(Receiver(status=400)):
        with pytest.raises(TraceNotSent):
            send_trace(told(), otlp_exporter(receiver.url))
        story(Teller(Recorder(TickingClock(), listeners=[TraceSender(otlp_exporter(receiver.url)), heard.append])))

    assert any(isinstance(event, Noted) and "backend did not take the spans" in event.text for event in heard)


def test_a_backend_that_points_elsewhere_gets_no_second_request(receiver: Receiver) -> None:
    for other in _serve(Receiver(status=307)):
        other.elsewhere = f"{receiver.url}/v1/traces"
        with pytest.raises(TraceNotSent):
            send_trace(told(), otlp_exporter(other.url, headers={"api-key": "mine"}))

        assert other.requests and not receiver.requests


def test_attributes_are_of_types_that_otel_takes() -> None:
    for span in readable_spans(told(), content=True):
        assert span.attributes is not None
        assert all(isinstance(value, str | int | float | bool) for value in span.attributes.values())


def test_a_real_run_is_one_tree() -> None:
    exporter = InMemorySpanExporter()
    replies = ["```python\nprint(llm_query('is it one?'))\n```", "```python\nFINAL('one [text:1-1]')\n```"]
    model = ScriptedModel(
        lambda request: (
            "yes"
            if len(request.messages) == 2 and "is it one?" in request.messages[1].content
            else replies[min(sum(m.role == "assistant" for m in request.messages), 1)]
        )
    )

    run_in_memory(model, on_event=TraceSender(exporter, content=True))

    spans = exporter.get_finished_spans()
    ids = {span.context.span_id for span in spans}  # pyright: ignore[reportOptionalMemberAccess]  # ours have one
    assert sum(span.parent is None for span in spans) == 1
    assert all(span.parent is None or span.parent.span_id in ids for span in spans)
    assert {str((span.attributes or {})["openinference.span.kind"]) for span in spans} >= {
        "AGENT",
        "LLM",
        "CHAIN",
        "TOOL",
    }


def test_a_setting_sends_every_run_as_a_trace_without_its_content(receiver: Receiver) -> None:
    settings = Settings(otel_endpoint=receiver.url, otel_project="asks")

    run_in_memory(ScriptedModel(["FINAL('secret words')"] * 2), "a question", settings=settings)

    assert receiver.paths == ["/v1/traces"]
    assert len(receiver.spans) >= 3
    assert b"secret words" not in receiver.requests[0].SerializeToString()


def test_a_masked_run_is_sent_with_placeholders_also_where_content_is_allowed(receiver: Receiver) -> None:
    settings = Settings(otel_endpoint=receiver.url, otel_content=True)
    model = ScriptedModel(["print(context)", "FINAL('<email-1>')"])
    options: dict[str, Any] = {"settings": settings, "mask": True, "citations": False, "in_memory": True}
    answer = ask("Whose is it?", "mail of jane@corp.com came", model=model, **options)

    sent = b"".join(request.SerializeToString() for request in receiver.requests)
    assert answer.text == "jane@corp.com"
    assert b"<email-1>" in sent
    assert b"jane" not in sent
