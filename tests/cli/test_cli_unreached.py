"""What a user is told when there is no model to be reached, when a path is empty, and when there is only one of something."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_program import Shown, environment, sonde

from sonde.testing import ScriptedReply, ScriptedServer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/app.log").write_text("12:01 ERROR payments: timeout\n")
    return tmp_path


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address that refuses: the port is taken by a socket that does not listen."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}/v1"


def ask(folder: Path, *words: str) -> Shown:
    return sonde("ask", "Who failed first?", "logs", *words, cwd=folder, OPENAI_API_KEY="sk-none")


def failed(shown: Shown) -> dict[str, Any]:
    """The error of a run that failed, as its record has it."""
    answer = json.loads(shown.stdout)
    assert (shown.returncode, answer["status"]) == (1, "failed")
    record = json.loads((Path(shown.args[-1]) / answer["run_id"] / "run_record.json").read_text())
    assert record["error"] == answer["error"]
    return answer["error"]


@pytest.mark.requirement(112)
def test_a_server_that_nobody_runs_is_named_with_the_attempts_and_what_to_check(folder: Path, nobody: str) -> None:
    error = failed(ask(folder, "--json", "--base-url", nobody, "--runs-dir", str(folder / "runs")))

    assert (error["code"], error["stage"]) == ("MODEL_UNREACHABLE", "runtime_model")
    assert f"after 4 attempts: the model could not be reached at {nobody}/chat/completions" in error["message"]
    assert "check that the server is running" in error["message"]


def message_of(folder: Path, script: str) -> tuple[Path, str]:
    """A model made of this script, and what the failed run says about it."""
    program = folder / "model"
    program.write_text(script)
    program.chmod(0o755)
    words = ("--json", "--model", f"command:{program}", "--runs-dir", str(folder / "runs"))
    error = failed(ask(folder, *words))
    assert error["code"] == "MODEL_UNREACHABLE"
    return program, error["message"]


@pytest.mark.requirement(112)
def test_a_program_that_always_fails_is_named_with_the_attempts_and_its_last_words(folder: Path) -> None:
    program, message = message_of(folder, "#!/bin/sh\nprintf 'asking\\nno such account' >&2\nexit 3\n")

    failed = f"after 1 attempt: the model's program failed: command:{program} ended with exit code 3: no such account"
    assert f"{failed} (it sees only PATH, HOME, LANG of the environment; env =" in message
    assert message.endswith("Before that: asking")


def test_a_program_whose_interpreter_is_missing_is_named_with_what_to_check(folder: Path) -> None:
    program, message = message_of(folder, "#!/nowhere/interpreter\n")

    assert f"the model could not be reached: command:{program} could not be started" in message
    assert "may be executed" in message


def test_a_program_that_does_not_exist_is_a_usage_error(folder: Path) -> None:
    shown = ask(folder, "--model", "command:/nowhere/model")

    assert shown.returncode == 2
    assert "'/nowhere/model' was not found" in shown.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("ask", "Who?", "logs", "--runs-dir"),
        ("runs", "--runs-dir"),
        ("runs", "prune", "--keep", "0", "--yes", "--runs-dir"),
        ("ask", "Who?", "logs", "--schema"),
        ("comply", "t1", "--controls-file"),
        ("demo", "--folder"),
        ("edit", "Rename it"),
        ("batch",),
        ("traces", "import"),
        ("runs", "import"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("empty", ["", "  "], ids=["empty", "spaces"])
def test_an_empty_path_is_a_usage_error_and_never_the_current_folder(
    folder: Path, words: tuple[str, ...], empty: str
) -> None:
    shown = sonde(*words, empty, cwd=folder)

    assert shown.returncode == 2
    assert "the path is empty; give one" in shown.stderr
    assert {path.name for path in folder.iterdir()} == {"logs"}


def test_an_empty_place_for_runs_in_a_file_is_a_usage_error(folder: Path) -> None:
    (folder / "sonde.toml").write_text('runs_dir = ""\n')
    shown = sonde("ask", "Who?", "logs", cwd=folder)

    assert shown.returncode == 2
    assert "runs_dir" in shown.stderr and "must be a path" in shown.stderr


def test_an_empty_variable_sets_nothing(folder: Path) -> None:
    sonde("ask", "Who?", "logs", cwd=folder, SONDE_RUNS_DIR="")

    assert {path.name for path in folder.iterdir()} == {"logs", ".local"}


def test_edit_without_a_model_says_that_nothing_was_edited_why_and_what_to_do(folder: Path) -> None:
    shown = sonde("edit", "Rename app.log", "logs", cwd=folder)

    assert shown.returncode == 2 and shown.stdout == ""
    assert "no model is set: pass --model" in shown.stderr
    assert "--yes" not in shown.stderr  # it would not help


@pytest.mark.long
def test_one_of_something_is_not_several(folder: Path) -> None:
    (folder / "items.jsonl").write_text('{"id": "a", "engine": "ask", "question": "Who?", "paths": ["logs"]}\n')
    batch = sonde("batch", "items.jsonl", "--runs-dir", "runs", cwd=folder)
    sonde("ask", "Who?", "logs", cwd=folder)
    pruned = sonde("runs", "prune", "--keep", "0", "--yes", cwd=folder)

    assert "batch: 1 item in" in batch.stderr
    assert "1 of 1 item finished" in (next((folder / "runs").glob("batch-*")) / "report.md").read_text()
    assert pruned.stdout.endswith("1 run deleted\n")


TRIPWIRE = """
import os, signal, sys
def interrupt(event, arguments):
    if event == "import" and arguments[0] == {name!r}:
        os.kill(os.getpid(), signal.SIGINT)
