"""`--continue RUN` without --model goes on with the model of that run, within what the user has set up."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from cli_program import kept_runs, sonde

from sonde.testing import ScriptedServer

ANSWER = "```python\nFINAL('payments')\n```"
MODEL = "import pathlib, sys\npathlib.Path('calls').open('a').write('x')\nprint(\"\"\"```python\nFINAL('payments')\n```\"\"\")\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.log").write_text("payments: timeout\n")
    (tmp_path / "model.py").write_text(MODEL)
    return tmp_path


def test_the_model_of_the_earlier_run_is_used_and_named(folder: Path) -> None:
    with ScriptedServer(ANSWER) as server:
        env = {"OPENAI_BASE_URL": server.base_url}
        sonde("ask", "Which service?", "app.log", "--model", "openai:house", cwd=folder, **env)
        again = sonde("ask", "Sure?", "--continue", "last", cwd=folder, **env)

    assert f"model: openai:house (as in run {kept_runs(folder)[0].name})" in again.stderr
    assert server.requests[-1].body["model"] == "house"


def test_it_comes_before_the_model_that_a_key_implies_but_not_before_one_that_is_set(folder: Path) -> None:
    with ScriptedServer(ANSWER) as server:
        env = {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "sk-x"}
        sonde("ask", "Which service?", "app.log", "--model", "openai:house", cwd=folder, **env)
        implied = sonde("ask", "Sure?", "--continue", "last", cwd=folder, **env)
        named = sonde("ask", "Sure?", "--continue", "last", cwd=folder, SONDE_MODEL="openai:other", **env)

    assert "model: openai:house" in implied.stderr
    assert "model: openai:other (SONDE_MODEL)" in named.stderr


def test_a_provider_that_is_not_set_up_is_not_asked(folder: Path) -> None:
    with ScriptedServer(ANSWER) as server:
        sonde("ask", "Which service?", "app.log", "--model", "openai:house", "--base-url", server.base_url, cwd=folder)
        again = sonde("ask", "Sure?", "--continue", "last", cwd=folder)

    assert "model: none" in again.stderr
    assert "to use it again, name it: --model openai:house with --base-url or a key" in again.stderr


def test_a_program_is_started_again_only_for_a_run_that_was_made_here(folder: Path) -> None:
    sonde("ask", "Which service?", "app.log", "--model", f"command:{sys.executable} model.py", cwd=folder)
    first = len((folder / "calls").read_text())
    own = sonde("ask", "Sure?", "--continue", "last", cwd=folder)
    asked = len((folder / "calls").read_text())
    (run, *_) = kept_runs(folder)
    shutil.copytree(run, folder / "theirs" / run.name)

    strange = sonde("ask", "Sure?", "--continue", "last", "--runs-dir", "theirs", cwd=folder)
    by_path = sonde("ask", "Sure?", "--continue", folder / "theirs" / run.name, cwd=folder)

    assert "(as in run" in own.stderr and asked > first
    assert "model: none" in strange.stderr and "model: none" in by_path.stderr
    assert "name it: --model" in strange.stderr
    assert len((folder / "calls").read_text()) == asked
