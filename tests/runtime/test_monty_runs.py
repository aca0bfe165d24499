"""Whole runs in the portable backend: named in the record, replayed with the same one, never chosen in silence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sonde.api.ask_run import ask
from sonde.api.rerun import replay
from sonde.api.settings import Settings
from sonde.core.status import RunStatus
from sonde.errors import SandboxUnavailable
from sonde.sandbox import open_box
from sonde.testing import ScriptedModel

pytestmark = pytest.mark.monty


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    try:
        open_box("monty").close()
    except SandboxUnavailable as missing:
        pytest.skip(missing.message)
    return Settings(backend="monty", runs_dir=tmp_path / "runs")


def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.txt").write_text("alpha\nbeta is 42\n")
    return folder


def test_a_run_uses_tools_meets_a_gap_of_the_interpreter_and_is_replayed(tmp_path: Path, settings: Settings) -> None:
    model = ScriptedModel(
        [
            "def rows():\n    yield 1",
            "print(grep('beta'))",
            "text = read_file('a.txt', 1, 2)\nadd_citation('a.txt', 2, 2)\nFINAL('beta is 42')",
        ]
    )
    answer = ask("What is beta?", data(tmp_path), model=model, settings=settings)

    assert answer.status is RunStatus.SUCCEEDED
    assert answer.text.startswith("beta is 42") and len(answer.citations) == 1
    assert "backend: monty" in answer.record.runtime_ref.layers
    assert "Monty" in model.requests[0].messages[0].content
    assert "yield" in model.requests[1].messages[-1].content
    assert answer.run_dir is not None
    assert replay(answer.run_dir, settings=settings).equal


def test_a_program_runs_in_the_chosen_backend(tmp_path: Path, settings: Settings) -> None:
    def run(*words: str, code: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "sonde", "exec", "-", *words]
        return subprocess.run(
            command, input=code, text=True, capture_output=True, cwd=tmp_path, env=dict(os.environ), check=False
        )

    shown = run("--backend", "monty", "--json", code="FINAL(6 * 7)")
    refused = run("--backend", "monty", code="x = 1\ndel x")
    assert shown.returncode == 0 and '"NO KERNEL LAYERS"' in shown.stdout
    assert refused.returncode == 1 and "del" in refused.stderr
    assert run("--backend", "docker", code="1").returncode == 2
