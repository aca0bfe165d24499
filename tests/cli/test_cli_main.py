"""The door: fast help, exit codes, and messages that say what to do."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from cli_program import environment, sonde, sonde_process

from sonde.cli import commands
from sonde.cli.program import SHARED, command_names

HEAVY = ("rich", "pydantic", "msgspec", "httpx2", "pydantic_ai", "openai", "anthropic", "sonde.api", "sonde.runtime")


def test_help_lists_the_commands_of_every_file(tmp_path: Path) -> None:
    shown = sonde("--help", cwd=tmp_path)

    assert shown.returncode == 0
    files = {path.stem.replace("_", "-") for path in Path(commands.__path__[0]).glob("*.py")} - {"--init--"}
    assert files | SHARED.keys() == set(command_names())
    assert all(f"\n  {name} " in shown.stdout for name in command_names())


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    code = f"import sys\nfrom sonde.cli.main import main\ntry: main(['--help'])\nfinally: print([m for m in {HEAVY!r} if m in sys.modules])"
    shown = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=250, check=True
    )

    assert shown.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", command_names())
def test_every_command_has_help_of_its_own(name: str, tmp_path: Path) -> None:
    shown = sonde(name, "--help", cwd=tmp_path)

    assert shown.returncode == 0
    assert f"Usage: sonde {name}" in shown.stdout


@pytest.mark.parametrize("words", [["nonsense"], ["config", "--nonsense"], ["ask"], ["config", "--max-depth", "deep"]])
def test_a_usage_error_is_exit_code_2_with_a_hint(words: list[str], tmp_path: Path) -> None:
    shown = sonde(*words, cwd=tmp_path)

    assert shown.returncode == 2
    assert "--help" in shown.stderr
    assert shown.stdout == ""


def test_a_configuration_error_is_exit_code_2_and_one_line(tmp_path: Path) -> None:
    (tmp_path / "sonde.toml").write_text("max_iteration = 3")

    shown = sonde("config", cwd=tmp_path)

    assert shown.returncode == 2
    assert shown.stderr.startswith("sonde: ") and "max_iterations" in shown.stderr
    assert len(shown.stderr.splitlines()) == 1


def test_config_shows_each_value_and_where_it_came_from(tmp_path: Path) -> None:
    (tmp_path / "sonde.toml").write_text(
        'mode = "actions"\n[profile.ci]\nmax_depth = 2\n[models.me]\ncommand = ["cat"]'
    )

    shown = sonde(
        "config",
        "--max-iterations",
        "7",
        cwd=tmp_path,
        SONDE_CONFIG="sonde.toml",
        SONDE_PROFILE="ci",
        SONDE_MAX_COST_USD="0.5",
    )

    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in shown.stdout.splitlines()}
    assert rows["max_iterations"] == ["7", "--max-iterations"]
    assert rows["max_cost_usd"] == ["0.5", "SONDE_MAX_COST_USD"]
    assert rows["max_depth"] == ["2", f"{tmp_path}/sonde.toml [profile.ci]"]
    assert rows["mode"] == ["actions", f"{tmp_path}/sonde.toml"]
    assert rows["max_subcalls"] == ["90", "default"]
    assert rows["models.me"][0] == "command:cat"


def test_config_shows_keys_as_set_and_never_as_they_are(tmp_path: Path) -> None:
    shown = sonde("config", "--json", cwd=tmp_path, OPENAI_API_KEY="sk-planted-secret")

    assert "sk-planted-secret" not in shown.stdout + shown.stderr
    rows = {row["name"]: row for row in json.loads(shown.stdout)["settings"]}
    assert rows["api_key"] == {"name": "api_key", "value": "set", "source": "OPENAI_API_KEY"}
    assert rows["model"]["value"] == "openai:gpt-4o-mini"


def test_version(tmp_path: Path) -> None:
    assert sonde("--version", cwd=tmp_path).stdout.startswith("sonde 0.")


@pytest.mark.long
def test_a_terminal_that_knows_only_ascii_is_no_reason_to_crash(tmp_path: Path) -> None:
    shown = sonde_process("ask", "größe", "none", cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert shown.returncode == 2

    (tmp_path / "ä.txt").write_text("größe\n")
    shown = sonde_process("ask", "größe", "ä.txt", cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert shown.returncode == 0, shown.stderr
    assert "gr\\xf6\\xdfe" in shown.stdout


@pytest.mark.parametrize("words", [["-h"], ["ask", "-h"], ["traces", "ls", "-h"]])
def test_help_is_short_too(words: list[str], tmp_path: Path) -> None:
    assert sonde(*words, cwd=tmp_path).stdout.startswith(f"Usage: {' '.join(['sonde', *words[:-1]])}")


def run_in_shell(command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """With `sonde` as a word of the shell."""
    script = f'sonde() {{ "{sys.executable}" -m sonde "$@"; }}; {command}'
    return subprocess.run(
        ["bash", "-c", script], cwd=cwd, env=environment(cwd), capture_output=True, text=True, timeout=250, check=False
    )


@pytest.mark.parametrize(
    "command",
    [
        "sonde --help",
        *(pytest.param(each, marks=pytest.mark.long) for each in ("sonde config", "sonde ask INFO log.txt")),
    ],
)
def test_an_output_that_cannot_be_written_is_exit_code_1_and_one_sentence(command: str, tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("INFO up\n")

    shown = run_in_shell(f"{command} > /dev/full", tmp_path)

    assert shown.returncode == 1
    assert "sonde: the output could not be written: No space left on device\n" in shown.stderr
    assert "Traceback" not in shown.stderr


@pytest.mark.parametrize("extra", ["mcp", pytest.param("acp", marks=pytest.mark.long)])
def test_a_protocol_whose_extra_is_not_installed_says_what_to_install(extra: str, tmp_path: Path) -> None:
    code = f"import sys; sys.modules[{extra!r}] = None; from sonde.cli.main import main; sys.exit(main(['serve', '--{extra}']))"
    shown = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=250, check=False
    )

    assert shown.returncode == 2
    command = shlex.split(shown.stderr.partition(f"extra {extra}: ")[2])
    assert command[-1].endswith(f"[{extra}]") and "install" in command
    if "-e" in command:  # a checkout, which is not on PyPI
        assert Path(command[0]).is_file() and Path(command[-1].removesuffix(f"[{extra}]"), "pyproject.toml").is_file()


@pytest.mark.long
def test_a_closed_input_does_not_matter_and_a_closed_output_is_said(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("INFO up\n")

    shown = run_in_shell("sonde ask INFO log.txt <&-", tmp_path)
    lost = run_in_shell("sonde ask INFO log.txt >&- <&-", tmp_path)

    assert shown.returncode == 0
    assert lost.returncode == 1
    assert lost.stderr.endswith("sonde: standard output is closed, so what was printed is lost\n")
    assert "Traceback" not in shown.stderr + lost.stderr


@pytest.mark.long
def test_a_reader_that_has_seen_enough_is_not_told_about_it(tmp_path: Path) -> None:
    shown = run_in_shell("sonde config | head -n 1", tmp_path)

    assert shown.stdout.startswith("model")
    assert shown.stderr == ""


@pytest.mark.parametrize(
    "unbuffered", [pytest.param("", id="at its end", marks=pytest.mark.long), pytest.param("1", id="halfway")]
)
def test_a_command_whose_reader_has_left_did_not_fail(tmp_path: Path, unbuffered: str) -> None:
    reader, written = os.pipe()
    os.close(reader)

    command = [sys.executable, "-m", "sonde", "demo", "--list"]
    shown = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment(tmp_path) | {"PYTHONUNBUFFERED": unbuffered},
        stdout=written,
        stderr=subprocess.PIPE,
        timeout=250,
        check=False,
    )
    os.close(written)

    assert shown.returncode == 141
    assert shown.stderr == b""


@pytest.mark.long
def test_an_answer_does_not_need_a_listener_to_what_is_said_about_it(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("INFO up\n")
    listener, said = os.pipe()
    os.close(listener)

    command = [sys.executable, "-m", "sonde", "ask", "INFO", "log.txt"]
    shown = subprocess.run(
        command, cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=said, timeout=250, check=False
    )
    os.close(said)

    assert shown.returncode == 0
    assert b"log.txt:1" in shown.stdout