sys.addaudithook(interrupt)
"""


@pytest.mark.parametrize("name", ["sonde.cli.program", "typer.core", "sonde.cli.options", "sonde.api.settings"])
def test_ctrl_c_while_python_imports_ends_quietly(folder: Path, name: str) -> None:
    (folder / "early").mkdir()
    (folder / "early/sitecustomize.py").write_text(TRIPWIRE.format(name=name))
    env = environment(folder, PYTHONPATH=str(folder / "early"))
    command = [sys.executable, "-m", "sonde", "ask", "Who?", "logs"]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=250, check=False)

    assert done.returncode == 128 + signal.SIGINT
    assert done.stderr.count("\n") <= 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("status", "code", "attempts", "todo"),
    [
        (401, "MODEL_UNAUTHORIZED", 1, "set OPENAI_API_KEY"),
        (403, "MODEL_UNAUTHORIZED", 1, "check its permissions"),
        (404, "MODEL_NOT_FOUND", 1, "it has scripted."),
        (429, "MODEL_RATE_LIMITED", 4, "try again later"),
        (503, "MODEL_UNREACHABLE", 4, "The server failed."),
        (400, "MODEL_OUTPUT_INVALID", 1, "The server refused the request."),
    ],
)
def test_each_failure_of_a_model_has_its_code_and_is_said_once_with_what_to_do(
    folder: Path, status: int, code: str, attempts: int, todo: str
) -> None:
    words = b'{"error": {"message": "words of the server"}}'
    with ScriptedServer(ScriptedReply(status=status, raw=words, headers={"retry-after": "0"})) as server:
        shown = ask(folder, "--model", "openai:nope", "--base-url", server.base_url, "--runs-dir", str(folder / "runs"))

    assert shown.returncode == 1
    assert len(server.requests) == attempts
    (line,) = [line for line in (shown.stdout + shown.stderr).splitlines() if "words of the server" in line]
    assert line.startswith(f"sonde: {code}: ")
    assert server.base_url in line and todo in line


def test_an_unknown_provider_is_answered_with_those_there_are(folder: Path, nobody: str) -> None:
    for name in ("foo:bar", "fooo:gpt-4o-mini"):
        shown = ask(folder, "--model", name, "--base-url", nobody)

        assert shown.returncode == 2
        assert "anthropic" in shown.stderr and "openrouter" in shown.stderr and "local:smollm2" in shown.stderr
