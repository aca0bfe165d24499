"""docs/requirements.md names every requirement once, and `make requirements` notices when its tests have changed."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "requirements.py"))
PAGE = (ROOT / "docs" / "requirements.md").read_text("utf-8")


def test_the_page_has_every_number_and_a_column_of_tests_that_can_be_written_again() -> None:
    fresh = SCRIPT["page"](PAGE)

    assert SCRIPT["page"](fresh) == fresh
    assert "| R38 |" in fresh and "tests/" in next(line for line in fresh.splitlines() if line.startswith("| R38 |"))


def test_a_column_that_names_other_tests_is_seen() -> None:
    stale = "\n".join(
        "| R38 | The strict language. | `tests/gone.py::test_gone` |" if line.startswith("| R38 |") else line
        for line in PAGE.split("\n")
    )

    assert "tests/gone.py" not in SCRIPT["page"](stale)


@pytest.mark.long
@pytest.mark.parametrize("number", ["R1", "O17"])
def test_a_number_that_is_missing_is_refused(number: str) -> None:
    lines = [line for line in PAGE.split("\n") if not line.startswith(f"| {number} |")]

    with pytest.raises(ValueError, match="every number once"):
        SCRIPT["page"]("\n".join(lines))
