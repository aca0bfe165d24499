"""Files where a folder is needed, locked or empty folders, devices without an end: exit code 2, in words."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_program import as_ordinary, ordinary, sonde

TRACE = (
    '{"trace_id": "t1", "span_id": "s1", "name": "x", "start_time": "2026-11-01T00:00:00Z",'
    ' "end_time": "2026-11-01T00:00:01Z", "status_code": "ERROR", "status_message": "boom"}\n'
)
CONTROL = (
    "control_id: own\ncontrols_version: v9\ntitle: t\ndescription: d\nseverity: low\n"
    "required_evidence: [required_error_span]\nremediation_template: r\n"
)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "traces.jsonl").write_text(TRACE)
    (tmp_path / "a-file").write_text("no folder\n")
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ("demo", "--folder", "a-file"),
        ("bench", "seeded", "--data", "a-file", "--make", "3", "--no-sonde", "--baseline", "rule"),
    ],
    ids=" ".join,
)
def test_a_file_where_a_folder_is_needed_is_a_usage_error(place: Path, words: tuple[str, ...]) -> None:
    shown = sonde(*words, cwd=place)

    assert shown.returncode == 2, shown.stderr
    assert "a-file" in shown.stderr and "give another path" in shown.stderr


@pytest.mark.long
@ordinary
def test_a_locked_folder_of_config_snapshots_is_a_usage_error(place: Path) -> None:
    locked = place / "configs"
    locked.mkdir(mode=0)

    (shown,) = as_ordinary(("incident", "--source", "traces.jsonl", "--configs", "configs"), cwd=place)

    assert shown.returncode == 2, shown.stderr
    assert f"{locked}: cannot be read: Permission denied" in shown.stderr


def test_a_folder_without_config_snapshots_is_refused_and_not_taken_for_no_change(place: Path) -> None:
    (place / "configs/v1").mkdir(parents=True)

    shown = sonde("incident", "--source", "traces.jsonl", "--configs", "configs", cwd=place)

    assert shown.returncode == 2, shown.stderr
    assert "holds no config snapshot" in shown.stderr and "metadata.json" in shown.stderr


@ordinary
@pytest.mark.long
def test_a_locked_folder_among_the_controls_is_refused_and_not_left_out(place: Path) -> None:
    locked = place / "controls/more"
    locked.mkdir(parents=True)
    (place / "controls/own.yaml").write_text(CONTROL)
    locked.chmod(0)

    (shown,) = as_ordinary(("comply", "t1", "--source", "traces.jsonl", "--controls-file", "controls"), cwd=place)

    assert shown.returncode == 2, shown.stderr
    assert f"{locked}: cannot be read: Permission denied" in shown.stderr


def test_a_manifest_without_an_end_is_refused_before_memory_is_full(place: Path) -> None:
    shown = sonde("batch", "/dev/zero", cwd=place)

    assert shown.returncode == 2, shown.stderr
    assert "/dev/zero is a device" in shown.stderr
