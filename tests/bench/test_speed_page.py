"""The speed benchmarks: a ratio that is broken is called broken, and the page holds what was measured and nothing else."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmarks() -> Iterator[tuple[Any, Any]]:
    """The programs `all` and `quick` as modules."""
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module("all"), importlib.import_module("quick")
    finally:
        sys.path.remove(str(FOLDER))


def test_a_ratio_is_broken_only_when_every_attempt_is(benchmarks: tuple[Any, Any]) -> None:
    _, quick = benchmarks
    once_slow = iter([(9.0, 1.0), (2.0, 1.0)])

    assert quick.judged(quick.Ratio(what="slow once", most=3.0, sides=lambda: next(once_slow))) == (2.0, True)
    assert quick.judged(quick.Ratio(what="slow", most=3.0, sides=lambda: (4.0, 1.0))) == (4.0, False)


@pytest.mark.long
def test_one_guarded_ratio_is_measured_from_the_command_line() -> None:
    done = subprocess.run(
        [sys.executable, FOLDER / "quick.py", "--only", "call", "--json"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert 0 < json.loads(done.stdout)["call"]["ratio"] < 0.5


def measured(all_: Any, **changed: Any) -> Any:
    fields = {
        "command": "python benchmarks/x.py",
        "text": "load 1\n| a | b |\n|---|---|\n| 1 | 2 |\nthe end",
        "failed": "",
        "at": "today",
        "seconds": 1.0,
        "load": 0.5,
        "commit": "abc",
        "versions": {"sonde": "0.1.0", "rlms": "9"},
    }
    return all_.Measured(**fields | changed)


def test_the_page_is_filled_between_its_marks_and_nowhere_else(benchmarks: tuple[Any, Any], tmp_path: Path) -> None:
    all_, _ = benchmarks
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- figures:begin (x) -->\nold\n<!-- figures:end -->\nafter\n")
    for _ in range(2):
        all_.write_page(page, all_.figures({"turn": measured(all_)}))
    text = page.read_text()

    assert text.startswith("before\n<!-- figures:begin (x) -->") and text.endswith("<!-- figures:end -->\nafter\n")
    assert "old" not in text and text.count("A turn of the loop") == 1
    assert "rlms 9" in text and "load 0.5" in text and "cores" in text
    assert "```text\nload 1\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```text\nthe end\n```" in text


def test_a_benchmark_that_failed_shows_why_and_no_figures(benchmarks: tuple[Any, Any]) -> None:
    all_, _ = benchmarks
    shown = all_.section(all_.PROGRAMS["turn"], measured(all_, failed="boom"))

    assert "boom" in shown and "| 1 |" not in shown
