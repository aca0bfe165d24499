"""Where runs go and how they are found again: `git status` stays clean, whatever was run."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from cli_program import Shown, sonde

from sonde.bench.seeded import generate


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    (folder / "src").mkdir(parents=True)
    (folder / "notes.md").write_text("The pump failed at noon.\n")
    data = generate(6, seed=7)
    data.write(folder / "traces.jsonl", tmp_path / "gold.json")
    (folder / "TRACE").write_text(next(each.trace_id for each in data.gold if each.label == "tool_failure"))
    item = {"id": "q1", "engine": "ask", "question": "When did the pump fail?", "paths": ["notes.md"]}
    (folder / "questions.jsonl").write_text(json.dumps(item) + "\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "-c", "user.name=E", "-c", "user.email=e@example.org", "commit", "-qm", "all")
    return folder


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout


def typed(home: Path, cwd: Path, *words: str | Path) -> Shown:
    return sonde(*words, cwd=cwd, HOME=str(home))


def listed(home: Path, cwd: Path, *words: str) -> list[str]:
    shown = typed(home, cwd, "runs", *words, "--json")
    return [run["run_id"] for run in json.loads(shown.stdout)["runs"]]


@pytest.mark.long
def test_no_command_shows_in_git_status(home: Path, repository: Path) -> None:
    (repository / "prog.py").write_text("print(1)\n")
    git(repository, "add", "prog.py")
    git(repository, "-c", "user.name=E", "-c", "user.email=e@example.org", "commit", "-qm", "prog")
    trace = (repository / "TRACE").read_text()
    commands: list[tuple[str, ...]] = [
        ("ask", "When did the pump fail?", "notes.md"),
        ("edit", "Say one o'clock"),
        ("rca", trace, "--source", "traces.jsonl"),
        ("batch", "questions.jsonl"),
        ("traces", "import", "traces.jsonl"),
        ("exec", "prog.py"),
        ("export", "last"),
        ("demo", "--no-code", "outage"),
    ]
    for words in commands:
        shown = typed(home, repository, *words)

        assert shown.returncode == (2 if words[0] == "edit" else 0), (words, shown.stderr)  # there is no model
        assert git(repository, "status", "--porcelain") == "", words


def test_runs_are_those_of_this_project_from_any_of_its_folders(home: Path, repository: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "a.txt").write_text("The valve opened.\n")
    typed(home, repository, "ask", "When did the pump fail?", "notes.md")
    typed(home, repository, "rca", (repository / "TRACE").read_text(), "--source", "traces.jsonl")
    typed(home, other, "ask", "What opened?", "a.txt")

    (elsewhere,) = listed(home, other)
    here = listed(home, repository)

    assert len(here) == 2
    assert listed(home, repository / "src") == here
    assert sorted(listed(home, other, "--all")) == sorted(
        [elsewhere, here[1]]
    )  # artifacts/ of another project is not known
    assert typed(home, repository, "runs", "show", elsewhere).returncode == 0


@pytest.mark.parametrize(
    "command", [("runs", "show"), ("replay",), ("export",), ("diff", "last"), ("export", "--html")]
)
def test_a_run_is_found_by_id_wherever_it_lies(home: Path, repository: Path, command: tuple[str, ...]) -> None:
    typed(home, repository, "ask", "When did the pump fail?", "notes.md")
    typed(home, repository, "rca", (repository / "TRACE").read_text(), "--source", "traces.jsonl")

    for run_id in listed(home, repository):
        shown = typed(home, repository, *command, run_id)

        assert shown.returncode == 0, shown.stderr


def test_a_named_place_wins(home: Path, repository: Path) -> None:
    for cause in (["--runs-dir", "kept"], []):
        typed(home, repository, "ask", "When did the pump fail?", "notes.md", *cause)
    by_variable = sonde("runs", "--json", cwd=repository, HOME=str(home), SONDE_RUNS_DIR="kept")

    (kept,) = listed(home, repository, "--runs-dir", "kept")
    assert kept not in listed(home, repository)
    assert [run["run_id"] for run in json.loads(by_variable.stdout)["runs"]] == [kept]


def test_without_a_home_a_question_leaves_its_run_in_the_working_folder(repository: Path) -> None:
    shown = sonde("ask", "When did the pump fail?", "notes.md", cwd=repository, HOME="")

    assert "artifacts/investigator_runs" in shown.stderr
    assert git(repository, "status", "--porcelain") == ""


def test_no_gitignore_is_written_where_a_link_leads(home: Path, repository: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (repository / "artifacts").symlink_to(tmp_path / "mine")

    place = ("--runs-dir", "artifacts/investigator_runs")
    typed(home, repository, "rca", (repository / "TRACE").read_text(), "--source", "traces.jsonl", *place)

    assert list((tmp_path / "mine").rglob("events.jsonl"))
    assert not list((tmp_path / "mine").rglob(".gitignore"))
