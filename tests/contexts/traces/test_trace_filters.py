"""The filter language: what it takes, what it refuses and where."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from trace_samples import raw_span, spans_in, store_of, write_lines

from sonde.contexts.traces.filters import FilterRefused, parse_filter
from sonde.contexts.traces.span import Span
from sonde.contexts.traces.store import TraceQuery


@pytest.fixture
def span(tmp_path: Path) -> Span:
    attributes = {
        "openinference.span.kind": "TOOL",
        "output.value": "request timeout",
        "llm.token_count.total": 4000,
        "metadata": '{"tier": "free"}',
    }
    raw = raw_span(2, name="fetch", status_code="ERROR", status_message="no", attributes=attributes)
    (found,) = spans_in(write_lines(tmp_path / "one.jsonl", [raw]))
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("span_kind == 'TOOL' and latency_ms > 1", True),
        ("span_kind == 'LLM' or 'timeout' in output.value", True),
        ("status_code != 'OK'", True),
        ("attributes['llm.token_count.total'] >= 4000", True),
        ("llm.token_count.total < 4000", False),
        ("metadata['tier'] == 'free'", True),
        ("attributes['metadata']['tier'] == 'free'", True),
        ("name not in ['ping', 'health']", True),
        ("name in ('fetch',)", True),
        ("parent_id is None", False),
        ("parent_id is not None and not (name == 'x')", True),
        ("1 < latency_ms < 10", True),
        ("latency_ms > -1", True),
        ("context.span_id == '0000000000000002'", True),
        ("start_time >= '2025-01-01'", True),
        ("start_time > '2025-10-09T08:53:20Z'", True),
        ("start_time < '2025-10-09T08:53:21Z'", True),
        ("start_time < '2025-10-09T10:53:20+02:00'", False),
        ("'2025-10-09T08:53:20.125456Z' == start_time", True),
        ("start_time in ['2025-10-09T08:53:20.125456+00:00']", True),
        ("attributes['missing'] == 1", False),
        ("not (attributes['missing'] == 1)", False),
        ("attributes['missing'] != 1", False),
        ("attributes['missing'] is None", True),
        ("'x' not in attributes['missing']", False),
        ("name > 5", False),
        ("5 in latency_ms", False),
    ],
)
def test_filters_mean_what_they_mean_in_phoenix(text: str, expected: bool, span: Span) -> None:
    assert parse_filter(text).matches(span) is expected


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("__import__('os').system('x') == 1", 1),
        ("name == 'a' and evals['q'].score > 1", 17),
        ("name", 1),
        ("True", 1),
        ("name == open", 9),
        ("name == (lambda: 1)", 10),
        ("status_code is 'OK'", 16),
        ("name in [x for x in y]", 9),
        ("name == [['a']]", 10),
        ("nme == 'a'", 1),
        ("name ==", 8),
        ("   name ==", 11),
        ("  nme == 1", 3),
        ("   name = 'x'", 9),
        ("name == '\N{LATIN SMALL LETTER U WITH DIAERESIS}\N{PARTY POPPER}' and nme == 1", 18),
        ("start_time > 'yesterday'", 14),
        ("parent_span.name == 'a'", 1),
        ("name + 'a' == 'b'", 1),
        ("name == f'{1}'", 9),
    ],
)
def test_anything_else_is_refused_with_its_position(text: str, column: int) -> None:
    with pytest.raises(FilterRefused) as refused:
        parse_filter(text)

    assert refused.value.position == column - 1
    assert f"column {column}" in refused.value.message


def test_a_filter_that_is_too_long_or_too_deep_is_refused() -> None:
    for text in ("name == '" + "a" * 5000 + "'", "(" * 1500 + "name == 'a'" + ")" * 1500):
        with pytest.raises(FilterRefused):
            parse_filter(text)


@given(st.text(st.sampled_from("nameispor== 'd<>()[].x1#\n"), max_size=40))
def test_no_text_ever_does_more_than_parse_or_be_refused(text: str) -> None:
    with suppress(FilterRefused):
        assert parse_filter(text).text == text


def test_equalities_that_every_match_meets_are_known_to_the_store() -> None:
    assert parse_filter("span_kind == 'LLM' and (name == 'a' or name == 'b')").required == {"span_kind": "LLM"}
    assert parse_filter("span_kind == 'LLM' or name == 'a'").required == {}
    assert parse_filter("'ERROR' == status_code and latency_ms > 1").required == {"status_code": "ERROR"}


def test_a_filter_keeps_traces_with_one_span_that_fits_it_whole(tmp_path: Path) -> None:
    rows = [
        raw_span(1, trace_id="a" * 32, status_code="ERROR"),
        raw_span(2, trace_id="a" * 32, attributes={"openinference.span.kind": "TOOL"}),
        raw_span(3, trace_id="b" * 32, status_code="ERROR", attributes={"openinference.span.kind": "TOOL"}),
    ]
    store = store_of(tmp_path, rows)

    found = store.traces(TraceQuery(condition=parse_filter("status_code == 'ERROR' and span_kind == 'TOOL'"))).rows

    assert [row.trace_id for row in found] == ["b" * 32]
