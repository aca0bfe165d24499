"""What a caller may hand over as the context of a question: text of any look is text, and only names of files are paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from sonde.core.status import RunStatus
from sonde.errors import ConfigError
from sonde.testing import ScriptedModel, run_in_memory

SCRIPT = ["print(context)", "FINAL('it says so [context.txt:1]')"]


@pytest.mark.parametrize(
    "text",
    ["The outage began at three. Who saw it?", "two * three is six", "** bold ** words", "word " * 400],
    ids=["question mark", "star", "two stars", "longer than a file name"],
)
def test_one_line_of_text_is_text_whatever_signs_it_has(text: str) -> None:
    answer = run_in_memory(ScriptedModel(SCRIPT), context=text)

    assert answer.status is RunStatus.SUCCEEDED
    assert answer.citations[0].path == "context.txt"


@pytest.mark.parametrize("name", ["a folder/one.txt", "a folder/*.txt", "a f?lder/**/one.txt"])
def test_a_path_or_a_glob_may_have_spaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / "a folder").mkdir()
    (tmp_path / "a folder" / "one.txt").write_text("alpha\n")
    monkeypatch.chdir(tmp_path)

    model = ScriptedModel(["print(list_files())", "FINAL('none')", "FINAL('none')"])
    run_in_memory(model, context=name)

    assert "one.txt" in model.requests[1].messages[-1].content


@pytest.mark.parametrize("name", ["no-such-file.txt", "x" * 300])
def test_one_word_that_names_nothing_is_a_mistake_of_the_caller(name: str) -> None:
    with pytest.raises(ConfigError, match="there is no file or folder"):
        run_in_memory(ScriptedModel(SCRIPT), context=name)
