"""One sub-call that gets no reply is something for the code to deal with, and not the end of the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from sonde.api.ask_run import ask
from sonde.api.rerun import replay
from sonde.api.settings import Settings
from sonde.core.events import Event, SubcallEnded
from sonde.core.status import RunStatus
from sonde.errors import ModelCallFailed
from sonde.testing import ScriptedModel, run_in_memory

LOOK = "print(read_file('a.txt'))"
FINISH = "FINAL('beta is 42 [a.txt:1]')"


@pytest.mark.parametrize(
    "failure", [ModelCallFailed("the prompt is too long", too_long=True), ModelCallFailed("refused")]
)
def test_a_sub_call_without_a_reply_is_told_to_the_code_and_the_run_goes_on(
    tmp_path: Path, failure: ModelCallFailed
) -> None:
    (tmp_path / "a.txt").write_text("beta is 42\n")
    events: list[Event] = []
    look = f"try:\n    print(llm_query('ask'))\nexcept RuntimeError as error:\n    print('heard:', error)\n{LOOK}"
    model = ScriptedModel([look, FINISH])
    answer = ask(
        "?",
        tmp_path / "a.txt",
        model=model,
        sub_model=ScriptedModel([failure]),
        on_event=events.append,
        settings=Settings(),
        runs_dir=tmp_path / "runs",
    )

    assert answer.status is RunStatus.SUCCEEDED
    assert "the model gave no reply" in model.requests[1].messages[-1].content
    assert [each.status for each in events if isinstance(each, SubcallEnded)] == ["failed"]
    assert answer.run_dir is not None
    assert replay(answer.run_dir, settings=Settings()).equal


def test_where_no_sub_call_can_be_made_none_are_said_to_be_left() -> None:
    model = ScriptedModel(["print(1)"] * 2)
    run_in_memory(model, profile="assign-only", max_iterations=2)

    assert "sub-calls" not in model.requests[0].messages[1].content
    assert "sub-calls" not in model.requests[1].messages[-1].content
