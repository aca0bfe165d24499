"""The `incident` engine: representatives by rule, a dossier whose every claim is proved, a change only with its diff."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from trace_cases import Json, limits_of, model, options, span, write

import sonde
from sonde.engines.incident import INCIDENT
from sonde.engines.reports import IncidentDossier
from sonde.errors import ConfigError, NotInSource

COMMON = "incident_summary='checkout failed', impacted_components=['pay'], confidence=0.6, gaps=[]"


def trace(number: int, second: int, message: str = "") -> list[Json]:
    """A root and a tool, failed when there is a message."""
    trace_id, root, tool = f"{number:032x}", f"{number:015x}a", f"{number:015x}b"
    status = {"status_code": "ERROR", "status_message": message} if message else {}
    return [
        span(root, "checkout", second, trace_id=trace_id, parent=None, kind="AGENT", lasted=5),
        span(tool, "pay", second + 1, trace_id=trace_id, parent=root, kind="TOOL", **status),
    ]


def tool_span(number: int) -> str:
    return f"{number:015x}b"


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    rows = [*trace(1, 0), *trace(2, 60, "card refused"), *trace(3, 120, "gateway down"), *trace(4, 7200, "late")]
    return write(tmp_path, rows)


@pytest.fixture
def configs(tmp_path: Path) -> Path:
    for tag, created, text in (
        ("one", "2025-12-31T00:00:00Z", "retries: 3\n"),
        ("two", "2025-12-31T23:59:00Z", "retries: 0\n"),
        ("three", "2026-01-01T02:30:00Z", "retries: 9\n"),
    ):
        folder = tmp_path / "configs" / tag
        folder.mkdir(parents=True)
        (folder / "app.yaml").write_text(text)
        (folder / "metadata.json").write_text(json.dumps({"created_at": created, "git_commit": tag, "tag": tag}))
    return tmp_path / "configs"


def dossier(found: sonde.Investigation) -> IncidentDossier:
    assert found.report is not None, found.record.error
    return IncidentDossier.model_validate(found.report)


def evidence(number: int) -> str:
    return f"'evidence_refs': [{{'kind': 'SPAN', 'ref': '{tool_span(number)}'}}]"


@pytest.mark.requirement(74, 101)
@pytest.mark.requirement("O1")
def test_without_a_model_rules_write_the_dossier(traces: Path, configs: Path) -> None:
    found = sonde.incident(traces, project="shop", configs=configs, end="2026-01-01T01:00:00Z", **options())

    made = dossier(found)
    assert (found.status, found.annotator_kind, made.confidence) == ("partial", "CODE", 0.35)
    assert [event.timestamp for event in made.timeline] == ["2026-01-01T00:01:01Z", "2026-01-01T00:02:01Z"]
    assert made.impacted_components == ["pay"]
    assert {each.trace_id[-1] for each in made.representative_traces} == {"1", "2", "3"}, "those of the window"
    change = made.suspected_change
    assert (change.change_type, change.change_ref) == ("config", "two"), "the last before the first error"
    assert change.diff_ref is not None and change.diff_ref.startswith("configdiff:")
    assert change.evidence_refs[0].ref == change.diff_ref
    assert found.record.input_ref.time_window.end == "2026-01-01T01:00:00Z"


@pytest.mark.requirement(95)
@pytest.mark.requirement("O1")
def test_the_timeline_ascends_whatever_order_and_spelling_the_model_used(traces: Path) -> None:
    events = [
        f"{{'timestamp': '2026-01-01 00:02:01+00:00', 'event': 'second', {evidence(3)}}}",
        f"{{'timestamp': '2026-01-01T01:01:01+01:00', 'event': 'first', {evidence(2)}}}",
        f"{{'timestamp': 'soon', 'event': 'by its evidence', {evidence(4)}}}",
    ]
    found = sonde.incident(
        traces, project="shop", **options(model(f"SUBMIT({COMMON}, timeline=[{', '.join(events)}])"))
    )

    assert found.status == "succeeded"
    shown = [(event.timestamp, event.event) for event in dossier(found).timeline]
    assert shown == [
        ("2026-01-01T00:01:01Z", "first"),
        ("2026-01-01T00:02:01Z", "second"),
        ("2026-01-01T02:00:01Z", "by its evidence"),
    ]


@pytest.mark.requirement(111)
@pytest.mark.requirement("O2")
def test_events_and_hypotheses_without_evidence_are_dropped_and_named(traces: Path) -> None:
    code = (
        f"SUBMIT({COMMON}, timeline=[{{'timestamp': '2026-01-01T00:00:00Z', 'event': 'rumour'}}], "
        f"hypotheses=[{{'statement': 'guess', 'evidence_refs': ['ffff']}}, {{'statement': 'proved', 'rank': 2, {evidence(2)}}}, "
        f"{{'statement': 'better', 'rank': 1, {evidence(3)}}}])"
    )
    found = sonde.incident(traces, project="shop", **options(model(code, code)))

    made = dossier(found)
    assert (found.status, made.timeline) == ("partial", [])
    assert [(each.rank, each.statement) for each in made.hypotheses] == [(1, "better"), (2, "proved")]
    assert any("timeline[0]" in gap for gap in found.gaps) and any("hypotheses[0]" in gap for gap in found.gaps)


def changed(change: str) -> str:
    return f"c = config_changes[-1]\nSUBMIT({COMMON}, suspected_change={change})"


@pytest.mark.requirement("O1")
def test_a_claimed_change_with_its_diff_is_asserted(traces: Path, configs: Path) -> None:
    proof = "'diff_ref': c['diff_ref'], 'evidence_refs': [{'kind': 'CONFIG_DIFF', 'ref': c['diff_ref']}]"
    claim = f"{{'change_type': 'config', 'change_ref': 'two', 'summary': 'retries went to 0', {proof}}}"
    found = sonde.incident(traces, project="shop", configs=configs, **options(model(changed(claim))))

    change = dossier(found).suspected_change
    assert (found.status, change.change_type) == ("succeeded", "config")
    assert change.diff_ref == change.evidence_refs[0].ref
    assert len(change.evidence_refs[0].excerpt_hash) == 64


@pytest.mark.requirement("O1")
@pytest.mark.parametrize(
    "claim",
    [
        f"{{'change_type': 'deploy', 'summary': 'a deploy', {evidence(2)}}}",
        f"{{'change_type': 'config', 'summary': 'a config', 'diff_ref': c['diff_ref'], {evidence(2)}}}",
        f"{{'change_type': 'weather', 'summary': 'rain', {evidence(2)}}}",
    ],
)
def test_a_claimed_change_without_its_diff_stays_a_hypothesis(traces: Path, configs: Path, claim: str) -> None:
    found = sonde.incident(traces, project="shop", configs=configs, **options(model(changed(claim), changed(claim))))

    made = dossier(found)
    assert (found.status, made.suspected_change.change_type, made.suspected_change.diff_ref) == (
        "partial",
        "unknown",
        None,
    )
    assert "may have caused it" in made.hypotheses[-1].statement
    assert made.hypotheses[-1].confidence < 0.5


@pytest.mark.requirement(95)
def test_sub_calls_look_at_one_trace_each_and_stand_in_for_a_silent_root(traces: Path) -> None:
    look = "{'objective': 'Look at ' + r['trace_id'], 'context': {'trace_id': r['trace_id']}}"
    errands = f"delegate_batch([{look} for r in representatives[:2]])"

    def child(task: str) -> list[str]:
        number = int(task.split("Look at ")[1][:32], 16)
        refs = f"[{{'kind': 'SPAN', 'ref': '{tool_span(number)}'}}]"
        return [
            f"s = get_span('{tool_span(number)}')",
            f"SUBMIT(summary='pay failed in {number}', evidence_refs={refs})",
        ]

    found = sonde.incident(traces, project="shop", **options(model(errands, child=child), max_iterations=6))

    made = dossier(found)
    assert (found.status, found.annotator_kind) == ("partial", "LLM")
    assert {each.statement for each in made.hypotheses} >= {"pay failed in 2", "pay failed in 3"}
    assert len(found.record.runtime_ref.subcall_metadata) == 2


def test_named_traces_alone_are_the_incident_and_a_filter_narrows_a_window(traces: Path) -> None:
    named = sonde.incident(traces, trace_ids=[f"{1:032x}"], **options())
    assert [each.trace_id for each in dossier(named).representative_traces] == [f"{1:032x}"]

    failed = sonde.incident(traces, project="shop", filter_expr="status_message == 'gateway down'", **options())
    assert [each.trace_id for each in dossier(failed).representative_traces] == [f"{3:032x}"]
    assert failed.record.input_ref.filter_expr == "status_message == 'gateway down'"


def test_a_project_of_a_file_is_a_part_of_it_unless_the_file_names_none(tmp_path: Path) -> None:
    other = [{**row, "project_name": "other"} for row in trace(2, 60, "not ours")]
    both = write(tmp_path, [*trace(1, 0, "ours"), *other])
    made = dossier(sonde.incident(both, project="shop", **options()))
    assert [each.trace_id for each in made.representative_traces] == [f"{1:032x}"]

    nameless = [{key: value for key, value in row.items() if key != "project_name"} for row in trace(1, 0, "ours")]
    source = write(tmp_path, nameless, "nameless.jsonl")
    assert dossier(sonde.incident(source, project="shop", **options())).timeline


def test_a_failure_late_in_a_long_window_is_found(tmp_path: Path) -> None:
    rows = [row for number in range(1, 231) for row in trace(number, number)]
    source = write(tmp_path, [*rows, *trace(500, 5000, "the one that matters")])
    made = dossier(sonde.incident(source, project="shop", **options()))

    assert [event.event for event in made.timeline] == ["pay failed: the one that matters"]


@pytest.mark.requirement("O1")
def test_an_incident_is_named_after_what_was_asked_so_that_two_dossiers_of_it_are_known_as_such(traces: Path) -> None:
    windows = ("2026-01-01T01:00:00Z", "2026-01-01T01:00:00Z", "2026-01-01T03:00:00Z")

    first, again, other = (dossier(sonde.incident(traces, end=end, **options())).incident_id for end in windows)

    assert first == again != other
    assert first and other


def test_the_same_question_about_other_traces_is_another_incident(traces: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = write(tmp_path / "other", trace(5, 60, "card refused"))

    names = [dossier(sonde.incident(source, **options())).incident_id for source in (traces, other)]

    assert names[0] != names[1]


@pytest.mark.requirement(115)
def test_an_empty_window_fails_before_a_model_is_paid(traces: Path) -> None:
    scripted = model("SUBMIT()")
    with pytest.raises(NotInSource) as refused:
        sonde.incident(traces, start="2030-01-01T00:00:00Z", **options(scripted))

    assert scripted.requests == []
    assert "widen --from and --to, or --last" in refused.value.message
    assert "(traces began between 2026-01-01T00:0" in refused.value.message


def test_failed_spans_beyond_the_timeline_are_counted_and_their_components_named(tmp_path: Path) -> None:
    rows = [span(f"{n:016x}", f"step {n}", n, status_code="ERROR", status_message="it broke") for n in range(1, 10)]

    found = dossier(sonde.incident(write(tmp_path, [span("f" * 16, "agent", 0, parent=None), *rows]), **options()))

    assert [event.event for event in found.timeline] == ["step # failed: it broke"]
    assert any("the timeline has only 1 of 9 spans with errors" in gap for gap in found.gaps)
    assert found.impacted_components == ["step #"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"start": "yesterday"},
        {"filter_expr": "import os"},
        {"trace_ids": ["nope"]},
        {"project": "no such project"},
        {"configs": "/no/such/folder"},
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_runs(traces: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        sonde.incident(traces, **options(), **wrong)


@pytest.mark.requirement(86, 87, 88, 89, 90, 92)
def test_the_budget_is_the_contracts() -> None:
    assert limits_of(INCIDENT.budget) == (3, 60, 220, 90, 320_000, 300)


@pytest.mark.requirement(124)
def test_two_runs_give_equal_dossiers(traces: Path, configs: Path) -> None:
    runs = [sonde.incident(traces, project="shop", configs=configs, **options()) for _ in range(2)]

    assert runs[0].report == runs[1].report


def test_evidence_that_does_not_hold_is_told_and_becomes_a_gap_also_beside_evidence_that_does(traces: Path) -> None:
    mixed = f"[{{'kind': 'SPAN', 'ref': '{tool_span(2)}'}}, {{'kind': 'SPAN', 'ref': 'feedfacefeedface'}}]"
    event = f"{{'timestamp': '2026-01-01T00:01:01Z', 'event': 'card refused', 'evidence_refs': {mixed}}}"
    reply = f"get_span('{tool_span(2)}'); SUBMIT({COMMON}, timeline=[{event}])"
    scripted = model(*[reply] * 3)
    found = sonde.incident(traces, **options(scripted))

    assert any("feedfacefeedface" in message.content for message in scripted.requests[1].messages)
    assert found.status == "partial"
    assert any("timeline[0]" in gap and "feedfacefeedface" in gap for gap in found.gaps)
    assert [ref.ref for ref in dossier(found).timeline[0].evidence_refs] == [tool_span(2)]
