"""The metrics of the benchmarks, on sets small enough to count by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from sonde.bench.metrics import (
    category_rows,
    headroom_gain,
    mean_of,
    overlap,
    plain_name,
    spread,
    weighted_f1,
)


def test_recall_counts_gold_found_and_precision_what_was_named() -> None:
    hits = overlap(["a", "b", "x", "x"], ["a", "b", "c", "d"])

    assert (hits.recall, hits.precision) == (0.5, pytest.approx(2 / 3))


@pytest.mark.parametrize(("named", "expected"), [([], 1.0), (["a"], 0.0)])
def test_where_nothing_is_gold_only_silence_is_right(named: list[str], expected: float) -> None:
    assert overlap(named, []).recall == expected
    assert overlap(named, []).precision == expected


@given(st.sets(st.integers(0, 9)), st.sets(st.integers(0, 9), min_size=1))
def test_scores_stay_between_zero_and_one_and_gold_itself_gets_one(named: set[int], gold: set[int]) -> None:
    hits = overlap(named, gold)

    assert 0 <= hits.recall <= 1
    assert 0 <= hits.precision <= 1
    assert overlap(gold, gold).recall == overlap(gold, gold).precision == 1


def test_f1_is_weighted_by_how_often_a_category_is_gold() -> None:
    rows = category_rows([(["A"], ["A"]), (["A"], ["A", "B"]), ([], ["A"])], ["A", "B", "C"])

    assert [(row.gold, row.named, row.right) for row in rows] == [(3, 2, 2), (1, 0, 0), (0, 0, 0)]
    assert rows[0].f1 == pytest.approx(0.8)
    assert weighted_f1(rows) == pytest.approx(0.6)


def test_repeats_give_a_mean_and_a_spread() -> None:
    assert str(spread([0.5, 0.7])) == "0.60 ± 0.14"
    assert str(spread([0.5])) == "0.50"


def test_means_are_over_the_cases_that_have_the_metric() -> None:
    assert mean_of([{"a": 1.0}, {"a": 0.0, "b": 0.5}]) == {"a": 0.5, "b": 0.5}


@pytest.mark.parametrize(("baseline", "value", "gain"), [(0.5, 0.75, 0.5), (0.95, 1.0, 1.0), (1.0, 1.0, 0.0)])
def test_a_gain_is_judged_by_the_room_that_was_left(baseline: float, value: float, gain: float) -> None:
    assert headroom_gain(baseline, value) == pytest.approx(gain)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (" Incorrect Problem Identification", "Incorrect Problem Identification"),
        ("Context Handling Failure", "Context Handling Failures"),
        ("Instruction Non-Compliance", "Instruction Non-compliance"),
        ("Resource Abuse", "resource_abuse"),
    ],
)
def test_spellings_of_a_category_are_one_name(one: str, other: str) -> None:
    assert plain_name(one) == plain_name(other)


def test_different_categories_stay_different() -> None:
    assert plain_name("Resource Abuse") != plain_name("Resource Not Found")
