"""Blank lines prove nothing: no answer may rest on them, and no rule points at them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sonde.contexts.files import FilesContext
from sonde.models.base import ModelRequest
from sonde.testing import ScriptedModel, run_in_memory

TEXT = "the gate\n\n   \n\t\nthe key is under the mat\n"


@pytest.fixture
def files(tmp_path: Path) -> FilesContext:
    (tmp_path / "a.txt").write_text(TEXT)
    return FilesContext(tmp_path / "a.txt")


@pytest.mark.requirement(102)
@pytest.mark.parametrize("final", ["FINAL('under the mat [a.txt:2-4]')", "add_citation('a.txt', 2, 4)"])
def test_a_citation_of_blank_lines_is_refused_and_the_model_is_told_where_there_is_text(
    files: FilesContext, final: str
) -> None:
    model = ScriptedModel(["print(read_file('a.txt'))", final, "FINAL('under the mat [a.txt:4-5]')"])

    answer = run_in_memory(model, "where is the key?", files)

    assert "a.txt:2-4 is blank and proves nothing" in model.requests[2].messages[-1].content
    assert "such as line 5" in model.requests[2].messages[-1].content
    assert (answer.status, [(c.start_line, c.end_line) for c in answer.citations]) == ("succeeded", [(4, 5)])


def test_an_answer_that_insists_on_blank_lines_has_no_citation(files: FilesContext) -> None:
    model = ScriptedModel(["print(read_file('a.txt'))", *["FINAL('under the mat [a.txt:3]')"] * 4])

    answer = run_in_memory(model, "where is the key?", files, max_iterations=4)

    assert answer.status == "partial"
    assert [c for c in answer.citations if not c.fallback] == []


def test_a_blank_line_of_a_tools_text_is_refused() -> None:
    def notice() -> str:
        """A text with a blank line."""
        return "first\n\nlast"

    def reply(request: ModelRequest) -> str:
        found = re.search(r"tool:notice:[0-9a-f]{8}-[0-9a-f]{8}", str(request.messages))
        return f"FINAL('it [{found[0]}:2]')" if found else "print(notice())"

    answer = run_in_memory(ScriptedModel(reply), "what?", "some data", tools=[notice], max_iterations=4)

    assert answer.status == "partial"
    assert any("is blank and proves nothing" in gap for gap in answer.gaps)


@pytest.mark.parametrize(
    "text", ["\n\n\nzebra\n\n\n\n", "zebra\n\n\n\n\n", "a\n\n\n\n\n\nthe zebra", "\n" * 40 + "zebras\n"]
)
def test_passages_found_without_a_model_neither_begin_nor_end_with_a_blank_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.txt").write_text(text)

    answer = run_in_memory(None, "where is the zebra?", FilesContext(tmp_path))

    lines = text.split("\n")
    assert answer.citations
    for each in answer.citations:
        assert lines[each.start_line - 1].strip() and lines[each.end_line - 1].strip()
