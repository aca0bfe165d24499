"""Ctrl-C while the model is being waited for: the run ends with a complete record that counts what was sent."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from cli_program import environment

from sonde.testing import ScriptedReply, ScriptedServer, SeenRequest


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
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
