"""`sonde bench`: the table on standard output and beside the results."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_program import sonde

from sonde.bench.windows import make


def test_the_command_prints_the_table_and_writes_it(tmp_path: Path) -> None:
    words = ["bench", "seeded", "--data", "data", "--make", "20", "--no-sonde", "--baseline", "rule", "--limit", "5"]

    ran = sonde(*words, "--out", "out", cwd=tmp_path)

    assert ran.returncode == 0, ran.stderr
    assert "| rule | 5 | 0 | 0 |" in ran.stdout
    assert (tmp_path / "out" / "seeded" / "results.md").read_text("utf-8").startswith("# seeded")


def test_a_benchmark_of_a_model_without_one_is_a_usage_error(tmp_path: Path) -> None:
    ran = sonde("bench", "seeded", "--data", "data", "--make", "3", cwd=tmp_path)

    assert ran.returncode == 2
    assert "--model" in ran.stderr


@pytest.mark.long
def test_windows_are_judged_by_rule_where_no_model_is_given(tmp_path: Path) -> None:
    data = tmp_path / "bench-results" / "incident" / "data"
    make(1, data / "windows" / "1", data / "gold" / "1.json", ["one_path", "nothing"])

    ran = sonde("bench", "incident", cwd=tmp_path)

    assert ran.returncode == 0
    assert "| rule | 2 |" in ran.stdout
    assert "of 2 (the bar is 16 of 20 by rule" in ran.stdout
    assert "of 1 healthy windows" in ran.stdout
