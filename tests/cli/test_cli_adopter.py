"""What stopped somebody who used Sonde for the first time."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from cli_program import call, environment, sonde

from engines.trace_cases import TRACE, failed_trace, write
from sonde import ask
from sonde.cli.main import main
from sonde.errors import ConfigError, how_to_install
from sonde.testing import ScriptedModel


@pytest.mark.long
def test_code_without_its_extra_is_said_to_the_user_and_to_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.ts").write_text("export function pay() { return 1 }\n")
    (tmp_path / "b.py").write_text("def charge():\n    return 1\n")
    monkeypatch.setitem(sys.modules, "tree_sitter", None)
    look = "for name in ('a.ts', 'nosuch'):\n    try:\n        print(nav_ls(name))\n    except Exception as e:\n        print(e)"
    model = ScriptedModel([look, "FINAL('done')"])

    shown = sonde("ask", "who pays?", ".", "--code", cwd=tmp_path)
    ask("who pays?", tmp_path, code=True, model=model, citations=False, in_memory=True)

    assert shown.stderr.count(f"typescript 1 ({how_to_install('code')}") == 1
    assert "the symbols of a.ts are not known" in str(model.requests[1])
    assert "typescript 1" in str(model.requests[1])
    (tmp_path / "a.ts").unlink()
    assert "files without symbols" not in sonde("ask", "who pays?", ".", "--code", cwd=tmp_path).stderr


def _run(folder: Path) -> None:
    ask("q?", "some text of it", model=ScriptedModel(["FINAL('a')"]), runs_dir=folder)


def test_export_to_a_name_of_a_page_writes_a_page(tmp_path: Path) -> None:
    _run(tmp_path / "runs")

    shown = sonde("export", "last", "-o", "rep.html", "--runs-dir", "runs", cwd=tmp_path)
    refused = sonde("export", "last", "--html", "-o", "rep.tar.gz", "--runs-dir", "runs", cwd=tmp_path)

    words = sonde("export", "last", "-o", "rep.md", "--runs-dir", "runs", cwd=tmp_path)
    odd = sonde("export", "last", "-o", "rep.json", "--runs-dir", "runs", cwd=tmp_path)

    assert (words.returncode, odd.returncode) == (0, 2)
    assert (tmp_path / "rep.md").read_text().strip() == "a"
    assert not (tmp_path / "rep.json").exists()
    assert shown.returncode == 0
    assert (tmp_path / "rep.html").read_text().startswith("<!doctype html>")
    assert refused.returncode == 2


@pytest.fixture
def batch(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("alpha\n")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "b.txt").write_text("alpha\n")
    items = [("q1", "a.txt"), ("q2", "nosuch"), ("q3", "../other/b.txt")]
    lines = [json.dumps({"id": name, "question": "alpha?", "paths": [path]}) for name, path in items]
    (tmp_path / "in" / "q.jsonl").write_text("\n".join(lines))
    return tmp_path


@pytest.mark.long
def test_a_batch_gives_each_refused_item_its_own_reason(batch: Path) -> None:
    shown = sonde("batch", "in/q.jsonl", "--runs-dir", "runs", cwd=batch)

    assert "1 of 3 items finished, 2 could not be started" in shown.stdout
    assert "q2 (no such file or folder" in shown.stdout
    assert "q3 (" in shown.stdout
    assert "--allow-path" in shown.stdout


@pytest.mark.long
def test_results_have_one_line_per_item_the_latest(batch: Path) -> None:
    words = ("batch", "in/q.jsonl", "--runs-dir", "runs", "--retry-failed")
    sonde(*words, cwd=batch)

    sonde(*words, "--allow-path", "other", cwd=batch)
    shown = json.loads(sonde(*words, "--allow-path", "other", "--json", cwd=batch).stdout)

    (file,) = batch.glob("runs/*/results.jsonl")
    found = {each["id"]: each["status"] for each in map(json.loads, file.read_text().splitlines())}
    assert found == {"q1": "partial", "q2": "refused", "q3": "partial"}
    assert len(file.read_text().splitlines()) == shown["items"] == 3


@pytest.mark.long
def test_a_partial_outcome_is_exit_code_3_if_one_asks_for_that(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("alpha\n")
    (tmp_path / "q.jsonl").write_text('{"id": "q1", "question": "alpha?", "paths": ["a.txt"]}\n')

    assert sonde("ask", "alpha?", "a.txt", cwd=tmp_path).returncode == 0
    assert sonde("ask", "alpha?", "a.txt", "--fail-on", "partial", cwd=tmp_path).returncode == 3
    assert sonde("batch", "q.jsonl", "--fail-on", "partial", cwd=tmp_path).returncode == 3


def test_a_home_that_cannot_be_written_keeps_no_index_and_stops_nothing(tmp_path: Path) -> None:
    write(tmp_path, failed_trace())
    (tmp_path / "file").write_text("")

    shown = call("traces", "ls", "--source", "traces.jsonl", cwd=tmp_path, env=environment(tmp_path / "file"))

    assert shown.returncode == 0, shown.stderr
    assert TRACE[:8] in shown.stdout


def test_a_batch_that_cannot_make_its_folder_names_the_option(tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text('{"id": "q1", "question": "alpha?"}\n')

    shown = sonde("batch", "q.jsonl", "--runs-dir", "q.jsonl", cwd=tmp_path)

    assert shown.returncode == 2
    assert "--runs-dir" in shown.stderr


@pytest.mark.long
def test_a_program_that_takes_too_long_names_the_flag(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("alpha\n")

    shown = sonde("ask", "q?", "a.txt", "--model", "command:sleep 300", "--model-timeout", "0.1", cwd=tmp_path)

    assert "MODEL_UNREACHABLE" in shown.stderr
    assert "--model-timeout" in shown.stderr


def test_letters_in_the_wrong_order_are_understood(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("alpha\n")
    (tmp_path / "own.toml").write_text('modle = "x"\n')

    assert "did you mean 'model'?" in sonde("ask", "q?", "a.txt", cwd=tmp_path, SONDE_CONFIG="own.toml").stderr
    assert "did you mean SONDE_MODEL?" in sonde("ask", "q?", "a.txt", cwd=tmp_path, SONDE_MODLE="x").stderr
    with pytest.raises(ConfigError, match="did you mean 'model'"):
        ask("q?", "some text of it", modle="x")  # type: ignore[call-arg]  # the mistake that is tried
    assert "--exclude" in sonde("ask", "q?", "a.txt", "--exlude", "x", cwd=tmp_path).stderr


def test_a_run_that_does_not_exist_is_not_resumed(tmp_path: Path) -> None:
    shown = sonde("resume", "zzz", cwd=tmp_path)

    assert shown.returncode == 2
    assert "resuming" not in shown.stderr


def test_what_comes_through_a_pipe_beside_paths_is_not_dropped_without_a_word(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("alpha\n")

    assert "standard input is not read" in sonde("ask", "alpha", "a.txt", cwd=tmp_path, stdin="beta\n").stderr
    assert "standard input" not in sonde("ask", "alpha", "a.txt", cwd=tmp_path).stderr
    assert "standard input" not in sonde("ask", "alpha", "a.txt", "-", cwd=tmp_path, stdin="beta\n").stderr


def test_braces_in_a_glob_are_explained(tmp_path: Path) -> None:
    assert "braces" in sonde("ask", "alpha", "*.{py,toml}", cwd=tmp_path).stderr


def test_an_answer_to_a_closed_standard_output_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("alpha\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "stdout", None)

    assert main(["ask", "alpha", "a.txt"]) == 1


def test_the_list_of_runs_knows_that_a_model_cost_nothing_and_cuts_command_lines(tmp_path: Path) -> None:
    model = ScriptedModel(["FINAL('a')"], name=f"command:{'python3 ' * 20}")
    ask("What failed?", "some text of it", model=model, runs_dir=tmp_path)

    (line,) = sonde("runs", "--runs-dir", tmp_path, cwd=tmp_path).stdout.splitlines()

    assert "$0.0000" in line
    assert len(line) < 220
    assert line.endswith("What failed?")


def test_the_overview_groups_one_error_of_numbered_steps(tmp_path: Path) -> None:
    rows = failed_trace()
    broken = next(each for each in rows if each["status_code"] == "ERROR")
    rows += [{**broken, "name": f"Step {number}", "span_id": f"{number:016x}"} for number in (5, 6, 7)]
    write(tmp_path, rows)

    found = json.loads(sonde("traces", "overview", "--source", "traces.jsonl", "--json", cwd=tmp_path).stdout)

    assert [each["count"] for each in found["error_groups"] if each["name"] == "Step #"] == [3]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("q.csv", 'question,paths,code\n"Where is alpha, exactly?",a.txt;b.txt,false\nbeta?,,\n'),
        ("q.txt", "Where is alpha, exactly?\n\nbeta?\n"),
    ],
)
def test_a_batch_reads_csv_and_lists_of_questions(name: str, text: str, tmp_path: Path) -> None:
    for each in ("a.txt", "b.txt"):
        (tmp_path / each).write_text("alpha beta\n")
    (tmp_path / name).write_text(text)

    shown = sonde("batch", name, "--path", "a.txt", "--dry-run", cwd=tmp_path)

    assert shown.returncode == 0, shown.stderr
    assert "would run     2 items" in shown.stdout


def test_a_cell_that_is_no_field_is_said(tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_text("question,colour\nWhy?,red\nHow?,\n")

    shown = sonde("batch", "q.csv", "--dry-run", cwd=tmp_path)

    assert "line 2" in shown.stderr
    assert "'colour'" in shown.stderr


@pytest.mark.long
def test_a_batch_writes_a_table_without_formulas(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("alpha\n")
    (tmp_path / "q.csv").write_text("id,question\n=HYPERLINK(1),alpha?\n")

    sonde("batch", "q.csv", "--path", "a.txt", "--runs-dir", "runs", cwd=tmp_path)

    (table,) = tmp_path.glob("runs/*/results.csv")
    assert table.read_text().splitlines()[1].startswith("'=HYPERLINK(1),ask,partial")
