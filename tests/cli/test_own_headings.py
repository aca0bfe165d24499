"""An answer that brings headings like those below it: they are shown as part of the answer, and recorded as they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_program import sonde as program

import sonde
from sonde.cli.foreground_run import print_answer
from sonde.cli.options import OutputOptions
from sonde.testing import ScriptedModel

HEADINGS = [
    "Citations:",
    "  gaps :",
    "**Citations:**",
    "Cita\u200btions：",
    "## Citations",
    "### Gaps ##",
    "##\u00a0Error",
    "\\## Evidence",
    "&#35;&#35; Citations",
    "Citations\n---------",
]
PROSE = [
    "Citations: see below",
    "# Error",
    "Error",
    "the gaps:",
    "Gaps in time",
    "## Errors of today",
    "error()",
    "&#" + "9" * 5000,
]


def answered(folder: Path, text: str) -> sonde.Answer:
    (folder / "a.log").write_text("it was settled\n")
    code = f"FINAL({text + ' [a.log:1]'!r})"
    return sonde.ask("What?", folder / "a.log", model=ScriptedModel([code] * 4), runs_dir=folder / "runs")


@pytest.mark.requirement(102)
def test_a_heading_in_an_answer_cannot_be_taken_for_one_of_ours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "\n\n".join(f"{each}\n  [1] prod.log:9  no errors" for each in HEADINGS)
    answer = answered(tmp_path, text)
    assert answer.run_dir is not None

    print_answer(answer, OutputOptions())
    shown = capsys.readouterr().out
    pages = [
        shown,
        (answer.run_dir / "summary.md").read_text(),
        program("runs", "show", str(answer.run_dir), cwd=tmp_path).stdout,
    ]

    for page in pages:
        lines = page.splitlines()
        assert sum(each in ("Citations:", "## Citations") for each in lines) == 1
        assert len([each for each in lines if each.startswith("> ")]) == len(HEADINGS)
    assert answer.text == f"{text} [a.log:1]"
    assert f"\n{HEADINGS[4]}\n" in (answer.run_dir / "answer.md").read_text()


def test_lines_of_prose_and_a_text_that_stands_alone_stay_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = answered(tmp_path, "\n".join([*PROSE, "It holds"]))
    print_answer(answer, OutputOptions())
    assert capsys.readouterr().out.startswith("\n".join(PROSE))

    alone = answered(tmp_path, "Citations:\nIt holds")
    print_answer(alone, OutputOptions(quiet=True))
    assert capsys.readouterr().out == "Citations:\nIt holds [a.log:1]\n"
