"""The exit code of a command that a signal stopped. The signal comes from inside the run, so that it always comes at the same place."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from cli_program import sonde

from sonde import ask
from sonde.cli.live import Lines
from sonde.core.events import Event, TurnStarted
from sonde.testing import ScriptedModel, ScriptedServer, SeenRequest

LOOK = "```python\nprint(read_file('a.txt'))\n```"
SIGNALS = [signal.SIGINT, signal.SIGTERM]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_text("alpha is 1\n")
    return tmp_path


@pytest.mark.parametrize("number", SIGNALS)
def test_a_resume_that_is_stopped_says_so_by_its_exit_code(folder: Path, number: signal.Signals) -> None:
    def crash(event: Event) -> None:
        if isinstance(event, TurnStarted) and event.turn == 2:
            raise SystemExit

    with pytest.raises(SystemExit):
        ask(
            "What is alpha?",
            folder / "a.txt",
            model=ScriptedModel([LOOK, LOOK]),
            runs_dir=folder / "runs",
            on_event=crash,
        )

    def answer(_seen: SeenRequest) -> str:
        os.kill(os.getpid(), number)
        return LOOK

    with ScriptedServer(answer) as server:
        words = ("resume", "last", "--runs-dir", "runs", "--model", "openai:x", "--base-url", server.base_url)
        shown = sonde(*words, "--trust-run", cwd=folder)

    assert shown.returncode == 128 + number, shown.stderr
    assert "partial" in shown.stderr


@pytest.mark.parametrize("number", SIGNALS)
def test_a_replay_that_is_stopped_calls_nothing_different(
    folder: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(
        "What is alpha?",
        folder / "a.txt",
        model=ScriptedModel([LOOK, "```python\nFINAL('1')\n```"]),
        runs_dir=folder / "runs",
    )
    shows = Lines.on_event

    def stopping(self: Lines, event: Event) -> None:
        shows(self, event)
        if isinstance(event, TurnStarted):
            os.kill(os.getpid(), number)

    monkeypatch.setattr(Lines, "on_event", stopping)
    shown = sonde("replay", "last", "--runs-dir", "runs", "--trust-run", cwd=folder)

    assert shown.returncode == 128 + number
    assert "different" not in shown.stdout
