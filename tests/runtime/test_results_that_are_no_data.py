"""A tool that returns what is no data ends the run, and the record holds the call that did it."""

from __future__ import annotations

from pathlib import Path

import pytest

import sonde
from sonde.api.settings import Settings
from sonde.errors import ErrorCode
from sonde.testing import ScriptedModel


def lost() -> object:
    """Nothing that can be written down."""
    return object()


@pytest.mark.requirement(8)
@pytest.mark.requirement(107)
@pytest.mark.requirement(115)
def test_the_call_is_counted_recorded_and_replayed(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("alpha\n")
    model = ScriptedModel(["list_files()\nlost()\nprint('never')"])
    answer = sonde.ask(
        "?", tmp_path / "a.txt", model=model, settings=Settings(runs_dir=tmp_path / "runs"), tools=[lost]
    )
    assert answer.run_dir is not None

    record = answer.record
    assert record.error is not None
    assert (record.error.code, record.error.stage) == (ErrorCode.TOOL_RESPONSE_INVALID, "run_engine")
    assert record.runtime_ref.usage.tool_calls == 2
    (block,) = record.runtime_ref.repl_trajectory
    assert [(call.tool_name, call.status) for call in block.tool_trace] == [("list_files", "ok"), ("lost", "error")]
    assert sonde.replay(answer.run_dir, tools=[lost], settings=Settings(runs_dir=tmp_path / "runs")).differences == ()
