"""Sonde on macOS and Windows, as far as Linux can show it: `elsewhere.py` takes away what those systems lack."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sonde.bench.seeded import generate

pytestmark = pytest.mark.long

ELSEWHERE = Path(__file__).with_name("elsewhere.py")
SYSTEMS = ("darwin", "win32")
IMPORTS = """
import importlib, pkgutil, sonde
failed = {}
for module in pkgutil.walk_packages(sonde.__path__, "sonde.", onerror=lambda name: None):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except Exception as error:
            failed[module.name] = repr(error)
print(failed)
"""
COMMAND = "import sys; from sonde.cli.main import main; sys.exit(main())"


def run(system: str, code: str, *words: str, cwd: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    passed = {name: value for name, value in os.environ.items() if name in ("PYTHONPATH", "MONTY_BIN")}
    return subprocess.run(
        [sys.executable, str(ELSEWHERE), system, code, *words],
        cwd=cwd,
        env={"PATH": os.environ["PATH"], "HOME": str(cwd), "TERM": "dumb", **passed},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_module_can_be_imported(system: str, tmp_path: Path) -> None:
    shown = run(system, IMPORTS, cwd=tmp_path)

    assert shown.stdout == "{}\n", shown.stdout + shown.stderr


@pytest.mark.parametrize("system", SYSTEMS)
def test_doctor_says_what_is_promised_and_what_is_not(system: str, tmp_path: Path) -> None:
    shown = run(system, COMMAND, "doctor", cwd=tmp_path)

    assert shown.returncode == 1, shown.stderr
    assert "CANNOT run safely here: the kernel backend needs Linux" in shown.stdout
    _, _, portable = shown.stdout.partition("portable backend (--backend monty): ")
    promised, _, not_promised = portable.partition("NOT promised:")
    assert "no files, no network" in promised
    assert "a fault in the interpreter is a hole" in not_promised
    assert ("WSL2" in not_promised) is (system == "win32")
    assert "--backend kernel" not in shown.stdout


@pytest.mark.parametrize("system", SYSTEMS)
def test_code_is_refused_where_nobody_chose_the_portable_backend(system: str, tmp_path: Path) -> None:
    shown = run(system, COMMAND, "exec", "-", cwd=tmp_path, stdin="print(1)")

    assert shown.returncode != 0
    assert shown.stdout == ""
    assert "--backend monty" in shown.stderr


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_question_without_a_model_is_answered_kept_and_replayed(system: str, tmp_path: Path) -> None:
    (tmp_path / "app.log").write_text("09:00 web started\n09:01 ledger refused the connection\n")

    asked = run(system, COMMAND, "ask", "Who refused the connection?", "app.log", cwd=tmp_path)
    listed = run(system, COMMAND, "runs", "list", cwd=tmp_path)
    replayed = run(system, COMMAND, "replay", "last", cwd=tmp_path)

    assert asked.returncode == 0, asked.stderr
    assert "app.log:2" in asked.stdout
    assert len(listed.stdout.splitlines()) == 1
    assert "every hash is the same" in replayed.stdout, replayed.stderr


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_watch_over_a_file_finds_issues_and_says_them_again(system: str, tmp_path: Path) -> None:
    generate(40, seed=7).write(tmp_path / "traces.jsonl", tmp_path / "gold.json")
    state = ("--state", "state")

    watched = run(
        system, COMMAND, "watch", "--once", "--min-traces", "1", "--source", "traces.jsonl", *state, cwd=tmp_path
    )
    again = run(system, COMMAND, "issues", "--json", *state, cwd=tmp_path)

    assert watched.returncode == 0, watched.stderr
    assert "40 windows, 40 traces" in watched.stderr
    assert watched.stdout.count("new: issue ") == len(json.loads(again.stdout)["issues"]) > 0


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("ask", "q", "a.txt", "--model", "command:cat"), "--base-url"),
        (("edit", "task", "--model", "openai:none"), "WSL2"),
        (("batch", "items.jsonl"), "WSL2"),
        (("rlms",), "WSL2"),
    ],
)
def test_what_windows_cannot_do_is_refused_by_name(words: tuple[str, ...], named: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text\n")
    (tmp_path / "items.jsonl").write_text('{"id": "1", "engine": "ask", "question": "q", "paths": ["a.txt"]}\n')

    shown = run("win32", COMMAND, *words, cwd=tmp_path)

    assert shown.returncode == 2, shown.stdout + shown.stderr
    assert named in shown.stderr


@pytest.mark.monty
@pytest.mark.parametrize("system", SYSTEMS)
def test_the_self_test_passes_with_the_portable_backend(system: str, tmp_path: Path) -> None:
    pytest.importorskip("pydantic_monty", reason="pydantic-monty is not installed: scripts/test_monty.sh")

    shown = run(system, COMMAND, "self-test", "--backend", "monty", cwd=tmp_path)

    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "NO KERNEL LAYERS" in shown.stdout
