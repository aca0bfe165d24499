"""`continue_from`: a follow-up has the variables and the history of the run before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sonde.api.ask_run import Answer, ask
from sonde.api.rerun import replay
from sonde.api.settings import Settings
from sonde.core.status import RunStatus
from sonde.testing import ScriptedModel

FIRST = [
    "import datetime\nrows = read_file('a.txt').splitlines()\nnow = datetime.datetime.now()",
    "rows.append(llm_query('name it'))",
    "named by a model",
    "broken = 1 / 0",
    "FINAL('two [a.txt:1]')",
]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("alpha\nbeta is 42\n")
    return tmp_path / "data"


def asked(question: str, data: Path, script: list[str], **options: Any) -> tuple[Answer, ScriptedModel]:
    model = ScriptedModel(script)
    where: dict[str, Any] = {"runs_dir": data.parent / "runs", "settings": Settings()}
    return ask(question, *([] if "continue_from" in options else [data]), model=model, **where, **options), model


def test_a_follow_up_has_the_variables_and_asks_no_model_again_for_them(data: Path) -> None:
    first, _ = asked("How many?", data, FIRST)
    assert first.run_dir is not None
    look = "print(rows, now)"
    second, model = asked("And?", data, [look, "FINAL(f'{len(rows)} [a.txt:1]')"] * 2, continue_from=first.run_dir)
    third, last = asked("Again?", data, [look, "FINAL('3 [a.txt:1]')"] * 2, continue_from=second.run_dir)

    shown, again = (m.requests[1].messages[-1].content for m in (model, last))
    assert "['alpha', 'beta is 42', 'named by a model']" in shown
    assert shown.partition("Left:")[0] == again.partition("Left:")[0]
    assert "rows: list" in model.requests[0].messages[1].content
    assert "How many?" in model.requests[0].messages[1].content
    assert third.record.runtime_ref.usage.llm_subcalls == 0
    assert second.status is RunStatus.PARTIAL or second.citations


def test_a_follow_up_replays(data: Path) -> None:
    first, _ = asked("How many?", data, FIRST)
    second, _ = asked(
        "And?", data, ["read_file('a.txt')", "FINAL(f'{len(rows)} [a.txt:1]')"], continue_from=first.run_dir
    )
    assert second.run_dir is not None

    assert replay(second.run_dir, settings=Settings()).equal


def test_a_follow_up_goes_on_without_the_variables_when_the_code_takes_another_path(data: Path) -> None:
    first, _ = asked(
        "How many?", data, ["x = 1\nif 'llm_query' in dir():\n    y = llm_query('a')", "an answer", *FIRST[-1:] * 2]
    )
    second, _ = asked(
        "And?", data, ["print(x)\nread_file('a.txt')", "FINAL('x [a.txt:1]')"], continue_from=first.run_dir, max_depth=0
    )

    assert second.status is RunStatus.SUCCEEDED
