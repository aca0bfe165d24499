"""A replay over data that is not as it was says which file it is, and shows the first line that differs."""

from __future__ import annotations

from pathlib import Path

import pytest
from recorded_runs import FINISH, asked, one_fact

from sonde.api.rerun import replay, resume
from sonde.api.settings import Settings
from sonde.errors import ConfigError
from sonde.runs.rundir import JOURNAL, RECORD
from sonde.testing import ScriptedModel

LOOK = "print(read_file('a.txt'))"
CITE = "add_citation('a.txt', 1, 1)\nprint('noted')"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return one_fact(tmp_path)


@pytest.mark.requirement(100)
@pytest.mark.parametrize("look", [LOOK, CITE])
def test_a_replay_after_a_cited_file_has_changed_names_the_file(data: Path, look: str) -> None:
    _, run_dir = asked(data, [look, FINISH, FINISH])
    assert replay(run_dir, settings=Settings()).changed == ()
    (data / "a.txt").write_text("beta is 43\n")

    again = replay(run_dir, settings=Settings())

    assert not again.equal
    assert again.changed == ("a.txt",)


def test_a_file_that_is_gone_is_named_too(data: Path) -> None:
    _, run_dir = asked(data, [LOOK, FINISH])
    (data / "a.txt").rename(data / "b.txt")

    assert replay(run_dir, settings=Settings()).changed == ("a.txt",)


def test_a_new_file_that_the_run_did_not_read_is_a_change_of_the_data(data: Path) -> None:
    _, run_dir = asked(data, [LOOK, FINISH])
    (data / "new.txt").write_text("new\n")

    again = replay(run_dir, settings=Settings())

    assert again.changed == ("the data",)
    assert "new.txt" not in again.differences[0].recorded
    assert "new.txt" in again.differences[0].now


@pytest.mark.parametrize("name", ["data", "my data"])
def test_a_folder_that_is_gone_is_named_and_never_taken_for_text(data: Path, name: str) -> None:
    folder = data.rename(data.parent / name)
    _, run_dir = asked(folder, [LOOK, FINISH])
    lines = (run_dir / JOURNAL).read_bytes().splitlines(keepends=True)
    (run_dir / JOURNAL).write_bytes(b"".join(lines[:4]))
    (run_dir / RECORD).unlink()
    folder.rename(data.parent / "moved")

    with pytest.raises(ConfigError, match=name):
        resume(run_dir, model=ScriptedModel([LOOK, FINISH]), settings=Settings())

    moved = resume(
        run_dir, model=ScriptedModel([LOOK, FINISH]), context=str(data.parent / "moved"), settings=Settings()
    )
    assert moved.record.status == "succeeded"
