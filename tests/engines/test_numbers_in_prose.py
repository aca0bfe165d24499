"""Numbers in the prose of reports: held against what the runtime counted, without false alarms."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_cases import IO, LOOK, SPAN, TOOL, TRACE, failed_trace, model, options, write

import sonde
from sonde.engines.submission import Counted, miscounted
from sonde.runtime.finish import MAX_PROBLEMS

SIXTEEN = Counted(kind="spans", total=16, failed=(7, 7))


def submit(summary: str) -> str:
    return f"SUBMIT(primary_label='tool_failure', summary={summary!r}, confidence=0.4, evidence_refs=[{SPAN}, {IO}])"


def test_a_wrong_count_is_told_and_the_corrected_report_passes(tmp_path: Path) -> None:
    scripted = model(LOOK, submit("3 of 4 spans failed."), submit("1 of 4 spans failed."))

    found = sonde.rca(TRACE, write(tmp_path, failed_trace()), **options(scripted))

    assert found.status == "succeeded" and found.report is not None
    assert found.report["summary"] == "1 of 4 spans failed."
    assert "counted: 1 of 4" in scripted.requests[-1].messages[-1].content


def test_a_wrong_count_that_stays_is_a_gap(tmp_path: Path) -> None:
    scripted = model(LOOK, *[submit("3 of 4 spans failed.")] * 3)

    found = sonde.rca(TRACE, write(tmp_path, failed_trace()), **options(scripted))

    assert found.status == "partial"
    assert 'the summary says "3 of 4 spans failed"; counted: 1 of 4' in found.gaps


def test_a_dossier_and_a_rationale_are_held_against_counts_too(tmp_path: Path) -> None:
    source = write(tmp_path, failed_trace())
    dossier = (
        "SUBMIT(incident_summary='1 of 1 representative traces failed; 2 of 4 spans are in error.', "
        f"hypotheses=[{{'statement': 'it timed out', 'evidence_refs': [{SPAN}]}}])"
    )
    judged = (
        "SUBMIT(findings=[{'control_id': each['control_id'], 'pass_fail': 'fail', 'confidence': 0.4, "
        f"'rationale': '4 of 4 spans failed', 'evidence_refs': ['{TOOL}']}} for each in controls])"
    )

    incident = sonde.incident(source, project="shop", **options(model(LOOK, *[dossier] * 3)))
    comply = sonde.comply(TRACE, source, **options(model(LOOK, *[judged] * 3)))

    assert [gap for gap in incident.gaps if "counted" in gap] == [
        'the summary says "2 of 4 spans are in error"; counted: 1 of 4'
    ]
    assert any("counted: 1 of 4" in gap for gap in comply.gaps)


@pytest.mark.parametrize(
    "text",
    [
        "8 of 16 spans failed",
        "8 out of 16 spans failed with a time-out",
        "6 of the 16 spans are in error.",
        "0 of 16 SPANS fail",
    ],
)
def test_what_contradicts_a_count_is_named(text: str) -> None:
    assert len(miscounted({"the summary": text}, lambda: [SIXTEEN])) == 1


@pytest.mark.parametrize(
    "text",
    [
        "7 of 16 spans failed",
        "6 of 16 spans failed with a time-out",
        "8 of 16 spans were read",
        "8 of 16 tool spans failed",
        "8 of 15 spans failed",
        "8 of 16 requests failed",
        "8 of 16 fail",
        "8 of 16 spans have not failed",
        "8 of 16 spans fail to name a model",
        "at 3.8 of 16 spans failed",
        "version 2026-8 of 16 spans failed",
    ],
)
def test_what_a_count_does_not_contradict_is_left_alone(text: str) -> None:
    assert miscounted({"the summary": text}, lambda: [SIXTEEN]) == []


WINDOW = Counted(kind="traces", total=30, failed=(10, 12))
CARD = Counted(kind="traces", total=30, failed=(7,), about=("charge_card", "KeyError: 'currency'"))


@pytest.mark.parametrize(
    "text",
    [
        "11 of 30 traces failed.",
        "13 of 30 traces failed with a time-out",
        "5 of 30 traces failed in charge_card.",
        "9 of the 30 traces failed with KeyError: 'currency'",
    ],
)
def test_a_window_and_its_groups_are_counts_too(text: str) -> None:
    assert len(miscounted({"the summary": text}, lambda: [WINDOW, CARD])) == 1


@pytest.mark.parametrize(
    "text",
    [
        "10 of 30 traces failed.",
        "12 of 30 traces are in error.",
        "7 of 30 traces failed in charge_card.",
        "3 of 30 traces failed with a time-out",
        "2 of 30 traces failed in charge_card on old phones",
        "11 of 29 traces failed.",
    ],
)
def test_what_the_counts_of_a_window_allow_is_left_alone(text: str) -> None:
    assert miscounted({"the summary": text}, lambda: [WINDOW, CARD]) == []


def test_what_is_counted_is_counted_once_however_often_a_text_claims_it() -> None:
    calls: list[int] = []

    def count() -> list[Counted]:
        calls.append(1)
        return [SIXTEEN]

    assert miscounted({"the summary": "9 of 16 spans failed. " * 500, "more": "9 of 16 spans failed."}, count)
    assert len(calls) == 1


@pytest.mark.long
def test_a_report_that_names_evidence_without_end_is_checked_up_to_a_limit(tmp_path: Path) -> None:
    flood = "SUBMIT(primary_label='tool_failure', summary='x', confidence=0.4, evidence_refs=[%s, %s, *map(str, range(9000))])"
    scripted = model(LOOK, *[flood % (SPAN, IO)] * 3)

    found = sonde.rca(TRACE, write(tmp_path, failed_trace()), **options(scripted))

    assert found.status == "partial" and found.report is not None
    assert len(found.report["evidence_refs"]) == 2
    assert any("more problems like these" in gap for gap in found.gaps)
    assert len(found.gaps) < 2 * MAX_PROBLEMS
