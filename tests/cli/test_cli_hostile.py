"""Commands with arguments that nobody should give: each is refused with one message, none is taken for something else."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import pytest
from cli_program import as_ordinary, kept_runs, ordinary, sonde

SPAN = {
    "trace_id": "t1",
    "span_id": "s1",
    "parent_id": None,
    "name": "agent.run",
    "start_time": "2026-01-01T00:00:00Z",
    "end_time": "2026-01-01T00:00:01Z",
    "status_code": "ERROR",
    "status_message": "boom",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run in it, shared: what is refused changes nothing."""
    place = tmp_path_factory.mktemp("hostile")
    (place / "app.log").write_text("12:01 ERROR payments: timeout\n")
    (place / "traces.jsonl").write_text(json.dumps(SPAN) + "\n")
    (place / "latin.yaml").write_bytes(b"name: caf\xe9\n")
    (place / "deep.json").write_text("[" * 100_000)
    sonde("ask", "Who failed?", "app.log", "--quiet", cwd=place)
    return place


FILE = ("--source", "traces.jsonl")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("ask", "Who?", ""), "a path is empty"),
        (("ask", "Who?", "app.log", "--continue", ""), "the run's name is empty"),
        (("ask", "Who?", "app.log", "--use", ""), "unknown preset ''"),
        (("ask", "Who?", "app.log", "--model-timeout", "0"), "must be above zero, not 0"),
        (("ask", "Who?", "app.log", "--mode", ""), "must be one of auto, code, actions, guided"),
        (("ask", "Who?", "app.log", "--base-url", ""), "the OpenAI-compatible server"),
        (("ask", "Who?", "app.log", "--schema", "deep.json"), "deep.json is not JSON"),
        (("ask", "Who?", "app.log", "--schema", "/dev/zero"), "/dev/zero is larger than 16 MiB"),
        (("edit", "Rename it", "x" * 5000), "this name is too long"),
        (("exec", ""), "the path of the program is empty"),
        (("exec", "/dev/zero"), "/dev/zero is larger than 16 MiB"),
        (("view", ""), "the run's name is empty"),
        (("replay", ""), "the run's name is empty"),
        (("runs", "show", " "), "the run's name is empty"),
        (("runs", "--runs-dir", "app.log"), "app.log cannot be listed: Not a directory"),
        (("runs", "--limit", "0"), "--limit"),
        (("runs", "--status", "bogus"), "--status"),
        (("runs", "prune", "--keep", "-1", "--yes"), "--keep"),
        (("runs", "prune", "--keep", "0", "--older-than", "", "--yes"), "the value is empty; give one"),
        (("runs", "prune", "--older-than", "99999w", "--yes"), "--older-than 99999w: write a number"),
        (("batch", "--filter", "", *FILE), "the value is empty; give one"),
        (("batch", "--all-errors", "--since", "", *FILE), "the value is empty; give one"),
        (("batch", "--all-errors", "--name", "", *FILE), "the value is empty; give one"),
        (("rca", "t1", "--taxonomy", "latin.yaml", *FILE), "latin.yaml cannot be read as UTF-8 text"),
        (("rca", "t1", "--taxonomy", "", *FILE), "the value is empty; give one"),
        (("comply", "t1", "--controls", "", *FILE), "the value is empty; give one"),
        (("incident", "--from", "", *FILE), "the value is empty; give one"),
        (("incident", "--trace", "", *FILE), "the value is empty; give one"),
        (("traces", "ls", "--filter", "", *FILE), "the value is empty; give one"),
        (("traces", "ls", "--limit", "-1", *FILE), "--limit"),
        (("traces", "ls", "--source", "/dev/null"), "/dev/null is neither a file nor a folder"),
        (("traces", "search", "", *FILE), "the value is empty; give one"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error_and_changes_nothing(
    folder: Path, words: tuple[str, ...], said: str
) -> None:
    before = set(kept_runs(folder))

    shown = sonde(*words, cwd=folder)

    assert shown.returncode == 2, shown.stderr
    assert said in shown.stderr
    assert "Traceback" not in shown.stderr
    assert set(kept_runs(folder)) == before


@pytest.mark.parametrize("journal", [b"", b"\xff\x00garbage\n", b"[" * 100_000 + b"\n"], ids=["empty", "bytes", "deep"])
@pytest.mark.parametrize("words", [("replay",), ("resume",), ("export",), ("export", "--html")], ids=" ".join)
def test_a_journal_of_garbage_is_refused_by_every_command(
    tmp_path: Path, words: tuple[str, ...], journal: bytes
) -> None:
    (tmp_path / "runs/r1").mkdir(parents=True)
    (tmp_path / "runs/r1/events.jsonl").write_bytes(journal)

    shown = sonde(*words, "r1", "--runs-dir", "runs", cwd=tmp_path)

    assert shown.returncode == 2, shown.stderr
    assert "cut off before its first event" in shown.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"runs"}


def test_a_message_about_something_huge_is_still_short(folder: Path) -> None:
    assert len(sonde("ask", "Who?", "x" * 100_000, cwd=folder).stderr) < 5_000


@pytest.mark.long
def test_a_manifest_whose_name_is_not_utf_8_is_a_batch_like_any_other(folder: Path) -> None:
    name = os.fsencode(folder) + b"/na\xffme.jsonl"
    with open(name, "w") as file:  # noqa: PTH123  # a name in bytes
        file.write('{"id": "a", "engine": "ask", "question": "Who?", "paths": ["app.log"]}\n')
    done = sonde("batch", os.fsdecode(name), cwd=folder)

    assert done.returncode == 0, done.stderr
    assert "1 of 1 item finished" in done.stdout


@pytest.mark.long
@ordinary
def test_what_may_not_be_read_is_said_to_be_so(tmp_path: Path) -> None:
    (tmp_path / "secret.jsonl").touch(0o000)
    (tmp_path / "locked").mkdir()
    (tmp_path / "locked/inside").touch()
    (tmp_path / "locked").chmod(0o000)
    commands = itertools.product(
        [("ask", "Who?"), ("traces", "ls", "--source")], ["secret.jsonl", "locked", "locked/inside"]
    )
    shown = as_ordinary(*([*words, name] for words, name in commands), cwd=tmp_path)
    (tmp_path / "locked").chmod(0o700)  # so that the folder can be removed again

    assert [(each.args, each.returncode) for each in shown if each.returncode != 2] == []
    assert [(each.args, each.stderr) for each in shown if "permission denied" not in each.stderr.lower()] == []
    assert len(shown) == 6


def test_a_folder_with_escape_sequences_in_its_name_does_not_reach_the_terminal(folder: Path) -> None:
    shown = sonde("ask", "Who?", "app.log", "--runs-dir", "runs\x1b[2J", cwd=folder)

    assert shown.returncode == 0
    assert "\x1b" not in shown.stderr


@pytest.mark.long
def test_one_trace_is_not_several(folder: Path) -> None:
    assert "1 trace, 1 span, 1 with errors" in sonde("traces", "import", "traces.jsonl", cwd=folder).stdout
    assert sonde("traces", "ls", *FILE, cwd=folder).stderr == "1 trace\n"
    assert sonde("traces", "search", "boom", *FILE, cwd=folder).stderr == "1 hit\n"
    assert ": 1 trace, such as t1" in sonde("batch", "--all-errors", *FILE, cwd=folder).stdout
