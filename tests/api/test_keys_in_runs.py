"""Keys that turn up in data, in the complaint of a tool or in a command's reply reach neither the model nor any file of the run."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from sonde.api.ask_run import ask
from sonde.api.config_file import NamedModel
from sonde.api.rerun import replay
from sonde.api.result import Answer
from sonde.api.settings import Settings
from sonde.core.status import RunStatus
from sonde.models.base import Secret
from sonde.testing import ScriptedModel

KEY = "sk-very-secret-0123456789"
KEYED = Settings(api_key=Secret(f"{KEY}\n"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("beta is 42\n")
    (tmp_path / "data" / "env.txt").write_text(f"KEY={KEY}\n")
    return tmp_path / "data"


def asked(data: Path, settings: Settings = KEYED, **options: Any) -> Answer:
    return ask("?", data, settings=settings, runs_dir=data.parent / "runs", **options)


def files_with_the_key(answer: Answer) -> list[str]:
    assert answer.run_dir is not None
    return [path.name for path in answer.run_dir.rglob("*") if path.is_file() and KEY in path.read_text()]


def test_an_answer_that_holds_a_key_is_written_without_it(data: Path) -> None:
    answer = asked(
        data, model=ScriptedModel(["print(CONTEXT['env.txt'])", "FINAL(CONTEXT['env.txt'] + '[env.txt:1]')"])
    )

    assert answer.status is RunStatus.SUCCEEDED
    assert files_with_the_key(answer) == []


@pytest.mark.parametrize("before", [0, 19_990])
def test_a_tool_that_fails_with_the_key_in_its_words_tells_it_to_nobody(data: Path, before: int) -> None:
    def failing() -> str:
        """What is in stock."""
        raise ValueError(f"{'x' * before}401 for {KEY}")

    look = "try:\n    failing()\nexcept Exception as error:\n    print(len(str(error)), str(error)[-60:])"
    model = ScriptedModel([look, "print(read_file('a.txt'))", "FINAL('42 [a.txt:1]')"])
    answer = asked(data, model=model, tools=[failing])

    assert answer.status is RunStatus.SUCCEEDED
    assert not [each for each in model.requests if KEY[:16] in each.messages[-1].content]
    assert files_with_the_key(answer) == []
    assert answer.run_dir is not None
    assert replay(answer.run_dir, settings=Settings(), tools=[failing]).equal


def test_a_key_that_a_command_gets_from_the_file_and_prints_is_not_recorded(data: Path) -> None:
    program = "import os; print('FINAL(\"' + os.environ['SHOP_API_KEY'] + '\")')"
    spec = NamedModel(
        spec=f"command:{shlex.join([sys.executable, '-c', program])}", env={"SHOP_API_KEY": KEY}, source="sonde.toml"
    )
    answer = asked(data, Settings(models={"mine": spec}), model="mine", max_iterations=2)

    assert answer.record.runtime_ref.usage.iterations
    assert files_with_the_key(answer) == []


@pytest.mark.parametrize("block", ["print(CONTEXT['env.txt'])", "raise ValueError(CONTEXT['env.txt'])"])
def test_a_key_that_the_code_prints_or_raises_is_not_told_to_the_model(data: Path, block: str) -> None:
    model = ScriptedModel([block, "print(read_file('a.txt'))", "FINAL('42 [a.txt:1]')"])
    answer = asked(data, model=model)

    assert answer.status is RunStatus.SUCCEEDED
    assert "KEY=[key removed]" in model.requests[1].messages[-1].content
    assert not [each for each in model.requests if KEY in each.messages[-1].content]
    assert answer.run_dir is not None
    assert replay(answer.run_dir, settings=KEYED).equal


def test_what_the_code_printed_with_a_key_replays_where_the_key_is_not_set(data: Path) -> None:
    model = ScriptedModel(["print(CONTEXT['env.txt'])", "print(read_file('a.txt'))", "FINAL('42 [a.txt:1]')"])
    answer = asked(data, model=model)

    assert answer.run_dir is not None
    assert replay(answer.run_dir, settings=Settings()).equal


def test_a_key_in_the_data_is_not_told_in_a_sub_call(data: Path) -> None:
    said = "print(llm_query('Which names are set? ' + CONTEXT['env.txt']), read_file('a.txt'))"
    model, helper = ScriptedModel([said, "FINAL('42 [a.txt:1]')"]), ScriptedModel(["KEY"])
    answer = asked(data, model=model, sub_model=helper)

    assert answer.status is RunStatus.SUCCEEDED
    assert helper.requests[0].messages[-1].content == "Which names are set? KEY=[key removed]\n"
    assert files_with_the_key(answer) == []
    assert answer.run_dir is not None
    assert replay(answer.run_dir, settings=KEYED).equal
    assert replay(answer.run_dir, settings=Settings()).equal
