"""Whatever JSON a file holds, reading it gives spans that can be stored, hashed and shown, or a reason; it never breaks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from sonde.contexts.traces.caps import RESULT_BYTES, fitted
from sonde.contexts.traces.importers import spans_of
from sonde.contexts.traces.index import decode_body, encode_body, words_of
from sonde.contexts.traces.prefilter import prefilter
from sonde.contexts.traces.shape import Tree, shape_gaps
from sonde.contexts.traces.span import Span
from sonde.contexts.traces.views import chunks_of, messages_of, tool_io_of

NAMES = [
    *(
        "trace_id",
        "span_id",
        "parent_id",
        "context",
        "name",
        "span_name",
        "start_time",
        "timestamp",
        "end_time",
        "duration",
    ),
    *(
        "status",
        "status_code",
        "status_message",
        "code",
        "message",
        "attributes",
        "span_attributes",
        "events",
        "child_spans",
        "spans",
    ),
    *("resourceSpans", "scopeSpans", "resource", "traceId", "spanId", "startTimeUnixNano", "key", "value", "values"),
    *(
        "stringValue",
        "intValue",
        "arrayValue",
        "kvlistValue",
        "observations",
        "trace",
        "type",
        "id",
        "startTime",
        "input",
        "output",
    ),
    *(
        "usage",
        "run_type",
        "child_runs",
        "inputs",
        "outputs",
        "extra",
        "question",
        "history",
        "role",
        "content",
        "data",
    ),
    *("gen_ai.input.messages", "gen_ai.operation.name", "gen_ai.usage.input_tokens", "llm.input_messages.0.message"),
    *("retrieval.documents", "metadata", "tool.parameters", "openinference.span.kind", "llm.token_count.total"),
]
TEXTS = st.text(max_size=6) | st.sampled_from(
    ["1", "0", "2026-01-01T00:00:00Z", "PT1S", "TOOL", "LLM", "chat", '[{"role": "x"}]', "{}"]
)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=3), inner, max_size=5)
    ),
    max_leaves=25,
)
LOOKALIKES: list[dict[str, Any]] = [
    {"resourceSpans": [{"resource": "text", "scopeSpans": []}]},
    {"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "t", "spanId": "s", "startTimeUnixNano": "x"}]}]}]},
    {
        "resourceSpans": [
            {"scopeSpans": [{"spans": [{"traceId": "t", "spanId": "s", "startTimeUnixNano": 1, "attributes": ["x"]}]}]}
        ]
    },
    {"spans": [{"span_id": "s", "trace_id": "t", "timestamp": "2026-01-01T00:00:00Z", "duration": "soon"}]},
    {"observations": [{"id": "o", "startTime": 5, "type": "GENERATION", "usage": "many"}], "id": "t"},
    {
        "run_type": "llm",
        "id": "r",
        "start_time": "2026-01-01",
        "extra": {"metadata": 5},
        "child_runs": [5, {"id": 1}],
    },
    {"question": 5, "history": [5, {"content": {"a": 1}}]},
    {"type": [], "traceId": None},
]
COMPLETE = {"trace_id": "t", "span_id": "s", "start_time": 1}


def use(span: Span) -> None:
    """Everything that later code does with a span."""
    assert len(span.hash()) == 64
    attributes, events, resource = decode_body(encode_body(span))
    assert (attributes, events, resource) == (dict(span.attributes), span.events, span.resource)
    words_of(span)
    for artifact in (*messages_of(span), *chunks_of(span), *filter(None, [tool_io_of(span)])):
        json.dumps(artifact.row)
    prefilter(span.summary.trace_id, [span.summary], lambda _: span)


@settings(max_examples=150)
@given(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=8), st.booleans())
def test_any_object_is_read_or_refused_but_never_breaks_the_import(record: dict[str, Any], complete: bool) -> None:
    for item in spans_of({**record, **COMPLETE} if complete else record)[1]:
        if isinstance(item, Span):
            use(item)
        else:
            assert item


@pytest.mark.parametrize("record", LOOKALIKES, ids=lambda record: next(iter(record)))
def test_records_that_only_look_like_a_form_give_a_reason(record: dict[str, Any]) -> None:
    _, found = spans_of(record)

    assert all(isinstance(item, (Span, str)) for item in found)


@given(VALUES, st.integers(300, 2000))
def test_results_are_never_larger_than_their_cap(value: Any, limit: int) -> None:
    plain = json.loads(json.dumps(value).replace("NaN", "0").replace("Infinity", "1"))
    rows = [{"attributes": {"x": "long " * 500}, "v": plain}] * 3

    shown, note = fitted(rows, limit)

    assert (
        len(json.dumps(shown, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")) <= limit
        or note
    )
    assert fitted({"a": 1}, RESULT_BYTES) == ({"a": 1}, None)


@given(st.lists(st.tuples(st.integers(0, 8), st.none() | st.integers(0, 8), st.integers(0, 3)), max_size=12))
def test_any_set_of_parents_is_a_forest_after_cutting(edges: list[tuple[int, int | None, int]]) -> None:
    spans = [_summary(own, parent, start) for own, parent, start in edges]
    tree = Tree(spans)

    for span in tree.by_id.values():
        path = tree.path(span.span_id)
        assert path[-1] == span
        assert len({step.span_id for step in path}) == len(path)
    reached: list[str] = []
    stack = list(tree.roots())
    while stack:
        span = stack.pop()
        reached.append(span.span_id)
        stack.extend(tree.children(span.span_id))
    assert sorted(reached) == sorted(tree.by_id)
    shape_gaps(spans)


def _summary(own: int, parent: int | None, start: int) -> Any:
    above = None if parent is None else f"s{parent}"
    (found,) = spans_of({"trace_id": "t", "span_id": f"s{own}", "parent_id": above, "start_time": start})[1]
    assert isinstance(found, Span)
    return found.summary
