"""Transcripts of odd traces: nothing new is left out, no error is lost, and neither depth nor length makes them slow or endless."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from trace_samples import TRACE, Json, raw_span, store_of

from sonde.contexts.traces.context import TracesContext
from sonde.contexts.traces.inspection import PAGE_CHARS
from sonde.contexts.traces.span import Micros, Span, build_span
from sonde.contexts.traces.transcript import transcript_of
from sonde.tools import ToolRegistry


def span(number: int, kind: str, parent: int | None = None, **more: Any) -> Span:
    return build_span(
        trace_id=TRACE,
        span_id=f"{number:016x}",
        parent_id=None if parent is None else f"{parent:016x}",
        name=f"s{number}",
        kind=kind,
        start=Micros(number * 1000),
        end=Micros(number * 1000 + 500),
        **more,
    )


def call(number: int) -> Json:
    function = {"name": "look", "arguments": json.dumps({"page": number})}
    return {"message": {"role": "assistant", "content": "", "tool_calls": [{"tool_call": {"function": function}}]}}


def test_a_message_that_only_calls_tools_is_new_when_its_calls_are() -> None:
    found = transcript_of(
        [
            span(1, "LLM", attributes={"llm.input_messages": [call(1)]}),
            span(2, "LLM", attributes={"llm.input_messages": [call(1), call(2)]}),
        ]
    )

    first, second = (step.text(2000) for step in found.steps)
    assert first.count("page") == 1
    assert second.count("page") == 1
    assert '\\"page\\": 2' in second


def test_an_error_of_any_wrapper_is_told_at_the_last_step_inside_once() -> None:
    found = transcript_of(
        [
            span(1, "AGENT", status="ERROR", status_message="no steps left"),
            span(2, "LLM", 1, attributes={"output.value": "one"}),
            span(3, "TOOL", 1, attributes={"output.value": "two"}),
            span(4, "UNKNOWN", 1, status="ERROR", status_message="gave up"),
            span(5, "TOOL", 4, attributes={"output.value": "three"}),
        ]
    )

    assert [step.around for step in found.steps] == ["", "", "gave up"]
    assert "no steps left" not in found.text()  # gave up is below it and says where the error began


def test_an_error_of_an_agent_whose_steps_all_went_well_is_told() -> None:
    found = transcript_of(
        [
            span(1, "AGENT", status="ERROR", status_message="no steps left"),
            span(2, "LLM", 1, attributes={"output.value": "one"}),
            span(3, "LLM", 1, attributes={"output.value": "two"}),
        ]
    )

    assert [step.around for step in found.steps] == ["", "no steps left"]


def test_an_error_of_a_wrapper_that_only_its_event_tells_is_told() -> None:
    event = ("exception", Micros(1000), {"exception.message": "boom"})
    found = transcript_of(
        [span(1, "CHAIN", status="ERROR", events=[event]), span(2, "LLM", 1, attributes={"output.value": "one"})]
    )

    assert [step.around for step in found.steps] == ["boom"]


@pytest.mark.long
def test_a_chain_of_eight_thousand_spans_is_read_in_seconds() -> None:
    spans = [span(n, "LLM", n - 1 if n else None, attributes={"output.value": f"m{n}"}) for n in range(8_000)]
    began = time.process_time()

    found = transcript_of(spans)

    assert len(found.steps) == 8_000
    assert time.process_time() - began < 30


def test_a_thousand_agents_inside_one_another_are_read_in_seconds() -> None:
    depth = 1_000
    agents = [span(n, "AGENT", n - 1 if n else None) for n in range(depth)]
    there, back = range(1, depth), range(depth - 1, 0, -1)
    said = [
        span(depth + at, "LLM", owner, attributes={"output.value": f"said {at}"})
        for at, owner in enumerate((*there, *back))
    ]
    transcript = transcript_of([*agents, *said])
    began = time.process_time()

    parts = transcript.parts()

    assert {span_id for part in parts for span_id in part.span_ids} == {step.span_id for step in transcript.steps}
    assert "here s3 worked" in parts[0].text
    assert time.process_time() - began < 10


def test_a_step_with_thousands_of_messages_makes_a_page_and_not_a_book(tmp_path: Path) -> None:
    messages = [{"message": {"role": "user", "content": f"message {n} {'x' * 1500}"}} for n in range(2000)]
    kind = {"openinference.span.kind": "LLM", "llm.input_messages": messages, "output.value": "the end"}
    store = store_of(tmp_path, [raw_span(1, attributes=kind)])

    page = ToolRegistry(TracesContext(store).tools()).call("read_trace", {"trace_id": TRACE}).result

    assert len(page) < 2 * PAGE_CHARS
    assert "message 0 " in page
    assert "message 1999 " in page
    assert "messages left out" in page
    assert "the end" in page


def test_positions_that_do_not_ascend_are_not_the_numbers_of_steps(tmp_path: Path) -> None:
    same = {"openinference.span.kind": "LLM", "conversation.step": 0, "output.value": "x" * 3000}
    store = store_of(tmp_path, [raw_span(n, attributes=same) for n in range(1, 21)])
    read = ToolRegistry(TracesContext(store).tools())
    seen: list[str] = []
    first = 0
    while len(seen) < 40:
        page = read.call("read_trace", {"trace_id": TRACE, "first_step": first}).result
        seen += [line.split()[5] for line in page.split("\n") if line.startswith("### step")]
        if page.endswith("[end of the trace]"):
            break
        first = int(page.rpartition("first_step=")[2].rstrip("]"))

    assert seen == [f"{n:016x}" for n in range(1, 21)]


def test_a_run_without_a_task_of_its_own_is_not_given_that_of_the_run_before() -> None:
    found = transcript_of(
        [
            span(1, "CHAIN", attributes={"input.value": "all of it"}),
            span(2, "AGENT", 1, attributes={"input.value": "the first half"}),
            span(3, "LLM", 2, attributes={"output.value": "one"}),
            span(4, "AGENT", 1),
            span(5, "LLM", 4, attributes={"output.value": "two"}),
        ]
    )

    assert [part.task for part in found.parts()] == ["the first half", ""]
