"""The pre-filter and the rules: hot spans, branches, labels, representatives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trace_samples import TRACE, Json, raw_span, store_of, write_lines

from sonde.bench import origin30
from sonde.contexts.controls import ControlsLibrary, infer_scope
from sonde.contexts.traces.context import TracesContext
from sonde.contexts.traces.filestore import FileStore
from sonde.contexts.traces.groups import AttributeTable, TraceFacts, facts_of
from sonde.contexts.traces.prefilter import FirstLook, hot_spans, prefilter
from sonde.contexts.traces.representatives import representatives
from sonde.core.evidence import EvidenceLog


def looked_at(folder: Path, rows: list[Json]) -> FirstLook:
    with store_of(folder, rows) as store:
        return prefilter(TRACE, store.summaries(TRACE), store.span)


def of_kind(kind: str, **attributes: Any) -> Json:
    return {"openinference.span.kind": kind, **attributes}


def test_hot_spans_are_failures_then_exceptions_then_the_slowest(tmp_path: Path) -> None:
    event: Json = {"name": "exception", "timestamp": 1, "attributes": {}}
    slow = {"end_time": raw_span(1)["end_time"] + 10**12}
    rows = [
        raw_span(1),
        raw_span(2, **slow),
        raw_span(3, events=[event]),
        raw_span(4, status_code="ERROR"),
        raw_span(5),
        raw_span(6),
    ]

    with store_of(tmp_path, rows) as store:
        found = hot_spans(store.summaries(TRACE))

    assert [span.span_id[-1] for span in found] == ["4", "3", "2", "1", "5"]


def test_a_branch_holds_the_way_to_the_hot_span_and_is_bounded(tmp_path: Path) -> None:
    below = [raw_span(10 + n, parent_id=f"{2:016x}") for n in range(40)]
    deep = raw_span(90, parent_id=f"{80:016x}", status_code="ERROR")
    way = [raw_span(80, parent_id=f"{12:016x}")]
    found = looked_at(tmp_path, [raw_span(1), raw_span(2), *below, *way, deep])

    branch = found.branches[0]

    assert branch.root_span_id == f"{2:016x}"
    assert len(branch.spans) == 30
    assert {f"{2:016x}", f"{12:016x}", f"{80:016x}", f"{90:016x}"} <= {span.span_id for span in branch.spans}
    assert branch.left_out == 13
    assert list(branch.spans) == sorted(branch.spans, key=lambda span: span.order)
    assert any("13 spans left out" in gap for gap in found.gaps)


def test_a_branch_counts_what_lies_deeper_than_it_shows(tmp_path: Path) -> None:
    chain = [raw_span(10 + n, parent_id=f"{(2 if n == 0 else 9 + n):016x}") for n in range(6)]
    found = looked_at(tmp_path, [raw_span(1), raw_span(2, status_code="ERROR"), *chain])

    branch = found.branches[0]

    assert [int(span.span_id, 16) for span in branch.spans] == [2, 10, 11]
    assert branch.left_out == 4


@pytest.mark.parametrize(
    ("span", "label"),
    [
        ({"attributes": of_kind("TOOL"), "status_code": "ERROR", "status_message": "disk full"}, "tool_failure"),
        ({"attributes": of_kind("TOOL"), "status_code": "ERROR", "status_message": "tool timeout"}, "tool_failure"),
        (
            {"attributes": of_kind("TOOL"), "status_code": "ERROR", "status_message": "missing required field 'id'"},
            "data_schema_mismatch",
        ),
        (
            {"attributes": of_kind("TOOL"), "status_code": "ERROR", "status_message": "HTTP 503"},
            "upstream_dependency_failure",
        ),
        (
            {"attributes": of_kind("CHAIN"), "status_code": "ERROR", "status_message": "read timed out"},
            "upstream_dependency_failure",
        ),
        (
            {"attributes": of_kind("LLM"), "status_code": "ERROR", "status_message": "rate limit exceeded"},
            "upstream_dependency_failure",
        ),
        (
            {"attributes": of_kind("CHAIN", **{"http.status_code": 502}), "status_code": "ERROR"},
            "upstream_dependency_failure",
        ),
        (
            {
                "attributes": of_kind("LLM"),
                "status_code": "ERROR",
                "status_message": "JSONDecodeError: Expecting value",
            },
            "data_schema_mismatch",
        ),
        (
            {"attributes": of_kind("RETRIEVER"), "status_code": "ERROR", "status_message": "index is gone"},
            "retrieval_failure",
        ),
        ({"attributes": of_kind("RETRIEVER")}, "retrieval_failure"),
        ({"attributes": of_kind("RETRIEVER", **{"output.value": "[]"})}, "retrieval_failure"),
        ({"attributes": of_kind("RETRIEVER", **{"retrieval.documents.0.document.score": 0.12})}, "retrieval_failure"),
        ({"attributes": of_kind("TOOL", **{"output.value": "Error: no such file"})}, "tool_failure"),
        (
            {"attributes": of_kind("TOOL", **{"output.value": '{"error": "upstream is down"}'})},
            "upstream_dependency_failure",
        ),
        ({"attributes": of_kind("LLM", **{"llm.finish_reason": "length"})}, "instruction_failure"),
        (
            {"attributes": of_kind("LLM"), "status_code": "ERROR", "status_message": "wrong answer"},
            "instruction_failure",
        ),
    ],
)
def test_the_rule_label_follows_from_kind_words_and_quiet_signs(span: Json, label: str, tmp_path: Path) -> None:
    found = looked_at(tmp_path, [raw_span(1), raw_span(2, **span)])

    assert found.verdict.label == label
    assert 0.45 <= found.verdict.confidence <= 0.82
    assert found.verdict.span_id == "0000000000000002"


@pytest.mark.parametrize(
    "attributes",
    [
        of_kind("RETRIEVER", **{"retrieval.documents.0.document.score": 0.9}),
        of_kind("RETRIEVER", **{"retrieval.documents.0.document.score": 14.2}),
        of_kind("RETRIEVER", **{"output.value": "three useful paragraphs"}),
        of_kind("TOOL", **{"output.value": '{"error": null, "rows": 3}'}),
        of_kind("TOOL", **{"output.value": "0 errors, 12 tests passed"}),
        of_kind("LLM", **{"llm.finish_reason": "stop"}),
    ],
)
def test_healthy_spans_give_no_sign(attributes: Json, tmp_path: Path) -> None:
    found = looked_at(tmp_path, [raw_span(1), raw_span(2, attributes=attributes)])

    assert (found.verdict.confidence, found.verdict.span_id) == (0.35, None)


def test_the_cause_is_where_the_error_begins_not_the_wrappers_that_pass_it_on(tmp_path: Path) -> None:
    failed = {"status_code": "ERROR", "status_message": "agent failed"}
    tool = {"attributes": of_kind("TOOL"), "status_code": "ERROR", "status_message": "disk full"}
    rows = [raw_span(1, **failed), raw_span(2, **failed), raw_span(3, parent_id=f"{2:016x}", **tool)]

    verdict = looked_at(tmp_path, rows).verdict

    assert (verdict.label, verdict.span_id) == ("tool_failure", f"{3:016x}")


def test_the_evidence_of_the_rule_can_be_proved_from_the_store(tmp_path: Path) -> None:
    rows = [raw_span(1), raw_span(2, attributes=of_kind("TOOL"), status_code="ERROR", status_message="disk full")]
    with store_of(tmp_path, rows) as store:
        found = prefilter(TRACE, store.summaries(TRACE), store.span)
        context = TracesContext(store)
        log = EvidenceLog()
        log.note(found.verdict.excerpts)
        assert all(log.prove(excerpt, context.reread) is None for excerpt in found.verdict.excerpts)

    assert found.verdict.confidence == 0.76
    assert {str(excerpt.kind) for excerpt in found.verdict.excerpts} == {"SPAN", "TOOL_IO"}
    assert found.variables()["rule"]["label"] == "tool_failure"


@pytest.mark.parametrize("kinds", [True, False])
def test_the_deterministic_label_is_right_on_the_origins_thirty_traces(kinds: bool, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "origin.jsonl", origin30.spans(kinds=kinds))
    gold = origin30.labels()

    with FileStore(path) as store:
        ids = [origin30.trace_id(number) for number in range(origin30.COUNT)]
        found = [prefilter(trace_id, store.summaries(trace_id), store.span).verdict.label for trace_id in ids]

    assert [gold.count(family) for family in origin30.FAMILIES] == [9, 8, 2, 4, 7]
    right = sum(a == b for a, b in zip(found, gold, strict=True))
    assert right / len(gold) >= 0.60


@pytest.mark.requirement("O1")
def test_the_shipped_controls_single_out_the_families_as_the_origin_expects(tmp_path: Path) -> None:
    library = ControlsLibrary.shipped()
    path = write_lines(tmp_path / "origin.jsonl", origin30.spans())
    with FileStore(path) as store:
        for number, family in enumerate(origin30.FAMILIES):
            spans = list(store.spans(origin30.trace_id(number)))
            scope = infer_scope((span.summary.kind, span.summary.name) for span in spans)
            chosen = library.select("v1", scope)
            violated = [c.control_id for c in chosen if any(c.violations(span.text()) for span in spans)]
            assert bool(violated) is (origin30.EXPECTED_COMPLIANCE[family] == "non_compliant"), (family, violated)


def trace(number: int, **changes: Any) -> TraceFacts:
    facts: Json = {
        "trace_id": f"t{number:02d}",
        "root_span_id": f"r{number}",
        "root_name": f"root{number}",
        "first_tool": "",
        "spans": 1,
        "error_spans": 0,
        "latency_ms": float(number),
        "start_us": number,
        "outcome": "healthy",
        "failures": (),
        "attributes": (),
        "steps": (),
        "retries": {},
    }
    return TraceFacts(**{**facts, **changes})


def test_representatives_come_from_three_buckets_without_telling_a_story_twice() -> None:
    failed = [trace(n, error_spans=n) for n in range(1, 8)]
    slow = [trace(n, latency_ms=1000.0 + n) for n in range(20, 28)]
    alike = [trace(n, root_name="same") for n in range(40, 60)]

    found = representatives([*alike, *slow, *failed])

    assert [one.bucket for one in found] == ["error"] * 5 + ["latency"] * 5 + ["cluster"] * 2
    assert [one.facts.trace_id for one in found[:6]] == ["t07", "t06", "t05", "t04", "t03", "t27"]
    assert found[10].facts.root_name == "same"
    assert found[0].why_selected == "error bucket: score=1 error_spans=7 latency_ms=7"


def test_overrides_are_added_whatever_their_score() -> None:
    found = representatives([trace(n) for n in range(30)], overrides=["t00", "t29", "unknown"])

    assert [one.facts.trace_id for one in found if one.bucket == "override"] == ["t00"]
    assert len(found) == 8


def test_facts_of_a_trace_name_root_tool_and_first_error(tmp_path: Path) -> None:
    rows = [
        raw_span(1),
        raw_span(2, attributes=of_kind("TOOL"), name="add", status_code="ERROR", status_message="boom"),
    ]
    with store_of(tmp_path, rows) as store:
        facts = facts_of(TRACE, store.spans(TRACE), AttributeTable())

    assert (facts.root_name, facts.first_tool, facts.outcome) == ("step 1", "add", "failed")
    assert facts.failure is not None
    assert (facts.failure.component, facts.failure.message) == ("add", "boom")
    assert (facts.error_spans, facts.latency_ms) == (1, 6.0)
