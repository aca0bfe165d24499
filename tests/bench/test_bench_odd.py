"""Odd answers and results: nothing that was paid for is lost, and no answer breaks the scoring."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sonde.bench.answers import read_answer, score
from sonde.bench.results import Result, append_result, read_results
from sonde.bench.suite import json_in


def test_a_result_with_any_character_in_it_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    given = [
        Result(case="c", method="plain", repeat=n, predicted=f"a{char}b")
        for n, char in enumerate("\u2028\x85\x0c\n\ud800")
    ]
    for each in given:
        append_result(path, each)

    assert read_results(path) == given


@pytest.mark.parametrize("answer", ["NaN", "Infinity", "-Infinity", "1" + "0" * 400])
def test_numbers_that_no_count_can_be_score_nothing(answer: str) -> None:
    assert score("number", json.loads(answer), 42) == 0.0


@pytest.mark.parametrize("text", ["{" * 20_000 + "}" * 20_000, "[" * 20_000 + "]" * 20_000])
def test_an_answer_of_brackets_only_is_no_json(text: str) -> None:
    assert json_in(text, text[0]) is None
    assert read_answer(text) == text
