"""Runs after they ran: listed, shown, compared, exported, replayed, branched."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest
from cli_program import Shown, environment, sonde

from engines.trace_cases import TRACE, failed_trace, write
from sonde import ask
from sonde.cli.text import middle_cut
from sonde.testing import ScriptedModel, ScriptedReply, ScriptedServer

LOOK = "```python\nprint(grep('ERROR'))\n```"
CITE = "```python\nadd_citation('app.log', 1, 1, 'error')\nFINAL('{}')\n```"


class Place:
    """A folder with a log and the runs that were made over it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "app.log").write_text("ERROR one\nERROR two\n")

    def ask(self, answer: str = "one") -> str:
        with ScriptedServer([LOOK, CITE.format(answer)]) as server:
            shown = self.run(
                "ask", "What failed?", "app.log", "--json", OPENAI_BASE_URL=server.base_url, OPENAI_API_KEY="k"
            )
        return json.loads(shown.stdout)["run_id"]

    def run(self, *words: str, stdin: str = "", **env: str) -> Shown:
        return sonde(*words, cwd=self.folder, stdin=stdin, **env)

    def data(self, *words: str) -> Any:
        shown = self.run(*words, "--json")
        assert shown.returncode == 0, shown.stderr
        return json.loads(shown.stdout)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_list_of_runs_names_the_model_whole_where_nothing_is_narrow(tmp_path: Path) -> None:
    model = f"bedrock/anthropic.{'claude-' * 8}v2:0"
    ask("What failed?", "some text of it", model=ScriptedModel(["FINAL('a')"], name=model), runs_dir=tmp_path)

    shown = sonde("runs", "--runs-dir", tmp_path, cwd=tmp_path)
    listed = json.loads(sonde("runs", "--json", "--runs-dir", tmp_path, cwd=tmp_path).stdout)["runs"]

    assert f"  {model}  What failed?" in shown.stdout
    assert listed[0]["model"] == model


@pytest.mark.long
def test_on_a_narrow_terminal_a_long_model_name_loses_its_middle(tmp_path: Path) -> None:
    model = f"bedrock/anthropic.{'claude-' * 8}v2:0"
    ask("What failed?", "some text of it", model=ScriptedModel(["FINAL('a')"], name=model), runs_dir=tmp_path)
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 150))
    command = [sys.executable, "-m", "sonde", "runs", "--runs-dir", str(tmp_path)]
    environ = {name: value for name, value in environment(tmp_path).items() if name != "COLUMNS"}

    subprocess.run(command, stdout=theirs, cwd=tmp_path, env=environ, check=True)
    line = os.read(ours, 4096).decode().rstrip()

    assert re.search(r"  bedrock/anthropi\S*….*v2:0  What failed\?$", line), line
    assert len(line) <= 150


@pytest.mark.parametrize("width", [24, 25, 30])
def test_a_cut_name_keeps_both_ends_and_its_width(width: int) -> None:
    cut = middle_cut(f"bedrock/anthropic.{'claude-' * 8}v2:0", width)

    assert len(cut) == width
    assert cut.startswith("bedrock/anthrop")
    assert cut.endswith("-v2:0")


def test_runs_are_listed_newest_first_and_filtered(place: Place) -> None:
    first, second = place.ask(), place.ask("two")

    assert {run["run_id"] for run in place.data("runs", "list")["runs"]} == {first, second}
    assert place.data("runs", "list", "--limit", "1")["runs"][0]["objective"] == "What failed?"
    assert place.data("runs", "list", "--status", "failed")["runs"] == []
    assert place.data("runs", "list", "--text", first)["runs"][0]["run_id"] == first
    assert first in place.run("runs").stdout
    assert place.data("runs", "--text", "nothing like it")["runs"] == []


def test_the_list_says_what_came_of_each_run(place: Place, tmp_path: Path) -> None:
    write(tmp_path, failed_trace())
    place.ask()
    place.run("rca", TRACE, "--source", str(tmp_path / "traces.jsonl"))
    place.run("comply", TRACE, "--source", str(tmp_path / "traces.jsonl"))

    outcomes = {run["run_type"]: run["outcome"] for run in place.data("runs", "list")["runs"]}

    assert outcomes == {"rca": "tool_failure", "policy_compliance": "non_compliant", "ask": "one"}
    assert re.search(r"  tool_failure +no model  ", place.run("runs").stdout)


def test_a_run_is_shown_by_id_beginning_or_last(place: Place) -> None:
    run = place.ask()

    assert place.data("runs", "show", run)["run_id"] == run
    assert place.data("runs", "show", "last")["status"] == "succeeded"
    assert "one" in place.run("runs", "show", run[:-2]).stdout


def test_a_run_is_shown_in_the_words_of_its_source_and_one_line_is_no_range(tmp_path: Path) -> None:
    (tmp_path / "page.txt").write_text("<b>bold</b> & [this](http://x)\n")
    cite = "print(read_file('page.txt'))\nadd_citation('page.txt', 1, 1, 'bold')\nFINAL('It is <b>bold</b>')"
    ask("What is it?", tmp_path / "page.txt", model=ScriptedModel([cite]), runs_dir=tmp_path / "runs")

    shown = sonde("runs", "show", "last", "--runs-dir", tmp_path / "runs", cwd=tmp_path)

    assert "\nIt is <b>bold</b>\n" in shown.stdout
    assert "- page.txt:1 <b>bold</b> & [this](http://x)" in shown.stdout


