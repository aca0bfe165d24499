"""What a question leaves out, and what it says about it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_program import sonde


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("src/a.ts", "src/a.test.ts", "build/x.ts", "nm/node_modules/p/i.ts"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"alpha in {name}\n")
    (tmp_path / ".gitignore").write_text("build/\n")
    return tmp_path


def cited(place: Path, *words: str) -> set[str]:
    shown = sonde("ask", "alpha", *words, "--json", cwd=place)
    return {each["path"] for each in json.loads(shown.stdout)["citations"]} - {".gitignore"}


def test_exclude_and_gitignore_leave_files_out(place: Path) -> None:
    assert cited(place, ".", "--exclude", "**/*.test.ts") == {"src/a.ts"}
    assert cited(place, ".", "--no-ignore") == {"src/a.ts", "src/a.test.ts", "build/x.ts"}
    assert cited(place, "**/*.ts", "--exclude", "src/*.test.ts") == {"src/a.ts"}


def test_the_line_skipped_names_what_was_left_out(place: Path) -> None:
    shown = sonde("ask", "alpha", ".", "--exclude", "*.test.ts", cwd=place).stderr

    assert "1 folder in .gitignore (build/; --no-ignore reads them)" in shown
    assert "1 file excluded (src/a.test.ts)" in shown
    assert "folder node_modules" in shown


def test_a_folder_of_nothing_but_skipped_folders_says_so(place: Path) -> None:
    shown = sonde("ask", "alpha", "nm", cwd=place)

    assert shown.returncode == 2
    assert "node_modules" in shown.stderr


def test_exclude_without_a_path_is_refused(place: Path) -> None:
    assert sonde("ask", "alpha", "--exclude", "x", cwd=place).returncode == 2


@pytest.mark.long
def test_an_item_of_a_batch_leaves_files_out(place: Path) -> None:
    (place / "q.jsonl").write_text('{"id": "q1", "question": "alpha?", "paths": ["."], "exclude": ["src/*.test.ts"]}\n')

    sonde("batch", "q.jsonl", cwd=place)

    (answer,) = place.glob("artifacts/investigator_runs/*/items/*/answer.md")
    assert "src/a.ts" in answer.read_text()
    assert "a.test.ts" not in answer.read_text()
