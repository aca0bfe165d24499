"""Odd answers and results: nothing that was paid for is lost, and no answer breaks the scoring."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.cli_program import Shown, sonde
from sonde.bench.answers import read_answer, score
from sonde.bench.suite import Trial, append_result, json_in, read_results


def test_a_result_with_any_character_in_it_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    given = [
        Trial(case="c", method="plain", repeat=n, predicted=f"a{char}b")
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


@pytest.mark.parametrize(
    "text",
    [
        'See [1] and [the note]. ```json\n[{"a": [1, 2]}, {"a": "]"}]\n``` That is all [of it].',
        '[{"a": [1, 2]}, {"a": "]"}]',
    ],
)
def test_the_json_of_an_answer_is_found_among_words_with_brackets(text: str) -> None:
    assert json_in(text, "[") == [{"a": [1, 2]}, {"a": "]"}]


def bench(folder: Path, *flags: str) -> Shown:
    """`sonde bench niah` without any key."""
    return sonde("bench", "niah", "--length", "20k", "--limit", "1", *flags, cwd=folder)


@pytest.mark.parametrize("model", ["openai:gpt-4o-mini", "command:no-such-program", "nonsense:"])
def test_a_model_that_cannot_be_opened_is_an_error_and_no_result_that_counts_as_wrong(
    model: str, tmp_path: Path
) -> None:
    said = bench(tmp_path, "--model", model, "--baseline", "plain")

    assert said.returncode == 2, said.stdout
    assert "Traceback" not in said.stderr
    assert not list(tmp_path.rglob("results.jsonl"))


def test_a_case_that_does_not_exist_is_refused_with_some_that_do(tmp_path: Path) -> None:
    said = bench(tmp_path, "--model", "command:cat", "--case", "nonsense")

    assert said.returncode == 2
    assert "20000-0/q000" in said.stderr


def test_a_benchmark_that_is_done_shows_its_table_without_opening_the_model(tmp_path: Path) -> None:
    program = tmp_path / "model"
    program.write_text("#!/bin/sh\necho 42\n")
    program.chmod(0o755)
    flags = ["--model", f"command:{program}", "--no-sonde", "--baseline", "plain"]
    first = bench(tmp_path, *flags)
    program.unlink()

    assert bench(tmp_path, *flags).stdout == first.stdout
