"""Resume, replay and branch: the same run again."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sonde.api.ask_run import ask
from sonde.api.rerun import branch, replay, resume
from sonde.api.result import Answer
from sonde.api.settings import Settings
from sonde.errors import ConfigError
from sonde.models.base import Message
from sonde.runs.rundir import RunDir
from sonde.runtime.model_calls import Question, request_hash
from sonde.testing import ScriptedModel, ScriptedServer, SeenRequest

DRIVER = Path(__file__).with_name("crash_driver.py")
CHILD = "Task: look at"


def scripted(seen: SeenRequest) -> str:
    messages = seen.body["messages"]
    first, turn = messages[1]["content"], len(messages)
    if first.startswith("name "):
        return f"name of {first}"
    if first.startswith(CHILD):
        return "print(grep('beta'))" if turn == 2 else "FINAL('child saw beta')"
    return [
        "import datetime\nt = datetime.datetime.now()\nprint(list_files(), t)",
        "names = llm_batch(['name one', 'name two', 'name three'])\nprint(names)",
        "found = rlm_batch(['look at a', 'look at b'])\nprint([f['summary'] for f in found], budget()['subcalls'])",
        "text = read_file('a.txt', 1, 2)\nadd_citation('a.txt', 2, 2)\nFINAL('beta is 42')",
    ][turn // 2 - 1]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.txt").write_text("alpha\nbeta is 42\ngamma\n")
    (folder / "b.txt").write_text("delta\n")
    return folder


def asked(data: Path, tmp_path: Path) -> tuple[Answer, Path]:
    model = ScriptedModel(lambda request: scripted(_seen(request)), name="scripted:model")
    answer = ask("Which is it?", data, model=model, settings=Settings(), runs_dir=tmp_path / "runs")
    assert answer.run_dir is not None
    return answer, answer.run_dir


def hash_of(seen: SeenRequest) -> str:
    messages = [Message(each["role"], each["content"]) for each in seen.body["messages"]]
    return request_hash(Question(session="root", turn=1, messages=messages))


def _seen(request: Any) -> SeenRequest:
    messages = [{"role": m.role, "content": m.content} for m in request.messages]
    return SeenRequest(path="", headers={}, body={"messages": messages})


@pytest.mark.long
@pytest.mark.requirement(124)
@pytest.mark.requirement(136)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("step", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_any_event_a_run_resumes_to_the_same_answer_and_pays_for_no_reply_twice(
    data: Path, tmp_path: Path, step: int
) -> None:
    with ScriptedServer(scripted) as server:
        child = subprocess.Popen(
            [sys.executable, str(DRIVER), server.base_url, str(data), str(tmp_path / "runs"), "0", str(step)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        assert child.stdin is not None
        results: list[dict[str, Any]] = []
        before, known = 0, set[str]()
        for line in child.stdout:
            message = json.loads(line)
            if message["phase"] == "resume":
                before, known = len(server.requests), set(message["known"])
            else:
                results.append(message)
                again = {hash_of(seen) for seen in server.requests[before:] if "messages" in seen.body}
                assert not again & known, message
            child.stdin.write("\n")
            child.stdin.flush()
        assert child.wait(60) == 0

    assert len(results) >= 60 // step
    assert {(r["status"], r["text"], tuple(r["citations"])) for r in results} == {
        ("succeeded", "beta is 42", ("a.txt:2-2",))
    }
    assert len({tuple(r["usage"]) for r in results}) == 1


def test_replay_reproduces_every_hash_without_a_model(data: Path, tmp_path: Path) -> None:
    _, run_dir = asked(data, tmp_path)

    proved = replay(run_dir, settings=Settings())

    assert proved.equal, proved.differences
    assert proved.replies == 11


def test_replay_names_the_first_difference_with_both_sides(data: Path, tmp_path: Path) -> None:
    _, run_dir = asked(data, tmp_path)
    (data / "c.txt").write_text("new\n")  # the prompt lists the files, so the first request differs

    proved = replay(run_dir, settings=Settings())
    words = replay(run_dir, settings=Settings(), words_only=True)

    assert not proved.equal
    assert "the request in session root, turn 1" in proved.differences[0].where
    assert words.record is not None
    assert words.record.status == "succeeded"
    assert words.differences


def test_a_branch_shares_the_turns_before_and_goes_on_live(data: Path, tmp_path: Path) -> None:
    _, run_dir = asked(data, tmp_path)
    other = ScriptedModel(["add_citation('b.txt', 1, 1)\nFINAL('delta')"])

    finished = branch(run_dir, 4, model=other, settings=Settings(), runs_dir=tmp_path / "runs")

    assert finished.text == "delta"
    assert finished.run_dir is not None
    assert finished.run_dir != run_dir
    assert finished.record.runtime_ref.usage.iterations >= 8
    assert len(other.requests) == 1


def test_a_finished_run_is_not_resumed(data: Path, tmp_path: Path) -> None:
    _, run_dir = asked(data, tmp_path)

    with pytest.raises(ConfigError, match="has ended"):
        resume(run_dir, settings=Settings())


def test_code_that_takes_another_path_is_named_and_stops_unless_told_to_go_on(data: Path, tmp_path: Path) -> None:
    _, run_dir = asked(data, tmp_path)
    cut = cut_before_the_end(run_dir, tmp_path)
    (data / "a.txt").write_text("alpha\nbeta is 43\ngamma\n")
    (data / "c.txt").write_text("new\n")
    model = ScriptedModel(lambda request: scripted(_seen(request)))

    with pytest.raises(Exception, match="the request in session root, turn 1"):
        resume(cut.path, model=model, settings=Settings())
    finished = resume(cut.path, model=model, settings=Settings(), go_live=True)

    assert finished.status.value == "succeeded"


def cut_before_the_end(run_dir: Path, tmp_path: Path) -> RunDir:
    lines = (run_dir / "events.jsonl").read_bytes().splitlines(keepends=True)
    cut = tmp_path / "runs" / "cut"
    cut.mkdir()
    (cut / "events.jsonl").write_bytes(b"".join(lines[:-8]))
    shutil.copy(run_dir / "seal", cut)
    return RunDir(cut)
