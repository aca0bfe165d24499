"""One canonical span from every source."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from trace_samples import START_NS, TRACE, TRAIL, Json, as_otlp, raw_span, spans_in, write_lines

from sonde.contexts.traces.attributes import canonical_attributes
from sonde.contexts.traces.catalog import otlp_request
from sonde.contexts.traces.importers import spans_of
from sonde.contexts.traces.span import Micros, Span, build_span, us_of, us_of_nanos
from sonde.contexts.traces.views import chunks_of, messages_of, tool_io_of

RICH = raw_span(
    2,
    attributes={
        "openinference.span.kind": "LLM",
        "input.value": "Frage: wie hoch? ☃",
        "llm.token_count.prompt": "12",
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.content": "hello",
        "metadata": json.dumps({"tier": "free", "tags": ["a", "b"], "nested": {"deep": 1}}),
        "scores": [0.5, 0.25],
        "ratio": 0.125,
        "flag": True,
    },
    status_code="ERROR",
    status_message="it broke",
    events=[
        {
            "name": "exception",
            "timestamp": START_NS + 3_000_000,
            "attributes": {"exception.message": "boom", "exception.type": "ValueError", "own": "dropped by Phoenix"},
        }
    ],
)


def iso(nanoseconds: int) -> str:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=nanoseconds // 1000)
    return moment.isoformat()


def as_phoenix(span: Json) -> Json:
    """The same span as the REST interface of a Phoenix server returns it: parsed, exploded, renumbered."""
    attributes = {
        "input.value": "Frage: wie hoch? ☃",
        "llm.token_count.prompt": 12,
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.content": "hello",
        "metadata.tier": "free",
        "metadata.tags": ["a", "b"],
        "metadata.nested.deep": 1,
        "scores": [0.5, 0.25],
        "ratio": 0.125,
        "flag": True,
    }
    event = {"exception.message": "boom", "exception.type": "ValueError"}
    return {
        "id": "U3Bhbjox",
        "context": {"trace_id": span["trace_id"], "span_id": span["span_id"]},
        "parent_id": span["parent_id"],
        "name": span["name"],
        "span_kind": "LLM",
        "start_time": iso(span["start_time"]),
        "end_time": iso(span["end_time"]),
        "status_code": "ERROR",
        "status_message": "it broke",
        "attributes": attributes,
        "events": [{"name": "exception", "timestamp": iso(START_NS + 3_000_000), "attributes": event}],
    }


def as_columns(span: Json) -> Json:
    """The same span as a row of a Phoenix data frame."""
    rest = as_phoenix(span)
    columns: Json = {f"context.{key}": value for key, value in rest["context"].items()}
    columns |= {
        key: rest[key] for key in ("parent_id", "name", "span_kind", "start_time", "end_time", "status_code", "events")
    }
    columns |= {
        "status_message": "it broke",
        "attributes.input.value": "Frage: wie hoch? ☃",
        "attributes.llm.token_count.prompt": 12.0,
        "attributes.llm.input_messages": [{"message.role": "user", "message.content": "hello"}],
        "attributes.metadata": {"tier": "free", "tags": ["a", "b"], "nested": {"deep": 1}},
        "attributes.scores": [0.5, 0.25],
        "attributes.ratio": 0.125,
        "attributes.flag": True,
    }
    return columns


def as_trail(span: Json) -> Json:
    """The same span nested in a TRAIL document."""
    inner = {
        "timestamp": iso(span["start_time"]),
        "trace_id": span["trace_id"],
        "span_id": span["span_id"],
        "parent_span_id": span["parent_id"],
        "span_name": span["name"],
        "span_kind": "Internal",
        "span_attributes": span["attributes"],
        "duration": "PT0.005S",
        "status_code": "Error",
        "status_message": "it broke",
        "events": [
            {
                "Name": event["name"],
                "Timestamp": iso(event["timestamp"]).removesuffix("+00:00"),
                "Attributes": event["attributes"],
            }
            for event in span["events"]
        ],
        "logs": [{"body": "the true answer is 42"}],
        "child_spans": [],
    }
    return {"trace_id": span["trace_id"], "spans": [inner]}


def only(value: Any) -> Span:
    spans = [item for item in spans_of(value)[1] if isinstance(item, Span)]
    assert len(spans) == 1
    return spans[0]


@pytest.mark.requirement(100)
@pytest.mark.parametrize("form", [as_otlp, as_phoenix, as_columns, as_trail])
def test_the_same_span_has_the_same_hash_from_every_source(form: Any) -> None:
    assert only(form(RICH)).text() == only(RICH).text()
    assert only(form(RICH)).hash() == only(RICH).hash()


def test_a_canonical_span_tells_kind_status_times_and_typed_attributes() -> None:
    span = only(as_otlp(RICH))

    assert span.summary.row() == {
        "trace_id": TRACE,
        "span_id": "0000000000000002",
        "parent_id": "0000000000000001",
        "name": "step 2",
        "span_kind": "LLM",
        "status_code": "ERROR",
        "status_message": "it broke",
        "start_time": "2025-10-09T08:53:20.125456Z",
        "end_time": "2025-10-09T08:53:20.130456Z",
        "latency_ms": 5.0,
    }
    assert span.attributes["llm.token_count.prompt"] == 12
    assert span.attributes["metadata.nested.deep"] == 1
    assert span.summary.exception


@pytest.mark.parametrize("path", sorted(TRAIL.glob("*.json")), ids=lambda path: path.stem[:8])
def test_logs_of_trail_documents_are_never_read(path: Path, tmp_path: Path) -> None:
    document = json.loads(path.read_text("utf-8"))
    for span in document["spans"]:
        span["logs"] = [{"body": "SECRET-ANSWER"}]
    copy = tmp_path / "trace.json"
    copy.write_text(json.dumps(document, indent=1), "utf-8")

    spans = spans_in(copy)

    assert [span.hash() for span in spans] == [span.hash() for span in spans_in(path)]
    assert not any("SECRET-ANSWER" in span.text() for span in spans)


def test_gaps_in_message_indices_are_closed_and_told() -> None:
    attributes = {f"llm.input_messages.{index}.message.content": f"m{index}" for index in (3, 4, 9)}

    span = only(raw_span(attributes=attributes))
    messages = [artifact.row for artifact in messages_of(span)]

    assert [message["content"] for message in messages] == ["m3", "m4", "m9"]
    assert [message["metadata"]["position"] for message in messages] == [0, 1, 2]
    assert all(message["metadata"]["index_gap"] for message in messages)
    assert "llm.input_messages: 3 items kept of indices 3..9" in span.gaps[0]


def test_a_message_keeps_its_pointer_when_others_before_it_are_dropped() -> None:
    def attributes(kept: range) -> Json:
        return {f"llm.input_messages.{index}.message.content": f"m{index}" for index in kept}

    whole, cut = (messages_of(only(raw_span(attributes=attributes(kept)))) for kept in (range(5), range(2, 5)))

    assert [artifact.ref for artifact in whole[2:]] == [artifact.ref for artifact in cut]


def test_genai_names_mean_the_same_as_openinference_ones() -> None:
    parts = [{"role": "user", "parts": [{"type": "text", "content": "hello"}]}]
    reply = [{"role": "assistant", "parts": [{"type": "tool_call", "id": "c1", "name": "add", "arguments": {"a": 1}}]}]
    span = only(
        {
            **raw_span(),
            "attributes": {
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": "openai",
                "gen_ai.request.model": "gpt-x",
                "gen_ai.request.temperature": 0.5,
                "gen_ai.usage.input_tokens": 3,
                "gen_ai.usage.output_tokens": 4,
                "gen_ai.system_instructions": json.dumps([{"type": "text", "content": "be brief"}]),
                "gen_ai.input.messages": json.dumps(parts),
                "gen_ai.output.messages": json.dumps(reply),
            },
        }
    )

    assert span.summary.kind == "LLM"
    assert span.attributes["llm.model_name"] == "gpt-x"
    assert span.attributes["llm.token_count.total"] == 7
    rows = [artifact.row for artifact in messages_of(span)]
    assert [(row["role"], row["content"]) for row in rows] == [
        ("system", "be brief"),
        ("user", "hello"),
        ("assistant", ""),
    ]
    assert rows[2]["metadata"]["tool_calls"] == [{"id": "c1", "name": "add", "arguments": '{"a": 1}'}]


def test_a_genai_tool_span_shows_its_call() -> None:
    span = only(
        {
            **raw_span(),
            "attributes": {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": "add",
                "gen_ai.tool.call.arguments": '{"a": 1}',
                "gen_ai.tool.call.result": "2",
            },
        }
    )

    found = tool_io_of(span)

    assert span.summary.kind == "TOOL"
    assert found is not None
    assert (found.row["tool_name"], found.row["input"], found.row["output"]) == ("add", '{"a": 1}', "2")


def test_genai_retrieval_and_embeddings_have_their_kinds() -> None:
    documents = json.dumps([{"id": "d1", "score": 0.9, "content": "text"}])
    retrieval = {
        "gen_ai.operation.name": "retrieval",
        "gen_ai.retrieval.query.text": "q",
        "gen_ai.retrieval.documents": documents,
    }
    found = only({**raw_span(), "attributes": retrieval})
    embedding = only({**raw_span(), "attributes": {"gen_ai.operation.name": "embeddings", "gen_ai.request.model": "e"}})

    assert found.summary.kind == "RETRIEVER"
    assert chunks_of(found)[0].row["document_id"] == "d1"
    assert embedding.summary.kind == "EMBEDDING"
    assert embedding.attributes["embedding.model_name"] == "e"


def test_older_spellings_are_read_where_nobody_translates_them() -> None:
    legacy = only(
        {
            **raw_span(),
            "attributes": {
                "traceloop.span.kind": "tool",
                "gen_ai.prompt.0.role": "user",
                "gen_ai.prompt.0.content": "hi",
                "gen_ai.completion.0.role": "assistant",
                "gen_ai.completion.0.content": "ho",
            },
        }
    )

    assert legacy.summary.kind == "TOOL"
    assert [artifact.row["content"] for artifact in messages_of(legacy)] == ["hi", "ho"]


def test_messages_recorded_as_events_and_plain_input_count_too() -> None:
    event = {"name": "gen_ai.user.message", "timestamp": START_NS, "attributes": {"content": "from an event"}}
    by_event = only(raw_span(events=[event]))
    plain = only(raw_span(attributes={"input.value": "in", "output.value": "out"}))

    assert [artifact.row["content"] for artifact in messages_of(by_event)] == ["from an event"]
    assert [(a.row["role"], a.row["content"]) for a in messages_of(plain)] == [("user", "in"), ("assistant", "out")]


def test_chunks_carry_the_contract_pointers() -> None:
    span = only(
        raw_span(
            attributes={
                "retrieval.documents.0.document.id": "doc-7",
                "retrieval.documents.0.document.content": "text",
                "retrieval.documents.0.document.score": 0.5,
                "retrieval.documents.0.document.metadata": '{"chunk_id": "c3", "page": 2}',
                "retrieval.documents.1.document.content": "no id",
            }
        )
    )

    refs = [artifact.ref for artifact in chunks_of(span)]

    assert refs == ["retrieval:0000000000000001:0:doc-7:chunk=c3", "retrieval:0000000000000001:1:"]
    assert chunks_of(span)[0].row["metadata"] == {"chunk_id": "c3", "page": 2}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2025-03-19T16:32:08.062589Z", 1_742_401_928_062_589),
        ("2025-03-19T16:32:08.062589123Z", 1_742_401_928_062_589),
        ("2025-03-19T17:32:08+01:00", 1_742_401_928_000_000),
        ("2025-03-19T16:32:08", 1_742_401_928_000_000),
        (1_742_401_928_062_589_000, 1_742_401_928_062_589),
        ("1742401928062589000", 1_742_401_928_062_589),
        (1_742_401_928_062, 1_742_401_928_062_000),
        (1_742_401_928, 1_742_401_928_000_000),
        (Micros(5), 5),
        (None, None),
    ],
)
def test_times_are_read_in_every_usual_spelling(value: Any, expected: int | None) -> None:
    assert us_of(value) == expected


@given(st.integers(0, 4_000_000_000_000_000))
def test_whole_microseconds_survive_the_way_through_nanoseconds(micros: int) -> None:
    assert us_of_nanos(micros * 1000) == micros


@pytest.mark.parametrize("missing", ["trace_id", "span_id", "start_time"])
def test_a_span_without_id_or_start_is_told_not_guessed(missing: str, tmp_path: Path) -> None:
    broken = {key: value for key, value in raw_span().items() if key != missing}

    assert not spans_in(write_lines(tmp_path / "t.jsonl", [broken]))


KEYS = st.text(st.sampled_from("ab0 1."), min_size=1, max_size=8)
LEAVES = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=True) | st.text(max_size=8)
TREES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
)


@given(st.dictionaries(KEYS, TREES, max_size=6))
def test_canonical_attributes_stay_as_they_are_when_made_canonical_again(raw: Json) -> None:
    once, _ = canonical_attributes(raw)
    twice, gaps = canonical_attributes(once)

    assert twice == once
    assert not gaps


@given(st.dictionaries(KEYS, TREES, max_size=6), st.integers(0, 2**50), st.sampled_from(["OK", "ERROR", "UNSET"]))
def test_export_to_otel_lines_and_back_gives_the_same_hash(raw: Json, start: int, status: str) -> None:
    span = build_span(
        trace_id=TRACE, span_id="ab" * 8, start=Micros(start), end=Micros(start + 7), status=status, attributes=raw
    )

    again = only(json.loads(json.dumps(otlp_request(span))))

    assert again.hash() == span.hash()


def test_a_tool_that_returned_a_list_of_many_numbers_is_read() -> None:
    told = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.call.result": list(range(200_001))}

    table, _ = canonical_attributes(told)

    assert table["output.value"].startswith("[0")
