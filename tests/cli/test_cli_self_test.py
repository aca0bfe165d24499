"""`sonde self-test`: what a user runs after installing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_program import as_ordinary, ordinary, sonde

CHECKS = ["installation", "settings", "temporary folder", "sandbox", "run", "replay"]


def test_everything_is_tried_and_nothing_is_left_behind(tmp_path: Path) -> None:
    shown = sonde("self-test", cwd=tmp_path, TMPDIR=str(tmp_path))

    assert shown.returncode == 0, shown.stdout + shown.stderr
    lines = shown.stdout.splitlines()
    assert [line.removeprefix("  ok  ").partition(":")[0] for line in lines[1:-1]] == CHECKS
    assert lines[-1] == "everything works"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_json_is_one_object_with_every_check(tmp_path: Path) -> None:
    shown = sonde("self-test", "--json", cwd=tmp_path)

    found = json.loads(shown.stdout)
    assert found["ok"] and [check["name"] for check in found["checks"]] == CHECKS
    assert all(check["ok"] and check["todo"] for check in found["checks"])


def test_settings_that_cannot_be_read_fail_with_what_to_do_and_end_it(tmp_path: Path) -> None:
    (tmp_path / "sonde.toml").write_text("max_iteration = 3")

    shown = sonde("self-test", cwd=tmp_path, SONDE_CONFIG="sonde.toml")

    assert shown.returncode == 1
    assert "max_iterations" in shown.stdout and "sonde config" in shown.stdout.splitlines()[-1]
    assert [line[:5] for line in shown.stdout.splitlines()[1:-1]] == ["  ok ", "  NO "]


def test_json_of_a_failure_says_which_check_failed(tmp_path: Path) -> None:
    shown = sonde("self-test", "--json", cwd=tmp_path, SONDE_BACKEND="none")

    found = json.loads(shown.stdout)
    assert shown.returncode == 1 and not found["ok"]
    assert [check["name"] for check in found["checks"] if not check["ok"]] == ["settings"]


@ordinary
@pytest.mark.long
def test_a_working_folder_that_cannot_be_written_is_no_hindrance(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    try:
        (shown,) = as_ordinary(["self-test"], cwd=tmp_path)
    finally:
        tmp_path.chmod(0o755)

    assert shown.returncode == 0, shown.stdout + shown.stderr
