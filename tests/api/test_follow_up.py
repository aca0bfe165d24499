"""`continue_from`: a follow-up has the variables and the history of the run before, rebuilt by running its code over its record."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sonde.api.ask_run import ask
from sonde.api.rerun import replay, resume
from sonde.api.result import Answer
from sonde.api.settings import Settings
from sonde.core.events import Noted
from sonde.core.status import RunStatus
from sonde.errors import ConfigError
from sonde.runs.export import export_run, unpack_run
from sonde.runs.rundir import RunDir
from sonde.sandbox import Limits
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
first = next(numbers)
"""
LOOK = "print(longest(rows).words(), counts['beta'], next(numbers))\nread_file('a.txt')"
DONE = "FINAL('two [a.txt:1]')"
FIRST = [
    "import datetime\nrows = read_file('a.txt').splitlines()\nnow = datetime.datetime.now()",
    "rows.append(llm_query('name it'))",
    "named by a model",
    "broken = 1 / 0",
    "print(budget_counters, len(tool_trace))",
    DONE,
]
UNBUILT = "Not rebuilt from the earlier run"
OTHERWISE = "Not as in the earlier run"


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


def heard(model: ScriptedModel, request: int) -> str:
    """The last message of a request."""
    return model.requests[request].messages[-1].content


def is_whole(answer: Answer) -> bool:
    """Whether nothing is said to be missing."""
    return not any(UNBUILT in gap or OTHERWISE in gap for gap in answer.gaps)


