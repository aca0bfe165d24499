"""Ids, names and settings of strangers move no cursor, set no title and turn no text around."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_program import sonde

ESCAPE = "\x1b]0;taken\x07\x1b[2J\u202e"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    span = {
        "trace_id": f"t{ESCAPE}",
        "span_id": f"s{ESCAPE}",
        "name": f"n{ESCAPE}",
        "start_time": "2026-01-01T00:00:00Z",
        "end_time": "2026-01-01T00:00:01Z",
        "status_code": "ERROR",
        "status_message": f"boom{ESCAPE}",
    }
    plain = span | {"trace_id": "plain", "span_id": f"p{ESCAPE}"}
    (tmp_path / "traces.jsonl").write_text(f"{json.dumps(span)}\n{json.dumps(plain)}\n")
    return tmp_path


@pytest.mark.parametrize("words", [("ls",), ("show", "plain"), ("search", "boom"), ("overview",)])
def test_traces_are_listed_without_what_their_ids_would_do_to_a_terminal(folder: Path, words: tuple[str, ...]) -> None:
    shown = sonde("traces", *words, "--source", "traces.jsonl", cwd=folder)

    assert shown.returncode == 0, shown.stderr
    assert shown.stdout
    assert not set("\x1b\x07\u202e") & set(shown.stdout + shown.stderr)


def test_a_run_of_a_stranger_is_listed_and_shown_without_its_escapes(folder: Path) -> None:
    (folder / "app.log").write_text("12:01 ERROR payments: timeout\n")
    sonde("ask", f"Who{ESCAPE}?", "app.log", "--quiet", "--runs-dir", "runs", cwd=folder)
    (run,) = (folder / "runs").iterdir()
    record = run / "run_record.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"run_type": f"ask{ESCAPE}", "status": f"x{ESCAPE}"}))
    (run / "summary.md").write_text(f"# all well{ESCAPE}\n")
    run.rename(run.with_name(f"run{ESCAPE}"))

    for words in (("runs",), ("runs", "show", "last")):
        shown = sonde(*words, "--runs-dir", "runs", cwd=folder)

        assert shown.returncode == 0, shown.stderr
        assert shown.stdout
        assert not set("\x1b\x07\u202e") & set(shown.stdout + shown.stderr)


def test_settings_of_a_strangers_folder_are_shown_without_their_escapes(folder: Path) -> None:
    (folder / "sonde.toml").write_text(
        f"project = {json.dumps(ESCAPE)}\n[models.{json.dumps(ESCAPE[:3])}]\nname = 'openai:x'\n"
    )

    shown = sonde("config", cwd=folder)

    assert "taken" in shown.stdout
    assert not set("\x1b\x07\u202e") & set(shown.stdout + shown.stderr)
