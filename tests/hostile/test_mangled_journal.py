"""A stranger's run folder whose journal is well formed and makes no sense: every command says so in one line, and none falls over."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from mangled import MANGLED, change, read, write

from cli.cli_program import call
from sonde.api.ask_run import ask
from sonde.api.settings import Settings
from sonde.testing import ScriptedModel

STEPS = [
    "print(read_file('a.txt'))\nx = 1",
    "y = llm_query('name it')",
    "named",
    "add_citation('a.txt', 1, 1)\nprint(1 / 0)",
    "FINAL('payments [a.txt:1-1]')",
]
VIEWS = ("run_record.json", "summary.md", "result.json", "answer.md")
MODEL = ("--model", "command:false")
QUICK = (
    "a deep value",
    "deep settings",
    "an unknown type of run",
    "times at the end of the world",
    "a name with escapes",
)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with tools, a sub-call, a fault and a citation."""
    place = tmp_path_factory.mktemp("sound")
    (place / "a.txt").write_text("the service is payments\n")
    model = ScriptedModel(STEPS)
    run = ask("Which service?", place / "a.txt", model=model, settings=Settings(), runs_dir=place / "runs").run_dir
    assert run is not None
    return run


def looks(run: Path, sound: Path) -> list[Sequence[str | Path]]:
    """Commands that only look."""
    return [
        ("runs",),
        ("runs", "--json"),
        ("runs", "show", run),
        ("runs", "show", run, "--json"),
        ("diff", run, sound),
        ("export", run, "-o", "one.tar.gz"),
        ("export", run, "--html", "-o", "one.html"),
    ]


def goes_on(run: Path, sound: Path) -> list[Sequence[str | Path]]:
    """Commands that do it again, or more of it."""
    return [
        ("diff", sound, run, "--json"),
        ("export", run, "--redact", "-o", "two.tar.gz"),
        ("replay", run),
        ("replay", run, "--words-only"),
        ("resume", run, *MODEL),
        ("branch", run, "--turn", "2", *MODEL),
        ("ask", "And then?", "--continue", run, *MODEL),
        ("publish", run),
        ("runs", "prune", "--keep", "100"),
    ]


def survive(sound: Path, place: Path, name: str, commands: Sequence[Sequence[str | Path]], run: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": str(place), "TERM": "dumb"}
    for views in (True, False):
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(sound, run, ignore=None if views else shutil.ignore_patterns(*VIEWS))
        write(run, MANGLED[name](read(sound)))
        for words in commands:
            done = call(*words, "--runs-dir", run.parent, cwd=place, env=environment)
            assert done.returncode in (0, 1, 2), (words, done)
            assert done.returncode == 0 or "sonde: " in done.stderr or done.stdout, (words, done)
            assert "Traceback" not in done.stderr and "\x1b" not in done.stdout + done.stderr, (words, done)


@pytest.mark.parametrize("name", QUICK)
def test_looking_at_it_ends_with_a_clear_line(sound: Path, tmp_path: Path, name: str) -> None:
    run = tmp_path / "runs" / sound.name
    survive(sound, tmp_path, name, looks(run, sound), run)


@pytest.mark.parametrize("usd", [1e308, -1e308])
def test_a_cost_that_nobody_can_have_is_not_written_out(sound: Path, tmp_path: Path, usd: float) -> None:
    run = tmp_path / "runs" / sound.name
    shutil.copytree(sound, run, ignore=shutil.ignore_patterns(*VIEWS))
    write(run, change("model_replied", cost_usd=usd, tokens_in=10**18)(read(sound)))
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TERM": "dumb"}
    for words in (("runs",), ("runs", "show", run), ("diff", run, sound)):
        done = call(*words, "--runs-dir", run.parent, cwd=tmp_path, env=environment)

        assert not re.search(r"[0-9]{50}", done.stdout), done.stdout
    assert "$?" in call("runs", "--runs-dir", run.parent, cwd=tmp_path, env=environment).stdout


@pytest.mark.hostile_long
@pytest.mark.parametrize("name", MANGLED)
def test_no_command_falls_over(sound: Path, tmp_path: Path, name: str) -> None:
    run = tmp_path / "runs" / sound.name
    survive(sound, tmp_path, name, [*looks(run, sound), *goes_on(run, sound)], run)
