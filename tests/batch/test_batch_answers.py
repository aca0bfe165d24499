"""What a batch hands on of its answers: all of them whole, with data and proof, masked if the runs are, and no unknown cost as nothing."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from batch.scene import Scene
from sonde.batch.folder import BatchFolder
from sonde.batch.result import ANSWER, CLIP
from sonde.testing import ScriptedServer, SeenRequest

MAIL = "jane@example.org"
LOOK = "```python\nprint(read_file('note.txt'))\n```"
ENDS = {
    "#long": "FINAL(f\"{read_file('note.txt')} {'x' * 800} end [note.txt:1-1]\")",
    "#data": "FINAL({'count': 3})",
    "#huge": f"FINAL('y' * {2 * ANSWER})",
}


def answer(seen: SeenRequest) -> str:
    if len(seen.body["messages"]) < 3:
        return LOOK
    words = " ".join(message["content"] for message in seen.body["messages"])
    return f"```python\n{next(end for mark, end in ENDS.items() if mark in words)}\n```"


@pytest.mark.long
def test_answers_are_whole_with_their_data_and_proof_and_an_unknown_cost_is_no_number(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    (tmp_path / "note.txt").write_text(f"{MAIL} paid\n")
    schema = {"type": "object", "properties": {"count": {"type": "integer"}}}
    items = [
        {"id": "long", "question": "What? #long", "paths": ["note.txt"]},
        {"id": "data", "question": "How many? #data", "paths": ["note.txt"], "schema": schema, "citations": False},
        {"id": "huge", "question": "What else? #huge", "paths": ["note.txt"]},
    ]
    scene.manifest.write_text("".join(f"{json.dumps(item)}\n" for item in items))
    with ScriptedServer(answer) as server:
        flags = ["--model", "openai:house-model", "--mask", "--no-citations", "--quiet"]
        shown = scene.run(server.base_url, *flags)

    assert shown.returncode == 0, shown.stderr
    assert "xxxx" not in shown.stdout and "3 of 3 items finished" in shown.stdout
    folder = scene.folder.path
    lines = {each["id"]: each for each in map(json.loads, (folder / "results.jsonl").read_text().splitlines())}
    rows = {row["id"]: row for row in csv.DictReader((folder / "results.csv").open())}
    report = json.loads((folder / "report.json").read_text())
    long, data, huge = lines["long"], lines["data"], lines["huge"]
    assert long["answer"].endswith("end [note.txt:1-1]") and "<email-1> paid" in long["answer"]
    assert len(long["summary"]) == CLIP and long["summary"].endswith("…")
    assert long["citations"] == [
        {"path": "note.txt", "start_line": 1, "end_line": 1, "kind": "FILE", "ref": long["citations"][0]["ref"]}
    ]
    assert (data["status"], data["value"], data["unproved"]) == ("succeeded", {"count": 3}, True)
    assert (long["unproved"], long["cut"], huge["cut"]) == (False, [], ["answer"])
    assert len(huge["answer"]) == ANSWER and huge["answer"].endswith("…")
    assert rows["long"]["answer"] == long["answer"] and rows["long"]["citations"] == "note.txt:1-1"
    assert rows["data"]["value"] == '{"count":3}'
    assert [each["answer"] for each in report["answers"]] == [lines[each["id"]]["answer"] for each in report["answers"]]
    assert all(MAIL not in (folder / name).read_text() for name in ("results.jsonl", "results.csv", "report.json"))
    assert all(line["cost_usd"] is None and line["unpriced"] == 2 for line in lines.values())
    assert all(row["cost_usd"] == "" and row["unpriced"] == "2" for row in rows.values())
    assert report["spent_usd"] is None and report["cost_usd"]["total"] is None
    assert "succeeded, unproved" in (folder / "report.md").read_text()


def test_a_planted_result_that_is_nested_too_deeply_to_be_written_again_is_none(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path)
    line = '{"id": "a", "key": "k", "engine": "ask", "status": "succeeded", "value": %s}\n'
    folder.results.write_text(line % f"{'[' * 900}{']' * 900}" + line % "[1]")

    assert [result.value for result in folder.all_results()] == [[1]]