def program(folder: Path, server: ScriptedServer, *words: str) -> dict[str, Any]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "TERM": "dumb"}
    done = subprocess.run(
        [sys.executable, "-m", "sonde", "ask", *words, "--json"],
        cwd=folder,
        env={**environment, "OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": server.base_url},
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def fenced(*scripts: str) -> list[str]:
    return [f"```python\n{script}\n```" for script in scripts]


@pytest.mark.long
def test_two_programs_one_after_the_other(data: Path) -> None:
    with ScriptedServer(fenced(WORK, f"key = '{KEY}'", DONE)) as server:
        first = program(data.parent, server, "How many?", "data")
    folder = data.parent / first["run_dir"]
    (data / "a.txt").write_text("changed since\n")  # what a tool returned comes from the record all the same
    with ScriptedServer(fenced(LOOK, "FINAL(f'{len(rows)} [a.txt:1]')")) as server:
        second = program(data.parent, server, "And then?", "--continue", folder.name)

    opening, shown = (json.dumps(each.body["messages"]) for each in server.requests[:2])
    assert "['beta', 'is', '42'] 1 1" in shown
    assert second["answer"].startswith("2")
    assert "How many?" in opening and "rows: list (2)" in opening and "longest: function" in opening
    assert "changed since: a.txt" in opening
    assert all(KEY.encode() not in path.read_bytes() for path in folder.iterdir())


def test_nothing_is_asked_or_charged_again(data: Path) -> None:
    first, _, _ = asked(data, FIRST)
    second, model, _ = asked(data, ["print(rows, now)", DONE] * 2, continue_from=first.run_dir)
    third, last, _ = asked(data, ["print(rows, now)", DONE] * 2, continue_from=second.run_dir)

    assert "['alpha', 'beta is 42', 'named by a model']" in heard(model, 1)
    assert heard(model, 1).partition("Left:")[0] == heard(last, 1).partition("Left:")[0]
    for answer in (second, third):
        used = answer.record.runtime_ref.usage
        assert (used.llm_subcalls, used.tool_calls) == (0, 0)
        assert is_whole(answer)


def test_a_follow_up_of_a_follow_up_and_their_replay(data: Path) -> None:
    _, _, first = asked(data, [WORK, "print(1)", DONE])
    _, _, second = asked(data, [LOOK, "more = rows[:1]", DONE], continue_from=first)
    _, _, talk = asked(data, ["I only talk.", "And talk."], continue_from=second)
    answer, model, third = asked(
        data, ["print(more[0].words(), 'rows' in dir(), next(numbers))", DONE] * 2, continue_from=talk
    )

    assert "more: list (1)" in model.requests[0].messages[1].content
    assert "rows: list (2)" in model.requests[0].messages[1].content
    assert "['alpha'] True 2" in heard(model, 1)
    assert is_whole(answer)
    for run_dir in (second, third):
        assert replay(run_dir, settings=Settings()).equal


def test_a_follow_up_of_a_follow_up_that_reached_a_limit_knows_the_whole_conversation(data: Path) -> None:
    runs, settings = data.parent / "runs", Settings()

    def told(question: str, script: list[str], before: Answer | None = None, **options: Any) -> tuple[Answer, str]:
        model, last = ScriptedModel(script), None if before is None else before.run_dir
        given = (data,) if last is None else ()
        answer = ask(question, *given, model=model, runs_dir=runs, settings=settings, continue_from=last, **options)
        return answer, heard(model, 0)

    first, _ = told("Which word is it?", ["FINAL('it is beta [a.txt:2]')"])
    second, _ = told("How often?", ["x = 1"], first, max_iterations=1)
    third, _ = told("How often?", ["FINAL('once [a.txt:2]')"], second)
    _, prompt = told("Where?", ["FINAL('in a [a.txt:2]')"], third)

    assert (first.status, second.status, third.status) == (RunStatus.SUCCEEDED, RunStatus.PARTIAL, RunStatus.SUCCEEDED)
    at = [
        prompt.index(each) for each in ("Which word is it?", "it is beta", "How often?", "Answer (partial)", "once [")
    ]
    assert at == sorted(at)


def test_a_long_conversation_is_told_in_short(data: Path) -> None:
    answer, model, run = asked(data, ["FINAL('" + "very " * 900 + "long [a.txt:1]')"])
    for _ in range(4):
        answer, model, run = asked(data, ["FINAL('" + "very " * 900 + "long [a.txt:1]')"], continue_from=run)

    assert answer.status is RunStatus.SUCCEEDED
    assert heard(model, 0).count("Question: How many?") == 4
    assert len(heard(model, 0)) < 7_000  # the last answer takes half of it


def test_a_killed_follow_up_is_resumed_with_the_variables(data: Path) -> None:
    _, _, first = asked(data, [WORK, "print(1)", DONE])
    _, _, second = asked(data, ["mine = longest(rows).text", "print(mine)", DONE], continue_from=first)
    journal = second / "events.jsonl"
    journal.write_bytes(journal.read_bytes()[: journal.read_bytes().index(b'"turn":2')])
    model = ScriptedModel(["print(mine, len(rows))\nread_file('a.txt')", DONE])

    resume(second, model=model, settings=Settings())

    assert "beta is 42 2" in heard(model, 1)


def test_a_run_with_the_state_file_of_an_older_version_is_continued_by_its_code(data: Path) -> None:
    _, _, first = asked(data, [WORK, "print(1)", DONE])
    (first / "state.json").write_text("a file that nobody reads any more")
    answer, model, _ = asked(data, [LOOK, DONE], continue_from=first)

    assert "['beta', 'is', '42'] 1 1" in heard(model, 1)
    assert is_whole(answer)


def test_no_state_is_left_in_the_folder(data: Path) -> None:
    _, _, run_dir = asked(data, [WORK, "print(1)", DONE])

    assert {path.name for path in run_dir.iterdir()} == {
        "events.jsonl",
        "run_record.json",
        "result.json",
        "answer.md",
        "summary.md",
        "seal",
    }


def test_code_that_reads_the_context_itself_and_finds_it_changed_is_named(data: Path) -> None:
    _, _, first = asked(data, ["lines = CONTEXT['a.txt'].splitlines()\nprint(read_file('a.txt'))", DONE])
    (data / "a.txt").write_text("alpha\nbeta is 42\ngamma\n")
    answer, model, _ = asked(data, ["print(lines[-1])\nread_file('a.txt')", DONE], continue_from=first)

    assert OTHERWISE in heard(model, 1) and "lines (turn 1 of" in heard(model, 1)
    assert any(OTHERWISE in gap for gap in answer.gaps)


def test_code_that_asks_for_something_else_now_is_not_given_what_it_did_not_ask_for(data: Path) -> None:
    (data / "b.txt").write_text("bee\n")
    (data / "c.txt").write_text("see\n")
    (data / "main.txt").write_text("b.txt")
    _, _, first = asked(data, ["x = 1", "kept = read_file(str(CONTEXT['main.txt']))", DONE])
    (data / "main.txt").write_text("c.txt")
    answer, model, _ = asked(data, ["print(x, 'kept' in dir())\nread_file('a.txt')", DONE], continue_from=first)

    assert "1 False" in heard(model, 1)
    assert f"{UNBUILT}: what was made from turn 2" in heard(model, 1)
    assert any("the arguments of read_file" in gap for gap in answer.gaps)


def test_the_model_hears_what_the_new_profile_does_not_let_run(data: Path) -> None:
    _, _, first = asked(data, ["kept = 4711\nprint(read_file('a.txt'))", "import json\nlater = 1", DONE])
    answer, model, _ = asked(data, ["print(kept)\nread_file('a.txt')", DONE] * 2, continue_from=first, profile="strict")

    assert f"{UNBUILT}: what was made from turn 2" in heard(model, 1)
    assert "4711" in heard(model, 1).partition(UNBUILT)[2]
    assert any(UNBUILT in gap for gap in answer.gaps)


def test_sub_calls_are_answered_from_the_record_where_none_could_be_made_now(data: Path) -> None:
    _, _, first = asked(data, [FIRST[0], FIRST[1], FIRST[2], DONE])
    answer, model, _ = asked(data, ["print(rows[-1])\nread_file('a.txt')", DONE], continue_from=first, max_depth=0)

    assert "named by a model" in heard(model, 1)
    assert is_whole(answer)


def test_own_tools_need_not_be_given_again(data: Path) -> None:
    def secret_number() -> int:
        """The number.

        Example: n = secret_number()
        """
        return 271828

    _, _, first = asked(data, ["n = secret_number()\nprint(read_file('a.txt'))", DONE], tools=[secret_number])
    answer, model, _ = asked(data, ["print(n)\nread_file('a.txt')", DONE], continue_from=first)

    assert "271828" in heard(model, 1)
    assert is_whole(answer)


@pytest.mark.long
def test_a_slower_machine_is_no_failure(data: Path) -> None:
    slow = "total = sum(i for i in range(30_000_000))\nprint(read_file('a.txt'))"
    _, _, first = asked(data, [slow, DONE])
    quick = Limits(wall_s=1.0)  # as if this machine were much slower than the one that ran it
    answer, model, _ = asked(
        data, ["print(total)\nread_file('a.txt')", DONE], continue_from=first, limits=quick, max_wall_time_sec=600
    )

    assert "449999985000000" in heard(model, 1)
    assert is_whole(answer)


def test_an_earlier_run_that_was_deleted_is_named(data: Path) -> None:
    _, _, first = asked(data, ["a = 1\nprint(read_file('a.txt'))", DONE])
    _, _, second = asked(data, ["b = 2\nprint(read_file('a.txt'))", DONE], continue_from=first)
    (first / "events.jsonl").unlink()
    answer, model, _ = asked(data, ["print(b, 'a' in dir())\nread_file('a.txt')", DONE], continue_from=second)

    assert "2 False" in heard(model, 1)
    assert any(first.name in gap for gap in answer.gaps)


def test_random_numbers_and_values_held_back_are_rebuilt(data: Path) -> None:
    held = "import random\nx = random.random()\nprint(read_file('a.txt'))\nFINAL('two')"
    again = "y = held_final\nprint(x, y)"
    _, before, first = asked(data, [held, again, DONE], profile="open")
    answer, model, _ = asked(
        data, ["print(x, y)\nread_file('a.txt')", DONE], continue_from=first, profile="open", sampling_seed=7
    )

    assert heard(before, 2).partition("\n\nLeft")[0].splitlines()[-1] in heard(model, 1)
    assert is_whole(answer)


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


def test_the_person_hears_once_which_files_changed_since(data: Path) -> None:
    _, _, first = asked(data, ["FINAL(read_file('a.txt')[:5] + ' [a.txt:1]')"])

    def told() -> list[str]:
        _, _, run = asked(data, ["FINAL('so it is [a.txt:1]')"], continue_from=first)
        return [each.text for each in RunDir(run).events() if isinstance(each, Noted) and "changed" in each.text]

    assert told() == []
    (data / "a.txt").write_text("alpha, of late\nbeta is 43\n")
    assert told() == [f"changed since run {first.name}: a.txt; what it read then stays as it was"]


def test_an_imported_follow_up_finds_its_earlier_run_beside_it(data: Path) -> None:
    _, _, first = asked(data, [WORK, DONE])
    _, _, second = asked(data, ["print(counts['beta'])\nread_file('a.txt')", DONE], continue_from=first)
    moved = data.parent / "elsewhere"
    packed = [export_run(RunDir(run), data.parent / f"{run.name}.tar.gz") for run in (first, second)]
    shutil.rmtree(data.parent / "runs")
    runs = [unpack_run(file, moved).path for file in packed]

    assert replay(runs[1], settings=Settings(), trust_run=True).equal


def test_an_earlier_run_is_not_looked_for_at_the_path_that_a_stranger_recorded(data: Path) -> None:
    _, _, private = asked(data, ["secret = 'private words'", DONE])
    _, _, second = asked(data, ["print(secret)\nread_file('a.txt')", DONE], continue_from=private)
    strange = data.parent / "strange"
    strange.mkdir()
    shutil.move(second, strange)

    answer, model, _ = asked(data.parent / "other/data", [DONE], data, continue_from=strange / second.name)

    assert any("is not there any more" in gap for gap in answer.gaps)
    assert "private words" not in heard(model, 0).partition("Answer")[2]


def test_a_redacted_export_is_not_continued(data: Path) -> None:
    _, _, first = asked(data, [WORK, DONE])
    redacted = unpack_run(export_run(RunDir(first), data.parent / "x.tar.gz", redact=True), data.parent / "redacted")

    with pytest.raises(ConfigError, match="redacted"):
        asked(data, [DONE], continue_from=redacted.path)
