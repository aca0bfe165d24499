"""Odd but legal exports: nothing that a file says is lost or turned into something else."""

from __future__ import annotations

import codecs
import json
from pathlib import Path

import pytest
from trace_samples import TRACE, Json, raw_span, store_of

from sonde.contexts.traces.filestore import FileStore
from sonde.contexts.traces.inspection import Inspection
from sonde.contexts.traces.transcript import transcript_of
from sonde.contexts.traces.views import messages_of

FIRST, SECOND = "0000000000000001", "0000000000000002"


@pytest.mark.parametrize(
    "text",
    [
        "{0}\n{1}\n",
        "[{0},\n{1}]\n",
        "[ {0}\n, {1}\n]\n",
        '{{"spans":\n[{0}, {1}]}}\n',
        '{{"spans": [\n{0},\n{1}\n]}}',
        '{{"name": "x"\n, "spans": [{0}, {1}]}}',
    ],
)
@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
def test_a_document_is_read_wherever_its_lines_break_and_behind_a_byte_order_mark(
    tmp_path: Path, text: str, mark: bytes
) -> None:
    path = tmp_path / "traces.json"
    path.write_bytes(mark + text.format(json.dumps(raw_span(1)), json.dumps(raw_span(2))).encode())

    with FileStore(path) as store:
        assert [span.span_id for span in store.summaries(TRACE)] == [FIRST, SECOND]
        assert store.malformed() == []


@pytest.mark.parametrize("broken", ['{"trace_id": "x", ', '{"trace_id": "x', "garbage"])
def test_a_broken_first_line_costs_only_itself(tmp_path: Path, broken: str) -> None:
    path = tmp_path / "traces.jsonl"
    path.write_text(f"{broken}\n{json.dumps(raw_span(1))}\n{json.dumps(raw_span(2))}\n")

    with FileStore(path) as store:
        assert [span.span_id for span in store.summaries(TRACE)] == [FIRST, SECOND]
        assert [bad["line"] for bad in store.malformed()] == [1]


def test_an_error_as_the_otel_sdk_prints_it_stays_an_error_with_its_words(tmp_path: Path) -> None:
    raw = raw_span(1, status={"status_code": "ERROR", "description": "boom"})
    del raw["status_code"], raw["status_message"]

    (summary,) = store_of(tmp_path, [raw]).summaries(TRACE)

    assert (summary.status, summary.status_message) == ("ERROR", "boom")


def test_events_of_a_flat_span_may_be_written_as_in_otlp(tmp_path: Path) -> None:
    pair = {"key": "exception.message", "value": {"stringValue": "boom"}}
    event = {"name": "exception", "timeUnixNano": "1760000001000000000", "attributes": [pair]}

    (found,) = store_of(tmp_path, [raw_span(1, events=[event])]).span(FIRST).events

    assert found.attributes == {"exception.message": "boom"}
    assert found.row()["timestamp"] == "2025-10-09T08:53:21.000000Z"


def test_keys_with_digits_that_are_no_numbers_are_ordinary_keys(tmp_path: Path) -> None:
    odd = {"llm.input_messages.².message.content": "x", "llm.input_messages.3.message.content": "y", " a.².b": "z"}

    store = store_of(tmp_path, [raw_span(1, attributes=odd)])

    assert [row["content"] for row in Inspection(store).get_messages(FIRST).value] == ["y"]
    assert store.span(FIRST).attributes["a.².b"] == "z"


def test_content_in_parts_is_shown_and_not_taken_for_empty(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "hello"}, {"type": "image_url", "image_url": {"url": "http://x/y.png"}}]
    messages = [{"message": {"role": "user", "content": parts}}]

    store = store_of(tmp_path, [raw_span(1, attributes={"llm.input_messages": messages})])

    (message,) = Inspection(store).get_messages(FIRST).value
    assert "hello" in message["content"]
    assert "http://x/y.png" in message["content"]


LANGFUSE = {
    "id": TRACE,
    "timestamp": "2026-01-01T00:00:00Z",
    "observations": [
        {
            "id": FIRST,
            "type": "GENERATION",
            "startTime": "2026-01-01T00:00:00Z",
            "input": [{"role": "user", "content": "the question"}],
            "output": "the answer",
        }
    ],
}
LANGSMITH = {
    "id": FIRST,
    "trace_id": TRACE,
    "run_type": "llm",
    "start_time": "2026-01-01T00:00:00",
    "inputs": {"messages": [{"role": "user", "content": "the question"}]},
    "outputs": {"generations": [[{"text": "the answer"}]]},
}
MIXED = raw_span(
    1,
    attributes={
        "openinference.span.kind": "LLM",
        "llm.input_messages": [{"message": {"role": "user", "content": "the question"}}],
        "output.value": "the answer",
    },
)


