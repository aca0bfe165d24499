"""A repository brings the folders with it in which benchmarks, demos and batches keep their files, with links in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.cli_program import sonde

BY_RULE = ("bench", "seeded", "--data", "data", "--make", "3", "--no-sonde", "--baseline", "rule", "--limit", "1")


@pytest.fixture
def private(tmp_path: Path) -> Path:
    folder = tmp_path / "private"
    (folder / "edit").mkdir(parents=True)
    (folder / "edit" / "notes").write_text("mine\n")
    return folder


@pytest.mark.parametrize("name", ["bench-results", "bench-results/seeded", "bench-results/seeded/results.jsonl"])
def test_a_benchmark_writes_no_results_through_a_link(tmp_path: Path, private: Path, name: str) -> None:
    place = tmp_path / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(private / "edit/notes" if place.suffix else private)

    done = sonde(*BY_RULE, cwd=tmp_path)

    assert done.returncode == 2 and name in done.stderr
    assert [each.name for each in private.iterdir()] == ["edit"]
    assert (private / "edit/notes").read_text() == "mine\n"


@pytest.mark.parametrize("name", ["bench-results/.gitignore", "bench-results/seeded/results.md", "data/traces.jsonl"])
def test_a_benchmark_puts_its_own_file_in_the_place_of_a_link(tmp_path: Path, private: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).symlink_to(private / "edit/notes")

    assert sonde(*BY_RULE, cwd=tmp_path).returncode == 0
    assert (private / "edit/notes").read_text() == "mine\n"


@pytest.mark.parametrize("name", ["artifacts", "artifacts/demo/data", "artifacts/demo/runs"])
def test_a_demo_writes_and_removes_nothing_behind_a_link(tmp_path: Path, private: Path, name: str) -> None:
    place = tmp_path / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(private)

    done = sonde("demo", cwd=tmp_path)

    assert done.returncode == 2 and name in done.stderr
    assert (private / "edit/notes").read_text() == "mine\n"
    assert [each.name for each in private.iterdir()] == ["edit"]


def test_a_batch_is_not_kept_behind_a_link_among_the_runs(tmp_path: Path, private: Path) -> None:
    (tmp_path / "notes.txt").write_text("the service is payments\n")
    (tmp_path / "items.jsonl").write_text(
        json.dumps({"id": "q", "engine": "ask", "question": "Which service?", "paths": ["notes.txt"]})
    )
    place = tmp_path / "artifacts/investigator_runs/batch-x"
    place.parent.mkdir(parents=True)
    place.symlink_to(private)

    done = sonde("batch", "items.jsonl", "--name", "x", "--model", "scripted:1", cwd=tmp_path)

    assert done.returncode == 2 and "link" in done.stderr
    assert [each.name for each in private.iterdir()] == ["edit"]
