"""A tool that returns what is no data has failed: the model hears it, and the record holds the call."""

from __future__ import annotations

from pathlib import Path

import pytest

import sonde
from sonde.api.settings import Settings
from sonde.testing import ScriptedModel


def lost() -> object:
    """Nothing that can be written down."""
    return object()


@pytest.mark.requirement(8)
def test_the_call_is_counted_recorded_and_replayed(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("alpha\n")
    model = ScriptedModel(["list_files()\nlost()\nprint('never')", "FINAL('alpha [a.txt:1]')"])
    settings = Settings(runs_dir=tmp_path / "runs")
    answer = sonde.ask("?", tmp_path / "a.txt", model=model, settings=settings, tools=[lost])
    assert answer.run_dir is not None

    record = answer.record
    assert record.runtime_ref.usage.tool_calls == 2
    block = record.runtime_ref.repl_trajectory[0]
    assert [(call.tool_name, call.status) for call in block.tool_trace] == [("list_files", "ok"), ("lost", "error")]
    assert "tool lost returned what is not data: its result (object)" in model.requests[1].messages[-1].content
    assert sonde.replay(answer.run_dir, tools=[lost], settings=settings).differences == ()
