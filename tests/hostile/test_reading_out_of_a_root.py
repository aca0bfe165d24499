"""A stranger's repository and folder of traces hold links that lead out of them, and files with secrets."""

from __future__ import annotations

import json

import pytest
from victim import Victim, one_in_make_test

SECRET = "s3cr3t-words-of-the-victim"


@pytest.mark.hostile_long
def test_a_file_list_does_not_lead_out_of_the_repository(victim: Victim) -> None:
    (victim.home / "private.txt").write_text(SECRET)
    victim.write("a.txt", "one\n")
    victim.write(".env", f"TOKEN={SECRET}\n")
    (victim.folder / "notes.txt").symlink_to(victim.home / "private.txt")
    (victim.folder.parent / ".env").write_text(f"TOKEN={SECRET}\n")
    (victim.home / ".kube").mkdir()
    (victim.home / ".kube/config").write_text(f"token: {SECRET}\n")
    outside = f"../.env\n{victim.home}/.kube/config\n/etc/shadow\n/proc/self/environ\n"
    victim.write("list.txt", f"a.txt\nnotes.txt\n.env\n{outside}")
    model = victim.model("print([read_file(name) for name in list_files()])", "FINAL('read [a.txt:1-1]')")
    output = victim.own / "rlms/iter-1/planner"
    output.mkdir(parents=True)

    done = victim.sonde(
        *("rlms", "--repo", victim.folder, "--loop-id", "demo", "--role", "planner", "--iteration", "1"),
        *("--context-file-list", "list.txt", "--output-dir", output, "--max-steps", "3", "--max-depth", "1"),
        *("--timeout-seconds", "120", "--root-command-json", json.dumps([str(model.folder / "model")])),
    )

    assert done.returncode == 0, done.stderr
    told = [path.read_text(errors="replace") for path in victim.own.rglob("*") if path.is_file()]
    assert "one" in model.prompts[1]
    assert model.prompts[0].count("not read: ") == 6
    assert told and not any(SECRET in text for text in [*told, *model.prompts])


def test_a_folder_of_traces_does_not_lead_out_of_itself(victim: Victim) -> None:
    span = {
        "name": SECRET,
        "context": {"trace_id": "a" * 32, "span_id": "b" * 16},
        "start_time": "2026-01-01T00:00:00Z",
        "end_time": "2026-01-01T00:00:01Z",
        "status_code": "ERROR",
        "attributes": {},
    }
    (victim.home / "private").mkdir()
    (victim.home / "private/t.jsonl").write_text(json.dumps(span) + "\n")
    traces = victim.folder / "traces"
    traces.mkdir()
    (traces / "own.jsonl").write_text(
        json.dumps({**span, "name": "own", "context": {"trace_id": "c" * 32, "span_id": "d" * 16}}) + "\n"
    )
    (traces / "other.jsonl").symlink_to(victim.home / "private/t.jsonl")
    (traces / "folder").symlink_to(victim.home / "private")

    shown = victim.call("traces", "ls", "--source", "traces", "--json")

    assert "c" * 32 in shown.stdout
    assert "a" * 32 not in shown.stdout and SECRET not in shown.stdout


CIRCLES = {"down": "x/**/*.py", "wide": f"x/{'*/' * 30}*.py", "both": f"x/{'**/*/' * 30}*.txt"}


@pytest.mark.parametrize("pattern", one_in_make_test(CIRCLES))
def test_a_glob_over_links_in_circles_ends(victim: Victim, pattern: str) -> None:
    (victim.folder / "x").mkdir()
    victim.write("x/own.py", "service = 'payments'\n")
    for name in ("a", "b", "c"):
        (victim.folder / "x" / name).symlink_to(".")

    done = victim.sonde("ask", "Which service?", pattern, "--runs-dir", victim.own)

    assert done.returncode == (0 if pattern == CIRCLES["down"] else 2), done.stderr
