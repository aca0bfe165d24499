"""A disk that fills up at the very end of a run: the answer is there, and the files follow when there is room."""

from __future__ import annotations

from pathlib import Path

import sonde
from sonde.api.rerun import resume
from sonde.core.events import Event, RunEnded, RunStarted
from sonde.testing import ScriptedModel


class InTheWay:
    """Puts a folder where the run will want to write its summary, as soon as the run has ended."""

    def __init__(self, runs_dir: Path) -> None:
        self.runs_dir = runs_dir
        self.summary = Path()

    def __call__(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self.summary = self.runs_dir / event.run_id / "summary.md"
        if isinstance(event, RunEnded):
            self.summary.mkdir()


def test_an_answer_outlives_files_that_cannot_be_written_and_a_resume_writes_them(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("the ledger refused\n")
    stone = InTheWay(tmp_path / "runs")
    model = ScriptedModel(["print(read_file('note.txt'))", "FINAL('the ledger did [note.txt:1]')"])

    answer = sonde.ask("Who refused?", tmp_path / "note.txt", model=model, runs_dir=stone.runs_dir, on_event=stone)

    assert (answer.text, answer.status) == ("the ledger did [note.txt:1]", "succeeded")
    (gap,) = answer.gaps
    assert f"sonde resume {answer.record.run_id}" in gap
    stone.summary.rmdir()
    resume(answer.record.run_id, runs_dir=stone.runs_dir, model=ScriptedModel([]))
    assert "the ledger did" in stone.summary.read_text()
