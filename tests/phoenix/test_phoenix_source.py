"""The suite that every source of traces must pass, with its traces in a real Phoenix."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from phoenix_loading import pairs, send, wait_for

from contexts.traces import test_trace_sources as suite
from contexts.traces.trace_servers import DAY, STEPS, attributes, hex_ids
from sonde.api.trace_source import source_of
from sonde.contexts.traces.attributes import canonical_attributes
from sonde.contexts.traces.span import us_of_text
from sonde.contexts.traces.store import TraceStore

PROJECT = "every-source"
pytestmark = pytest.mark.phoenix


@pytest.fixture(scope="module")
def live() -> Iterator[TraceStore]:
    url = os.environ["PHOENIX_URL"]
    spans: list[Span] = []
    for step in STEPS:
        trace_id, span_id = hex_ids(step)
        table, _ = canonical_attributes(attributes(step))
        code = Status.STATUS_CODE_ERROR if step.error else Status.STATUS_CODE_OK
        spans.append(
            Span(
                trace_id=bytes.fromhex(trace_id),
                span_id=bytes.fromhex(span_id),
                parent_span_id=bytes.fromhex(hex_ids((step.trace, step.parent))[1]) if step.parent else b"",
                name=step.name,
                start_time_unix_nano=us_of_text(f"{DAY}{step.start}Z") * 1000,
                end_time_unix_nano=us_of_text(f"{DAY}{step.end}Z") * 1000,
                status=Status(code=code, message=step.error),
                attributes=pairs(table),
            )
        )
    send(url, PROJECT, spans)
    wait_for(len(spans), url, PROJECT)
    with closing(source_of(url, PROJECT, {}).open()) as store:
        yield store


@pytest.mark.parametrize(
    "demand",
    [
        suite.test_traces_are_listed_by_start_with_their_spans_and_times,
        suite.test_spans_have_the_same_times_parents_kinds_and_errors,
        suite.test_spans_come_whole_and_in_order_and_children_below_their_parent,
        suite.test_a_window_a_filter_and_a_place_to_go_on_choose_the_same_traces,
        suite.test_the_tools_of_a_run_give_the_same_answers,
        suite.test_what_is_not_there_is_unknown_whatever_its_id_looks_like,
        suite.test_the_beginning_of_an_id_is_enough,
    ],
    ids=lambda demand: demand.__name__,
)
def test_a_real_phoenix_meets_what_every_source_must(demand: suite.Demand, live: TraceStore) -> None:
    demand((live, hex_ids))


def test_a_real_phoenix_has_the_same_contents(live: TraceStore, tmp_path: Path) -> None:
    suite.test_contents_models_tokens_and_costs_are_the_same((live, hex_ids), tmp_path)
