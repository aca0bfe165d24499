"""Whoever asks for --json gets one object on stdout, also when the command is refused; people read why on stderr."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_program import sonde


@pytest.mark.parametrize(
    "words",
    [
        ("ask", "--json"),
        ("ask", "q", "nowhere", "--json"),
        ("ask", "q", "a-file", "--json", "--bogus"),
        ("ask", "q", "a-file", "--json", "--runs-dir", "a-file"),
        ("rca", "t1", "--source", "nowhere", "--json"),
        ("batch", "nowhere", "--json"),
        ("runs", "show", "nobody", "--json"),
        ("traces", "ls", "--source", "nowhere", "--json"),
        ("ask", "q", "n" * 300, "--json"),
    ],
    ids=lambda words: " ".join(words)[:40],
)
def test_a_refused_command_prints_one_object_with_the_reason(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "a-file").write_text("text\n")

    shown = sonde(*words, cwd=tmp_path)
    told = json.loads(shown.stdout)

    assert shown.returncode == told["exit_code"] == 2
    assert told["status"] == "failed"
    assert told["error"]["message"] in shown.stderr


def test_a_question_that_reads_like_the_flag_is_not_the_flag(tmp_path: Path) -> None:
    shown = sonde("ask", "--", "--json", "nowhere", cwd=tmp_path)

    assert shown.returncode == 2
    assert shown.stdout == ""
