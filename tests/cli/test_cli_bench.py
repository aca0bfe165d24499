"""`sonde bench`: the table on standard output and beside the results."""

from __future__ import annotations

from pathlib import Path

from cli_program import sonde


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
