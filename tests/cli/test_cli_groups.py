"""Options between a command and its sub-command mean what they mean after it."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_program import sonde
from typer.main import get_command

from sonde import ask
from sonde.cli.options import CommandList
from sonde.cli.program import build, command_names
from sonde.testing import ScriptedModel


def _asked(folder: Path) -> Path:
    run = ask("q?", "some text of it", model=ScriptedModel(["FINAL('a')"]), runs_dir=folder).run_dir
    assert run is not None
    return run


def test_prune_takes_the_folder_that_is_named_before_it(tmp_path: Path) -> None:
    kept, doomed = _asked(tmp_path / "new"), _asked(tmp_path / "old")

    shown = sonde("runs", "--runs-dir", "old", "prune", "--keep", "0", "-y", cwd=tmp_path, SONDE_RUNS_DIR="new")

    assert shown.returncode == 0
    assert kept.exists()
    assert not doomed.exists()


def test_issues_takes_the_watch_that_is_named_before_the_verb(tmp_path: Path) -> None:
    shown = sonde("issues", "--state", "elsewhere", "resolve", "1", cwd=tmp_path)

    assert shown.returncode == 2
    assert "elsewhere" in shown.stderr


def test_an_option_given_twice_with_two_values_is_refused(tmp_path: Path) -> None:
    run = _asked(tmp_path / "a")
    words = ("runs", "--runs-dir", "a", "show", "last", "--runs-dir")

    assert sonde(*words, "a", cwd=tmp_path).returncode == 0
    shown = sonde(*words, "b", cwd=tmp_path)

    assert shown.returncode == 2
    assert "--runs-dir has two values" in shown.stderr
    assert run.exists()


@pytest.mark.parametrize(
    "words",
    [
        ("runs", "--limit", "3", "prune", "--keep", "0", "-y"),
        ("issues", "--all", "show", "1"),
        ("rlms", "--standalone", "gate", "--output-dir", "."),
        ("config", "--use", "fast", "trust"),
    ],
)
def test_an_option_that_the_sub_command_lacks_is_refused(words: tuple[str, ...], tmp_path: Path) -> None:
    shown = sonde(*words, cwd=tmp_path)

    assert shown.returncode == 2
    assert "leave" in shown.stderr


def test_every_command_with_sub_commands_passes_its_options_on() -> None:
    program = get_command(build(command_names()))
    groups = [each for each in vars(program)["commands"].values() if hasattr(each, "commands")]

    assert len(groups) >= 4
    assert all(isinstance(each, CommandList) for each in groups)
