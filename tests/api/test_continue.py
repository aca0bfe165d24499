"""A run keeps its state in its folder, and a follow-up in another process starts from it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sonde.api.ask_run import Answer, ask
from sonde.api.rerun import replay
from sonde.api.settings import Settings
from sonde.core.status import RunStatus
from sonde.errors import ConfigError
from sonde.runtime.code_runner import STATE_BYTES
from sonde.sandbox import saved_state
from sonde.testing import ScriptedModel, ScriptedServer

KEY = "sk-planted-never-shown"
WORK = """
from collections import Counter
class Row:
    def __init__(self, text): self.text = text
    def words(self): return self.text.split()
def longest(rows): return max(rows, key=lambda row: len(row.text))
rows = [Row(line) for line in read_file('a.txt').splitlines()]
counts = Counter(word for row in rows for word in row.words())
numbers = (n for n in range(9))
"""
LOOK = "print(longest(rows).words(), counts['beta'])\nread_file('a.txt')"
DONE = "FINAL('two [a.txt:1]')"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("alpha\nbeta is 42\n")
    return tmp_path / "data"


def asked(data: Path, script: list[str], *context: Any, **options: Any) -> tuple[Answer, ScriptedModel, Path]:
    model = ScriptedModel(script)
    given = context or (() if "continue_from" in options else (data,))
    answer = ask("How many?", *given, model=model, runs_dir=data.parent / "runs", settings=Settings(), **options)
    assert answer.run_dir is not None
    return answer, model, answer.run_dir


def program(folder: Path, server: ScriptedServer, *words: str) -> dict[str, Any]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "TERM": "dumb"}
    done = subprocess.run(
        [sys.executable, "-m", "sonde", "ask", *words, "--json"],
        cwd=folder,
        env={**environment, "OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": server.base_url},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def fenced(*scripts: str) -> list[str]:
    return [f"```python\n{script}\n```" for script in scripts]


def test_two_programs_one_after_the_other(data: Path) -> None:
    with ScriptedServer(fenced(WORK, "print(1)", DONE)) as server:
        first = program(data.parent, server, "How many?", "data")
    folder = data.parent / first["run_dir"]
    (data / "a.txt").write_text("changed since\n")  # re-execution would take another path: only the state can tell
    with ScriptedServer(fenced(LOOK, "FINAL(f'{len(rows)} [a.txt:1]')")) as server:
        second = program(data.parent, server, "And then?", "--continue", folder.name)

    opening, shown = (json.dumps(each.body["messages"]) for each in server.requests[:2])
    assert "['beta', 'is', '42'] 1" in shown
    assert second["answer"].startswith("2")
    assert "How many?" in opening and "rows: list (2)" in opening and "longest: function" in opening
    assert "Not carried over: numbers (generator)" in opening
    assert KEY not in (folder / "state.json").read_text()


def test_the_state_is_in_the_folder_without_what_is_given_again(data: Path) -> None:
    (data / "big.txt").write_text("the context " * 100_000)
    _, _, run_dir = asked(data, [WORK, "print(1)", DONE])
    _, _, other = asked(
        data, ["n = len(context)", "print(n)", "FINAL('x')"], {"table": ["a value of the caller"] * 1000}
    )

    state = saved_state(run_dir / "state.json")
    assert {"rows", "counts", "longest", "Row"} <= {each.name for each in state.variables}
    assert [each.name for each in state.left_out] == ["numbers"]
    assert "not kept for a follow-up: numbers (generator)" in (run_dir / "events.jsonl").read_text()
    assert state.size < 10_000
    assert "n" in {each.name for each in saved_state(other / "state.json").variables}
    assert b"a value of the caller" not in (other / "state.json").read_bytes()


def test_a_key_in_a_variable_is_taken_out(data: Path) -> None:
    with ScriptedServer(fenced(f"key = '{KEY}'\nprint(read_file('a.txt'))", "print(1)", DONE)) as server:
        run_dir = data.parent / program(data.parent, server, "How many?", "data")["run_dir"]

    assert "key" in {each.name for each in saved_state(run_dir / "state.json").variables}
    assert all(KEY.encode() not in path.read_bytes() for path in run_dir.iterdir())


def test_what_is_too_large_is_left_out_and_said(data: Path) -> None:
    code = f"big = 'x' * {2 * STATE_BYTES}\nsmall = 1\nprint(read_file('a.txt'))"
    answer, _, run_dir = asked(data, [code, DONE])
    _, model, _ = asked(data, ["print(small)", DONE], continue_from=run_dir)

    assert (run_dir / "state.json").stat().st_size < STATE_BYTES
    assert answer.status is RunStatus.SUCCEEDED
    assert "too large" in model.requests[0].messages[1].content


def test_a_follow_up_of_a_follow_up_and_their_replay(data: Path) -> None:
    _, _, first = asked(data, [WORK, "print(1)", DONE])
    _, _, second = asked(data, [LOOK, "more = rows[:1]", DONE], continue_from=first)
    _, _, talk = asked(data, ["I only talk.", "And talk."], continue_from=second)
    _, model, third = asked(data, ["print(more[0].words(), 'rows' in dir())", DONE] * 2, continue_from=talk)

    assert "['alpha'] True" in model.requests[1].messages[-1].content
    for run_dir in (second, third):
        assert replay(run_dir, settings=Settings()).equal


def test_a_replay_wants_the_state_as_it_was(data: Path) -> None:
    _, _, first = asked(data, [WORK, "print(1)", DONE])
    _, _, second = asked(data, [LOOK, DONE], continue_from=first)
    _, _, other = asked(data, ["x = 1", "print(x)", DONE])
    (first / "state.json").write_bytes((other / "state.json").read_bytes())

    with pytest.raises(ConfigError, match="another one now"):
        replay(second, settings=Settings())


def test_a_tampered_state_is_refused_before_anything_is_asked(data: Path) -> None:
    _, _, first = asked(data, ["total = 12345\nprint(read_file('a.txt'))", DONE])
    state = first / "state.json"
    state.write_bytes(state.read_bytes().replace(b"12345", b"54321"))

    with pytest.raises(ConfigError, match="changed after it was written"):
        asked(data, [DONE], continue_from=first)


def test_without_a_state_the_code_runs_again(data: Path) -> None:
    _, _, first = asked(data, [WORK, "print(1)", DONE])
    (first / "state.json").unlink()
    _, model, _ = asked(data, ["print(next(numbers), len(rows))", DONE] * 2, continue_from=first)

    assert "0 2" in model.requests[1].messages[-1].content


def test_the_model_hears_what_the_new_profile_did_not_let_in(data: Path) -> None:
    _, _, first = asked(data, ["import json\nkept = 4711\nprint(read_file('a.txt'))", DONE])
    _, model, _ = asked(data, ["print(kept)", DONE] * 2, continue_from=first, profile="strict")

    heard = model.requests[1].messages[-1].content
    assert "Not restored from the earlier run: json" in heard
    assert "4711" in heard.partition("Not restored")[2]


@pytest.mark.parametrize("finish", ["FINAL('still 42 [a.txt:2]')", "add_citation('a.txt', 2, 2)\nFINAL('still 42')"])
def test_lines_that_the_earlier_answer_cited_may_be_cited_at_once(data: Path, finish: str) -> None:
    _, _, first = asked(data, ["print(read_file('a.txt'))", "FINAL('42 [a.txt:2]')"])
    answer, model, second = asked(data, [finish], continue_from=first)

    assert "Lines that it cited, as they are now:\n[a.txt:2-2]\nbeta is 42" in model.requests[0].messages[1].content
    assert (answer.status, len(model.requests)) == (RunStatus.SUCCEEDED, 1)
    assert [citation.place for citation in answer.citations] == ["a.txt:2-2"]
    assert replay(second, settings=Settings()).equal


def test_lines_that_changed_since_are_shown_as_they_are(data: Path) -> None:
    _, _, first = asked(data, ["print(read_file('a.txt'))", "FINAL('42 [a.txt:2]')"])
    (data / "a.txt").write_text("alpha\nbeta is 43\n")
    _, model, _ = asked(data, ["FINAL('now 43 [a.txt:2]')"], continue_from=first)

    assert "[a.txt:2-2]\nbeta is 43" in model.requests[0].messages[1].content
