"""What stopped somebody who used Sonde for the first time."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from cli_program import sonde

from sonde import ask
from sonde.testing import ScriptedModel


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

    assert shown.stderr.count("typescript 1 (pip install 'sonde-rlm[code]'") == 1
    assert "the symbols of a.ts are not known" in str(model.requests[1])
    assert "typescript 1" in str(model.requests[1])
    (tmp_path / "a.ts").unlink()
    assert "sonde-rlm[code]" not in sonde("ask", "who pays?", ".", "--code", cwd=tmp_path).stderr


def _run(folder: Path) -> None:
    ask("q?", "some text of it", model=ScriptedModel(["FINAL('a')"]), runs_dir=folder)


def test_export_to_a_name_of_a_page_writes_a_page(tmp_path: Path) -> None:
    _run(tmp_path / "runs")

    shown = sonde("export", "last", "-o", "rep.html", "--runs-dir", "runs", cwd=tmp_path)
    refused = sonde("export", "last", "--html", "-o", "rep.tar.gz", "--runs-dir", "runs", cwd=tmp_path)

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
