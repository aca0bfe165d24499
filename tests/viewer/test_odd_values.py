"""The page of a run opens whatever its final value holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sonde.api.ask_run import ask
from sonde.api.settings import Settings
from sonde.core.status import RunStatus
from sonde.runs.rundir import RunDir
from sonde.testing import ScriptedModel
from sonde.viewer import export_html
from sonde.viewer.server import Shelf


@pytest.mark.parametrize(
    "odd",
    [
        {"start_line": None},
        {"start_line": "first", "path": "a.txt"},
        {"start_line": 1, "end_line": [2], "path": "a.txt"},
        {"start_line": 1, "path": {"name": "a.txt"}},
        {"start_line": 1, "path": "a\0.txt"},
        {"start_line": 1, "path": "a" * 5000},
    ],
)
def test_fields_of_a_value_that_only_look_like_a_citation_do_not_hide_the_real_ones(
    tmp_path: Path, odd: dict[str, Any]
) -> None:
    (tmp_path / "a.txt").write_text("beta is 42\n")
    value = {"answer": "42 [a.txt:1]", "more": [{"excerpt_hash": "abc", **odd}]}
    model = ScriptedModel(["print(read_file('a.txt'))", f"FINAL({value!r})"])
    answer = ask("?", tmp_path / "a.txt", model=model, settings=Settings(), runs_dir=tmp_path / "runs")
    assert answer.status is RunStatus.SUCCEEDED
    assert answer.run_dir is not None

    shown = Shelf(tmp_path / "runs").excerpts(answer.run_dir.name)

    assert ("a.txt", "verified") in [(each["path"], each["state"]) for each in shown]
    assert export_html(RunDir(answer.run_dir), tmp_path / "run.html").exists()