@pytest.mark.parametrize("record", [LANGFUSE, LANGSMITH, MIXED])
def test_a_plain_answer_to_chat_messages_is_a_message_too(tmp_path: Path, record: Json) -> None:
    store = store_of(tmp_path, [record])

    asked, said = Inspection(store).get_messages(FIRST).value
    (step,) = transcript_of(store.spans(TRACE)).steps

    assert (asked["content"], asked["metadata"]["direction"]) == ("the question", "input")
    assert said["metadata"]["direction"] == "output"
    assert "the answer" in said["content"]
    assert "the answer" in step.came


def test_a_name_of_a_reply_is_not_taken_for_its_words(tmp_path: Path) -> None:
    asked = json.dumps([{"role": "user", "parts": [{"type": "text", "content": "q"}]}])
    genai = {"gen_ai.operation.name": "chat", "gen_ai.input.messages": asked, "gen_ai.response.model": "m-1"}

    store = store_of(tmp_path, [raw_span(1, attributes=genai)])

    assert [row["content"] for row in Inspection(store).get_messages(FIRST).value] == ["q"]


def test_a_trace_whose_span_ids_are_taken_by_another_trace_does_not_vanish_in_silence(tmp_path: Path) -> None:
    other = "f" * 32
    rows = [raw_span(1), raw_span(2), raw_span(1, trace_id=other), raw_span(2, trace_id=other), raw_span(2)]

    store = store_of(tmp_path, rows)

    assert "1 trace, 2 spans" in store.describe()
    assert "2 malformed records skipped" in store.describe()
    assert [bad["line"] for bad in store.malformed()] == [3, 4]
    assert f"span {FIRST} of trace {other}" in store.malformed()[0]["reason"]
    assert store.gaps(TRACE) == [f"span id {SECOND} appears again (line 5); the first one was kept"]


def test_children_in_a_nested_document_find_a_parent_whose_id_is_a_number(tmp_path: Path) -> None:
    child = {"span_id": 2, "timestamp": "2026-01-01T00:00:01Z", "span_name": "child"}
    root = {"span_id": 1, "timestamp": "2026-01-01T00:00:00Z", "span_name": "root", "child_spans": [child]}

    found = store_of(tmp_path, [{"trace_id": TRACE, "spans": [root]}]).summaries(TRACE)

    assert [(span.span_id, span.parent_id) for span in found] == [("1", None), ("2", "1")]


def test_gaps_that_are_not_listed_are_counted(tmp_path: Path) -> None:
    store = store_of(tmp_path, [raw_span(1)] * 151)

    gaps = store.gaps(TRACE)

    assert len(gaps) == 101
    assert gaps[-1] == "50 more span ids that appear again are not listed"


ASKED = [{"role": "user", "content": "hi"}]
LANGFUSE_IN_A_BUCKET: Json = {
    "id": "o-1",
    "trace_id": "t-1",
    "type": "GENERATION",
    "parent_observation_id": "o-0",
    "start_time": "2026-01-01 00:00:00.000000",
    "end_time": "2026-01-01 00:00:01.500000",
    "name": "chat",
    "level": "ERROR",
    "status_message": "no answer",
    "provided_model_name": "gpt-x",
    "usage_details": {"input": 5, "output": 2},
    "input": json.dumps(ASKED),
    "output": None,
}
LANGSMITH_IN_A_BUCKET: Json = {
    "id": "o-1",
    "trace_id": "t-1",
    "run_type": "llm",
    "parent_run_id": "o-0",
    "start_time": "2026-01-01T00:00:00",
    "end_time": "2026-01-01T00:00:01.500000",
    "name": "chat",
    "error": "no answer",
    "extra": json.dumps({"invocation_params": {"model": "gpt-x"}}),
    "prompt_tokens": 5,
    "inputs": json.dumps({"messages": ASKED}),
    "outputs": None,
}


@pytest.mark.parametrize("row", [LANGFUSE_IN_A_BUCKET, LANGSMITH_IN_A_BUCKET], ids=["langfuse", "langsmith"])
def test_exports_to_a_bucket_read_like_those_of_the_page(tmp_path: Path, row: Json) -> None:
    with store_of(tmp_path, [row]) as store:
        span = store.span("o-1")

    summary = span.summary
    assert (summary.trace_id, summary.parent_id, summary.kind, summary.latency_ms) == ("t-1", "o-0", "LLM", 1500.0)
    assert (summary.status, summary.status_message) == ("ERROR", "no answer")
    assert (span.attributes["llm.model_name"], span.attributes["llm.token_count.prompt"]) == ("gpt-x", 5)
    assert [(each.row["role"], each.row["content"]) for each in messages_of(span)] == [("user", "hi")]
