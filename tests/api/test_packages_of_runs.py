"""`packages=` of ask: named in the prompt, recorded, and loaded again by a replay and a follow-up."""

from __future__ import annotations

from pathlib import Path

import pytest

import sonde
from sonde.api.settings import Settings
from sonde.core.events import RunStarted
from sonde.errors import ConfigError
from sonde.runs.rundir import RunDir
from sonde.testing import ScriptedModel

pytest.importorskip("numpy")
CODE = "import numpy as np\nkept = np.random.rand(3)\nprint(kept, read_file('a.txt'))"
DONE = "FINAL(f'{kept.sum()} [a.txt:1-1]')"


def test_a_run_with_numpy_is_told_so_and_replays_to_the_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("one line\n")
    model = ScriptedModel([CODE, DONE])
    runs = tmp_path / "runs"

    answer = sonde.ask("?", "a.txt", model=model, packages=["numpy"], runs_dir=runs, settings=Settings())
    assert answer.run_dir is not None
    again = sonde.replay(answer.run_dir)
    later = sonde.ask(
        "?", model=ScriptedModel([DONE]), continue_from=answer.run_dir, runs_dir=runs, settings=Settings()
    )

    assert answer.status == "succeeded"
    assert "These packages can be imported too: numpy." in model.requests[0].messages[0].content
    assert [each.settings["packages"] for each in RunDir(answer.run_dir).events() if isinstance(each, RunStarted)] == [
        ["numpy"]
    ]
    assert again.equal
    assert later.text.startswith(answer.text.split()[0])


def test_a_package_that_is_not_offered_ends_before_anything_is_asked(tmp_path: Path) -> None:
    model = ScriptedModel([DONE])

    with pytest.raises(ConfigError, match="numpy, pandas"):
        sonde.ask("?", "some text", model=model, packages=["torch"], runs_dir=tmp_path, settings=Settings())
    assert model.requests == []
