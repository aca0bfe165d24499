"""A stranger's folder that holds a package of our name is not run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cli_program import environment

pytestmark = pytest.mark.long


@pytest.fixture
def strange(tmp_path: Path) -> Path:
    for package in ("sonde", "sonde/rlms", "sonde/batch"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(f"open({str(tmp_path / 'taken')!r}, 'w').close()\n")
    (tmp_path / "a.txt").write_text("one\n")
    (tmp_path / "list").write_text("a.txt\n")
    (tmp_path / "items.jsonl").write_text(json.dumps({"id": "a", "question": "Who?", "paths": ["a.txt"]}) + "\n")
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ("ask", "Who?", "a.txt"),
        ("batch", "items.jsonl"),
        (
            "rlms",
            "--repo",
            ".",
            "--loop-id",
            "l",
            "--role",
            "r",
            "--iteration",
            "1",
            "--context-file-list",
            "list",
            "--output-dir",
            "out/rlms/iter-1/r",
            "--max-steps",
            "1",
            "--max-depth",
            "1",
            "--timeout-seconds",
            "20",
            "--root-command-json",
            '["cat"]',
        ),
    ],
)
def test_no_worker_starts_with_a_package_of_the_working_folder(strange: Path, words: tuple[str, ...]) -> None:
    command = [sys.executable, "-P", "-m", "sonde", *words]

    subprocess.run(command, cwd=strange, env=environment(strange), capture_output=True, timeout=250, check=False)

    assert not (strange / "taken").exists()
