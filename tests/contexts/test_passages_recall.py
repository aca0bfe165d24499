"""How often the lines that answer a question are among those shown, over the standard library of this Python."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "passages.py"))


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("tests", [False, True], ids=["indexed", "scanned"])
def test_seven_of_ten_held_out_questions_show_a_line_that_answers(*, tests: bool) -> None:
    held_out = [question for question in SCRIPT["questions"]() if question.held_out]

    recall = SCRIPT["measure"](SCRIPT["standard_library"](tests=tests), held_out)

    assert recall.asked == 20
    assert recall.shown >= 14