def test_prune_asks_first_and_keeps_the_newest(place: Place) -> None:
    old, new = place.ask(), place.ask()

    assert place.data("runs", "prune", "--keep", "1", "--dry-run")["pruned"] == [old]
    assert place.run("runs", "prune", "--keep", "1", stdin="n\n").returncode == 0
    assert len(place.data("runs", "list")["runs"]) == 2
    assert "1 run deleted" in place.run("runs", "prune", "--keep", "1", "--yes").stdout
    assert [run["run_id"] for run in place.data("runs", "list")["runs"]] == [new]


@pytest.mark.requirement(124)
def test_two_runs_that_did_the_same_are_equal_and_others_show_where_they_part(place: Place) -> None:
    one, same, other = place.ask(), place.ask(), place.ask("two")

    alike = place.data("diff", one, same)
    assert alike["equal"] is True and alike["citations"]["both"] == 1
    found = place.data("diff", one, other)
    assert found["equal"] is False and found["first_difference"]["what"].startswith("model_replied")
    page = place.run("diff", one, other, "--exit-code")
    assert page.returncode == 1
    assert "first difference" in page.stdout and "the answers differ" in page.stdout


def test_an_export_can_be_imported_elsewhere_and_a_redacted_one_says_so(place: Place) -> None:
    run = place.ask()

    assert place.run("export", run, "-o", "x.tar.gz").returncode == 0
    assert run in place.run("runs", "import", "x.tar.gz", "--runs-dir", "elsewhere").stdout
    assert place.data("runs", "show", run, "--runs-dir", "elsewhere")["run_id"] == run
    assert "check the file before you share it" in place.run("export", run, "--redact", "-o", "y.tar.gz").stderr
    assert place.run("export", run, "--html", "-o", "z.html").stdout.strip().endswith("z.html")


def test_a_replay_proves_every_hash_and_names_the_first_difference(place: Place) -> None:
    run = place.ask()
    found = place.data("replay", run)
    assert found["equal"] is True and found["replies"] == 2

    (place.folder / "app.log").write_text("ERROR other\nERROR two\n")
    changed = place.run("replay", run)
    assert changed.returncode == 1
    assert "recorded" in changed.stdout and "now" in changed.stdout


def test_a_branch_shares_the_turns_before_k(place: Place) -> None:
    run = place.ask()
    with ScriptedServer([CITE.format("another way")]) as server:
        env = {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "k"}
        shown = place.run("branch", run, "--turn", "2", "--json", **env)

    assert json.loads(shown.stdout)["answer"] == "another way"
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["runs", "show", "nonesuch"], "no runs in"),
        (["runs", "prune"], "--keep 20"),
        (["runs", "prune", "--older-than", "soon"], "7d"),
        (["runs", "import", "app.log"], "not an exported run"),
        (["diff", "a", "b"], "no runs in"),
        (["export", "a"], "no runs in"),
        (["replay", "a"], "no runs in"),
        (["resume", "a"], "no runs in"),
        (["branch", "a", "--turn", "1"], "no runs in"),
    ],
)
def test_bad_input_is_exit_code_2_with_a_hint(words: list[str], hint: str, place: Place) -> None:
    shown = place.run(*words)

    assert shown.returncode == 2
    assert shown.stderr.splitlines()[-1].startswith("sonde: ") and hint in shown.stderr
    assert "Traceback" not in shown.stderr


def test_a_killed_run_goes_on_and_asks_nothing_twice(place: Place) -> None:
    with ScriptedServer([LOOK, ScriptedReply(hang=True)]) as server:
        env = environment(place.folder, OPENAI_BASE_URL=server.base_url, OPENAI_API_KEY="k")
        command = [sys.executable, "-m", "sonde", "ask", "What failed?", "app.log", "--quiet"]
        with subprocess.Popen(command, cwd=place.folder, env=env) as process:
            for _ in range(2000):
                if len(server.requests) == 2:
                    break
                server.closing.wait(0.05)
            process.kill()
    assert place.data("runs", "list")["runs"][0]["status"] == "interrupted"
    assert "sonde resume" in place.run("runs", "show", "last").stdout

    with ScriptedServer([CITE.format("one")]) as server:
        env = {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "k"}
        shown = place.run("resume", "last", "--json", **env)

    assert json.loads(shown.stdout)["answer"] == "one"
    assert len(server.requests) == 1


def test_a_run_that_ended_is_not_resumed(place: Place) -> None:
    run = place.ask()

    shown = place.run("resume", run)
    assert shown.returncode == 2
    assert "--continue" in shown.stderr


def test_an_export_to_a_place_that_is_not_there_is_a_usage_error(place: Place) -> None:
    run = place.ask()

    shown = [
        place.run("export", run, "-o", f"nowhere/x{end}", *flags)
        for end, flags in ((".tar.gz", ()), (".html", ("--html",)))
    ]

    assert [each.returncode for each in shown] == [2, 2]
    assert all("-o FILE" in each.stderr for each in shown)


def test_a_run_without_turns_has_none_to_branch_from(place: Place) -> None:
    place.run("ask", "What is it?", "app.log", "--quiet")

    shown = place.run("branch", "last", "--turn", "3")

    assert shown.returncode == 2
    assert "no turns" in shown.stderr
