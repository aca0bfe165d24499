"""What tests of runs that are done again share: a folder with one fact, and a question about it that leaves a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sonde.api.ask_run import ask
from sonde.api.result import Answer
from sonde.api.settings import Settings
from sonde.testing import ScriptedModel

FINISH = "FINAL('42 [a.txt:1]')"


def one_fact(folder: Path) -> Path:
    """A folder with a file of one line."""
    (folder / "data").mkdir()
    (folder / "data" / "a.txt").write_text("beta is 42\n")
    return folder / "data"


def asked(data: Path, script: Any, **options: Any) -> tuple[Answer, Path]:
    """The answer and the folder of its run."""
    model = script if isinstance(script, ScriptedModel) else ScriptedModel(script)
    answer = ask("?", data, model=model, settings=Settings(), runs_dir=data.parent / "runs", **options)
    assert answer.run_dir is not None
    return answer, answer.run_dir
