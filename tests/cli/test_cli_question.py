"""`sonde ask --source` from the command line: what it prints, what it would cost, and how mistakes end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_program import kept_runs, sonde

from engines.trace_cases import TOOL, failed_trace, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, failed_trace())
    return tmp_path


def test_without_a_model_the_counts_are_told_and_the_exit_code_is_0(folder: Path) -> None:
    shown = sonde("ask", "Why do bookings time out?", "--source", "traces.jsonl", cwd=folder)
    quiet = sonde("ask", "Why?", "--source", "traces.jsonl", "--project", "shop", "--json", cwd=folder)

    assert shown.returncode == 0, shown.stderr
    assert (
        "1 trace begun from 2026-01-01T00:00:00Z" in shown.stdout
        and "book.table (error) is in 1 of 1 trace" in shown.stdout
    )
    assert f"span:{TOOL}" in shown.stdout
    assert {each["kind"] for each in json.loads(quiet.stdout)["citations"]} >= {"TOOL_IO"}
    assert len(kept_runs(folder)) == 2


def test_a_dry_run_says_what_would_be_read_and_keeps_no_run(folder: Path) -> None:
    shown = sonde("ask", "Why?", "--source", "traces.jsonl", "--dry-run", cwd=folder, SONDE_MODEL="openai:gpt-4o-mini")

    assert shown.returncode == 0, shown.stderr
    assert "would read    Trace files traces.jsonl: 1 trace, 4 spans, 1 with errors" in shown.stdout
    assert "no model was called" in shown.stdout and kept_runs(folder) == []


@pytest.mark.parametrize(
    ("words", "told", "runs"),
    [
        (("--project", "shop"), "name their source too", 0),
        (("--last", "24h"), "name their source too", 0),
        (("--source", "nope.jsonl"), "does not exist", 0),
        (("--source", ""), "the value is empty", 0),
        pytest.param(("--source", "http://127.0.0.1:9"), "127.0.0.1:9", 0, marks=pytest.mark.long),  # it is tried again
        (("--source", "traces.jsonl", "--from", "yesterday"), "is not a time", 0),
        (("--source", "traces.jsonl", "--from", "2026-01-01T00:00Z", "--last", "1h"), "give one of them", 0),
        (("--source", "traces.jsonl", "--filter", "name ==="), "--filter", 0),
        (("--source", "traces.jsonl", "--from", "2027-01-01T00:00Z"), "no trace lies in this window", 1),
        (("--source", "traces.jsonl", "--filter", "name == 'nothing'"), "no trace lies in this window", 1),
    ],
)
def test_a_mistake_ends_with_2_and_a_record_only_where_the_source_was_reached(
    folder: Path, words: tuple[str, ...], told: str, runs: int
) -> None:
    shown = sonde("ask", "Why?", *words, cwd=folder)

    assert shown.returncode == 2 and told in shown.stderr, shown.stderr
    assert len(kept_runs(folder)) == runs
    listed = json.loads(sonde("runs", "--json", cwd=folder).stdout)["runs"]
    assert [run["outcome"] for run in listed] == ["EVIDENCE_VALIDATION_FAILED"] * runs


def test_a_project_that_a_file_does_not_have_is_named_with_those_it_has(folder: Path) -> None:
    shown = sonde("ask", "Why?", "--source", "traces.jsonl", "--project", "bakery", cwd=folder)

    assert shown.returncode == 2 and "has no project 'bakery'; there are: shop" in shown.stderr
    assert len(kept_runs(folder)) == 1
