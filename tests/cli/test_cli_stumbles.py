"""What tripped up somebody who used the commands for an hour, on files of their own."""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
from cli_program import sonde

from sonde import ask
from sonde.api.settings import Settings
from sonde.testing import ScriptedModel, ScriptedServer


def test_a_word_far_into_a_line_that_is_too_long_to_cite_is_shown(tmp_path: Path) -> None:
    rows = [{"id": number, "name": f"item {number}"} for number in range(40_000)]
    (tmp_path / "dump.json").write_text(json.dumps({"rows": rows, "note": "the zebra lives here"}))

    shown = sonde("ask", "Where is the zebra?", "dump.json", cwd=tmp_path)

    assert "dump.json:1 (the line is too long to be cited)" in shown.stdout
    assert "the zebra lives here" in shown.stdout
    assert "shares a word" not in shown.stdout


def test_an_empty_file_is_nothing_to_read(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()

    shown = sonde("ask", "What is in there?", "empty.txt", cwd=tmp_path)

    assert shown.returncode == 2
    assert "every file in it is empty" in shown.stderr


def test_a_path_in_the_place_of_the_question_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/app.py").write_text("total = 1\n")

    shown = sonde("ask", "src", "Where is the total?", "src/app.py", cwd=tmp_path)

    assert shown.returncode == 2
    assert shown.stderr.rstrip().endswith("sonde ask 'Where is the total?' src src/app.py")


def test_a_path_without_a_question_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()

    with ScriptedServer([]) as server:
        flags = ("--model", "openai:x", "--base-url", server.base_url)
        shown = sonde("ask", "src", *flags, cwd=tmp_path)
        as_code = sonde("ask", "src", "--code", *flags, cwd=tmp_path)

    assert (shown.returncode, as_code.returncode) == (2, 2)
    assert shown.stderr.rstrip().endswith("src is a path; the question comes first: sonde ask 'QUESTION' src")
    assert not server.requests


@pytest.mark.parametrize("words", [(), ("-",), ("--json",)])
def test_an_empty_pipe_is_told_before_a_model_is_asked(tmp_path: Path, words: tuple[str, ...]) -> None:
    with ScriptedServer(["FINAL('no errors')"]) as server:
        flags = ("--model", "openai:x", "--base-url", server.base_url)
        shown = sonde("ask", "Any errors?", *words, *flags, cwd=tmp_path, stdin="")

    assert shown.returncode == 2
    assert "standard input was empty" in shown.stdout + shown.stderr
    assert not server.requests


def test_web_pages_that_are_read_as_source_are_announced(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("<p>the zebra lives here</p>\n")
    ask_for = ("ask", "Where is the zebra?", "page.html")
    assert "markup" not in sonde(*ask_for, cwd=tmp_path).stderr
    (tmp_path / ".git").mkdir()

    shown = sonde(*ask_for, cwd=tmp_path)

    assert "<p>the zebra" in shown.stdout
    assert "note: 1 web page in a git repository is read with the markup" in shown.stderr
    assert "markup" not in sonde(*ask_for, "--code", cwd=tmp_path).stderr


def test_the_first_and_the_last_error_of_logs_are_found_by_time(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    calm = [f"2026-01-01T09:{minute:02d}:00Z web INFO no error, the first of many\n" for minute in range(40)]
    (logs / "a.log").write_text("".join([*calm, "2026-01-01T10:00:00Z web ERROR late\n"]))
    (logs / "b.log").write_text("2026-01-01T09:59:00Z pay ERROR early\n2026-01-01T11:00:00Z pay ERROR at the end\n")
    (logs / "c.txt").write_text("an error without a time, the first one here\n")

    first = sonde("ask", "What was the first error?", "logs", cwd=tmp_path).stdout
    last = sonde("ask", "Which was the last error?", "logs", cwd=tmp_path).stdout

    assert "[1] b.log:1\n\n    2026-01-01T09:59:00Z pay ERROR early" in first
    assert "[1] b.log:2\n\n    2026-01-01T11:00:00Z pay ERROR at the end" in last


def test_help_is_a_word_too(tmp_path: Path) -> None:
    assert sonde("help", cwd=tmp_path).stdout == sonde("--help", cwd=tmp_path).stdout
    assert sonde("help", "runs", "show", cwd=tmp_path).stdout == sonde("runs", "show", "--help", cwd=tmp_path).stdout


def test_the_lines_of_a_comparison_are_lines_and_an_unknown_cost_is_no_number(tmp_path: Path) -> None:
    done = ask(
        "What?", "alpha\n", model=ScriptedModel(["FINAL('alpha')"] * 9, cost_usd=None), runs_dir=tmp_path / "runs"
    )

    shown = sonde("diff", "last", "last", "--runs-dir", "runs", cwd=tmp_path).stdout
    told = json.loads(sonde("diff", "last", "last", "--json", "--runs-dir", "runs", cwd=tmp_path).stdout)

    assert shown.startswith(f"A {done.record.run_id}\nB {done.record.run_id}\nequal")
    assert "\ufffd" not in shown
    assert next(line.split() for line in shown.splitlines() if "cost_usd" in line) == ["cost_usd", "unknown", "unknown"]
    assert {"name": "cost_usd", "left": None, "right": None} in told["numbers"]


def test_what_several_gates_miss_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work/size.py").write_text("size = 5\n")
    look = '```python\nprint(read_file("size.py", 1, 1)["content"])\n```'
    patch = "*** Begin Patch\n*** Update File: size.py\n@@\n-size = 5\n+size = 6\n*** End Patch"
    change = f'```python\napply_patch("""{patch}""")\nFINAL("It is 6. [size.py:1]")\n```'
    with ScriptedServer([look, change, *['```python\nFINAL("It is 6. [size.py:1]")\n```'] * 5]) as server:
        words = ("--model", "openai:x", "--base-url", server.base_url, "--yes")
        shown = sonde("edit", "Make it 6", "work", *words, cwd=tmp_path)

    assert "size.py was changed and not read again" in shown.stdout
    assert "EVIDENCE_VALIDATION_FAILED" not in shown.stderr


@pytest.mark.parametrize("by", ["flag", "variable", "file"])
def test_the_model_none_is_no_model_although_a_key_is_set(tmp_path: Path, by: str) -> None:
    (tmp_path / "app.log").write_text("payments: timeout\n")
    (tmp_path / "mine.toml").write_text('model = "none"\nsub_model = "openai:small"\n')
    flags = ("--model", "none") if by == "flag" else ()
    env = {"variable": {"SONDE_MODEL": "none"}, "file": {"SONDE_CONFIG": str(tmp_path / "mine.toml")}}.get(by, {})
    with ScriptedServer([]) as server:
        key = {"OPENAI_API_KEY": "sk-x", "OPENAI_BASE_URL": server.base_url}
        shown = sonde("ask", "Where is the timeout?", "app.log", *flags, cwd=tmp_path, **key, **env)

    assert shown.returncode == 0, shown.stderr
    assert "payments: timeout" in shown.stdout and "No model has answered" in shown.stdout
    assert shown.stderr.startswith("model: none (") and "set OPENAI_API_KEY" not in shown.stderr
    assert not server.requests


def test_a_follow_up_without_a_model_does_not_take_that_of_the_earlier_run(tmp_path: Path) -> None:
    (tmp_path / "app.log").write_text("payments: timeout\n")
    with ScriptedServer(["FINAL('payments [app.log:1]')"]) as server:
        env = {"OPENAI_BASE_URL": server.base_url}
        sonde("ask", "Which service?", "app.log", "--model", "openai:house", cwd=tmp_path, **env)
        before = len(server.requests)
        shown = sonde("ask", "What timed out?", "--continue", "last", "--model", "none", cwd=tmp_path, **env)

    assert "No model has answered" in shown.stdout
    assert len(server.requests) == before


def test_in_python_the_model_none_overrules_the_settings(tmp_path: Path) -> None:
    with ScriptedServer(["FINAL('alpha [context.txt:1]')"]) as server:
        settings = Settings(model="openai:house", base_url=server.base_url)
        without = ask("alpha?", "alpha\n", model="none", runs_dir=tmp_path / "runs", settings=settings)
        asked = len(server.requests)
        configured = ask("alpha?", "alpha\n", model=None, runs_dir=tmp_path / "runs", settings=settings)

    assert (without.annotator_kind, asked) == ("CODE", 0)
    assert configured.annotator_kind == "LLM"


def test_a_timeout_of_the_model_beyond_the_time_of_the_run_is_noted(tmp_path: Path) -> None:
    (tmp_path / "app.log").write_text("payments: timeout\n")
    (tmp_path / "model.py").write_text("print('FINAL(1)')\n")
    program = f"command:{sys.executable} model.py"
    flags = ("ask", "Which service?", "app.log", "--model", program)

    shown = sonde(*flags, "--model-timeout", "6000", cwd=tmp_path).stderr
    uncounted = sonde(*flags, "--model-timeout", "6000", "--no-count-wait", cwd=tmp_path).stderr
    within = sonde(*flags, "--model-timeout", "60", cwd=tmp_path).stderr

    assert "a reply may take 6000 s, but the run ends after 600 s; raise --max-wall-time-sec" in shown
    assert "--no-count-wait" in shown
    assert "a reply may take" not in uncounted + within


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    """A folder with a table as text, one as a database, and something that nobody can read."""
    folder = tmp_path / "warehouse"
    folder.mkdir()
    (folder / "orders.csv").write_text("order,total\n1,20\n")
    (folder / "state").write_bytes(b"\x01\x02\0\0" * 40)
    for name in ("pk.db", "old.sqlite"):
        with closing(sqlite3.connect(folder / name)) as database:
            database.execute("CREATE TABLE orders (id INTEGER, total INTEGER)")
            database.commit()
    return tmp_path


def test_a_database_in_a_folder_is_not_counted_as_text_and_the_user_hears_what_to_do(warehouse: Path) -> None:
    shown = sonde("ask", "What is the total?", "warehouse", "--dry-run", "--model", "openai:gpt-4o-mini", cwd=warehouse)

    assert "would read    1 file, 17 bytes. Kinds: .csv 1." in shown.stdout
    assert "skipped: 1 binary, 2 SQLite databases (old.sqlite, pk.db; export the tables to CSV" in shown.stderr


def test_the_prompt_names_only_what_can_be_read_and_says_what_the_rest_is(warehouse: Path) -> None:
    with ScriptedServer(["FINAL('20 [orders.csv:2]')"] * 2) as server:
        flags = ("--model", "openai:x", "--base-url", server.base_url)
        sonde("ask", "What is the total?", "warehouse", *flags, cwd=warehouse)

    prompt = server.requests[0].body["messages"][-1]["content"]
    assert "Data: orders.csv (17 bytes). Not read: 2 (a SQLite database); 1 (binary)." in prompt


def test_a_database_alone_is_nothing_to_read(warehouse: Path) -> None:
    shown = sonde("ask", "What is the total?", "warehouse/pk.db", cwd=warehouse)

    assert shown.returncode == 2
    assert "pk.db is a SQLite database, so it is listed but not read: export the tables to CSV" in shown.stderr
