"""Ctrl-C while the model is being waited for: the run ends with a complete record that counts what was sent."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from cli_program import environment, sonde

from sonde.testing import ScriptedReply, ScriptedServer, SeenRequest


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_breaks_the_waiting_off_and_the_call_is_counted(tmp_path: Path, number: signal.Signals) -> None:
    begun = threading.Event()
    (tmp_path / "a.txt").write_text("alpha is 42\n")

    def answer(_seen: SeenRequest) -> ScriptedReply:
        begun.set()
        return ScriptedReply(hang=True)

    with ScriptedServer(answer) as server:
        command = [
            sys.executable,
            "-m",
            "sonde",
            "ask",
            "What is alpha?",
            "a.txt",
            "--model",
            "openai:silent",
            "--json",
        ]
        env = environment(tmp_path, OPENAI_BASE_URL=server.base_url)
        with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True) as process:
            assert begun.wait(60)
            process.send_signal(number)
            out, _ = process.communicate(timeout=250)

    assert process.returncode == 128 + number
    found = json.loads(out)
    events = [json.loads(line) for line in (tmp_path / found["run_dir"] / "events.jsonl").read_text().splitlines()]
    (failed,) = [event for event in events if event["type"] == "model_failed"]
    assert found["error"]["message"] == "cancelled by the user"
    assert failed["cancelled"]
    assert found["usage"]["tokens_in"] == failed["tokens_in"] > 0


@pytest.mark.long  # it starts the program twice
def test_after_ctrl_c_one_line_is_the_command_that_goes_on(tmp_path: Path) -> None:
    begun = threading.Event()
    (tmp_path / "a.txt").write_text("alpha is 42\n")

    def answer(_seen: SeenRequest) -> ScriptedReply:
        if begun.is_set():
            return ScriptedReply(text="```python\nFINAL('42 [a.txt:1]')\n```")
        begun.set()
        return ScriptedReply(hang=True)

    with ScriptedServer(answer) as server:
        command = [sys.executable, "-m", "sonde", "ask", "What is alpha?", "a.txt", "--model", "openai:silent"]
        env = environment(tmp_path, OPENAI_BASE_URL=server.base_url)
        with subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True) as process:
            assert begun.wait(60)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=250)
        (offered,) = [line for line in err.splitlines() if line.startswith("to go on: ")]
        on = sonde(
            *shlex.split(offered.removeprefix("to go on: sonde ")), cwd=tmp_path, OPENAI_BASE_URL=server.base_url
        )

    assert process.returncode == 130
    assert "--max" not in offered
    assert (on.returncode, on.stdout.splitlines()[0]) == (0, "42 [a.txt:1]"), on.stderr
