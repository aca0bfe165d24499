"""`sonde ask` as people use it: a process, a server on loopback, files, signals."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_program import Shown, environment, kept_runs, sonde

from sonde.api import ask_run
from sonde.errors import ConfigError
from sonde.testing import ScriptedReply, ScriptedServer

KEY = "sk-planted-never-shown"
LOOK = "```python\nlines = grep('ERROR')\nprint(lines)\n```"
CITE = "```python\nadd_citation('app.log', 2, 2, 'first error')\nFINAL('payments failed first')\n```"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/app.log").write_text("12:00 INFO up\n12:01 ERROR payments: timeout\n12:02 ERROR cart: 500\n")
    return tmp_path


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer([LOOK, CITE]) as started:
        yield started


def ask(folder: Path, server: ScriptedServer, *words: str, stdin: str = "") -> Shown:
    env = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": server.base_url}
    return sonde("ask", "Who failed first?", *words, cwd=folder, stdin=stdin, **env)


def only_run(folder: Path) -> Path:
    (run,) = kept_runs(folder)
    return run


def record(folder: Path) -> dict[str, Any]:
    return json.loads((only_run(folder) / "run_record.json").read_text())


def test_the_answer_goes_to_stdout_and_everything_else_to_stderr(folder: Path, server: ScriptedServer) -> None:
    shown = ask(folder, server, "logs")

    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("payments failed first\n\nCitations:\n  [1] ")
    assert "app.log:2  12:01 ERROR payments: timeout" in shown.stdout
    first, *rest = shown.stderr.splitlines()
    assert first == "model: openai:gpt-4o-mini (the default, because OPENAI_API_KEY is set)"
    assert any(line.startswith("turn 1 (") for line in rest)
    assert rest[-1].startswith("succeeded · 2 turns") and str(only_run(folder).name) in rest[-1]


@pytest.mark.requirement(103)
def test_the_run_folder_is_complete(folder: Path, server: ScriptedServer) -> None:
    ask(folder, server, "logs", "--max-iterations", "7", "--max-cost-usd", "0.25", "--seed", "11")

    files = {path.name for path in only_run(folder).iterdir()}
    assert files >= {"run_record.json", "events.jsonl", "result.json", "summary.md", "answer.md"}
    budget = record(folder)["runtime_ref"]["budget"]
    assert (budget["max_iterations"], budget["max_cost_usd"], budget["sampling_seed"]) == (7, 0.25, 11)


def test_json_is_exactly_one_object(folder: Path, server: ScriptedServer) -> None:
    shown = ask(folder, server, "logs", "--json")

    answer = json.loads(shown.stdout)
    assert answer["answer"] == "payments failed first"
    assert answer["status"] == "succeeded"
    assert answer["citations"][0]["start_line"] == 2
    assert answer["usage"]["iterations"] == 2
    assert Path(folder / answer["run_dir"]).samefile(only_run(folder))
    assert shown.stderr == ""


def test_quiet_prints_the_answer_alone(folder: Path, server: ScriptedServer) -> None:
    shown = ask(folder, server, "logs", "--quiet")

    assert (shown.stdout, shown.stderr) == ("payments failed first\n", "")


def test_quiet_says_in_one_line_that_an_answer_has_no_proof(folder: Path) -> None:
    with ScriptedServer(["```python\nFINAL('payments failed first')\n```"] * 6) as server:
        shown = ask(folder, server, "logs", "--quiet")

    assert (shown.returncode, shown.stdout) == (0, "payments failed first\n")
    assert shown.stderr == "partial: the answer has no citation\n"


def test_the_key_is_nowhere(folder: Path, server: ScriptedServer) -> None:
    shown = ask(folder, server, "logs")

    written = "".join(path.read_text() for path in only_run(folder).iterdir() if path.is_file())
    assert KEY not in shown.stdout + shown.stderr + written
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"


def test_standard_input_is_a_context(folder: Path) -> None:
    cite = CITE.replace("app.log", "stdin.txt")
    with ScriptedServer([LOOK, cite]) as server:
        shown = ask(folder, server, "-", stdin="a\nERROR b\n")

    assert "stdin.txt:2  ERROR b" in shown.stdout


@pytest.mark.requirement(13)
def test_without_a_model_it_answers_from_what_it_finds_and_says_how_to_set_one(folder: Path) -> None:
    shown = sonde("ask", "Which payments ERROR?", "logs", "--json", cwd=folder)

    answer = json.loads(shown.stdout)
    assert shown.returncode == 0
    assert (answer["status"], answer["annotator_kind"]) == ("partial", "CODE")
    assert any("payments" in citation["snippet"] for citation in answer["citations"])
    assert "--model" in sonde("ask", "Which payments ERROR?", "logs", cwd=folder).stderr.splitlines()[0]


def test_without_a_model_it_says_why_it_found_nothing(folder: Path) -> None:
    shown = sonde("ask", "Where is the zebra?", "logs", "--quiet", cwd=folder)

    assert "no text in the file shares a word" in shown.stdout


@pytest.mark.parametrize(
    ("row", "noted"),
    [
        ({"context": {"trace_id": "1", "span_id": "2"}, "start_time": "2026-01-01T00:00:00Z"}, True),
        (
            {"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "1", "spanId": "2", "startTimeUnixNano": 3}]}]}]},
            True,
        ),
        ({"level": "ERROR", "message": "payments: timeout", "trace_id": "1", "span_id": "2"}, False),
    ],
    ids=["spans", "otlp", "log lines with ids"],
)
def test_a_trace_file_given_as_a_path_is_noted_with_the_flag_for_it(folder: Path, row: object, noted: bool) -> None:
    (folder / "traces.jsonl").write_text(f"{json.dumps(row)}\n" * 3)

    shown = sonde("ask", "Which payments?", "traces.jsonl", cwd=folder)

    note = "note: traces.jsonl looks like traces; --source traces.jsonl asks about them\n"
    assert (shown.returncode, note in shown.stderr) == (0, noted)


def test_a_folder_in_which_nothing_can_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/a.bin").write_bytes(bytes(range(256)))
    (tmp_path / "raw/b").write_bytes(bytes(range(256)))
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/.env").write_text("KEY=1")

    with pytest.raises(ConfigError, match=r"empty: no files$"):
        ask_run.ask("Where is the zebra?", tmp_path / "empty")
    with pytest.raises(ConfigError, match="none of its 2 files is text"):
        ask_run.ask("Where is the zebra?", tmp_path / "raw")
    with pytest.raises(ConfigError, match=r"no files but 1 secret \(.env\)"):
        ask_run.ask("Where is the zebra?", tmp_path / "kept")


def test_without_a_model_a_question_about_trouble_finds_the_errors(folder: Path) -> None:
    assert "ERROR" in sonde("ask", "What went wrong?", "logs", "--quiet", cwd=folder).stdout


def test_ctrl_c_while_a_pipe_is_awaited_ends_it(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    command = [sys.executable, "-m", "sonde", "ask", "What is in there?", "pipe"]
    with subprocess.Popen(command, cwd=folder, env=environment(folder), stderr=subprocess.PIPE, text=True) as process:
        writer = os.open(folder / "pipe", os.O_WRONLY)  # waits until it is being read
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=250)
        os.close(writer)

    assert process.returncode == 130
    assert "Traceback" not in said


def test_a_follow_up_knows_the_earlier_run(folder: Path, server: ScriptedServer) -> None:
    ask(folder, server, "logs")
    with ScriptedServer([LOOK, CITE]) as again:
        shown = ask(folder, again, "logs", "--continue", "last")

    assert shown.returncode == 0
    assert "payments failed first" in json.dumps([dict(message) for message in again.requests[0].body["messages"]])


def test_a_schema_shapes_the_answer(folder: Path) -> None:
    (folder / "s.json").write_text('{"type": "object", "properties": {"who": {"type": "string"}}, "required": ["who"]}')
    replies = [LOOK, CITE.replace("'payments failed first'", "{'who': 'payments'}")]
    with ScriptedServer(replies) as server:
        shown = ask(folder, server, "logs", "--schema", "s.json", "--json")

    assert json.loads(shown.stdout)["value"] == {"who": "payments"}


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["missing.log"], "missing.log"),
        (["logs", "--schema", "missing.json"], "missing.json"),
        (["logs", "--schema", "logs/app.log"], "not JSON"),
        (["logs", "--max-iterations", "0"], "max_iterations"),
        (["logs", "--max-parallel", "0"], "max_parallel"),
        (["logs", "--mode", "song"], "code, actions"),
        (["logs", "--profile", "lax"], "analysis"),
        (["logs", "--with", "torch"], "numpy, pandas"),
        (["logs", "--with", ","], '["numpy", "pandas"]'),
        (["logs", "--continue", "nonesuch"], "sonde ask"),
        (["logs", "--use", "nonesuch"], "nonesuch"),
        (["-", "--code"], "--code"),
        (["logs", "--model", "nonesuch:x"], "nonesuch"),
    ],
)
def test_bad_input_is_exit_code_2_before_anything_is_asked(
    words: list[str], hint: str, folder: Path, server: ScriptedServer
) -> None:
    shown = ask(folder, server, *words)

    assert shown.returncode == 2
    assert shown.stderr.splitlines()[-1].startswith("sonde: ") and hint in shown.stderr
    assert "Traceback" not in shown.stderr
    assert server.requests == ()


def test_a_model_that_never_answers_well_is_told_and_does_not_crash(folder: Path) -> None:
    refusal = ScriptedReply(status=401, text="bad key")
    with ScriptedServer(refusal) as server:
        shown = ask(folder, server, "logs", "--json")

    answer = json.loads(shown.stdout)
    assert answer["error"]["code"] == "MODEL_UNAUTHORIZED"
    assert shown.returncode == (1 if answer["status"] == "failed" else 0)
    assert KEY not in shown.stdout


SPIN = "```python\nprint(grep('ERROR'))\nbudget()\nwhile True:\n    pass\n```"


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(ScriptedReply(hang=True), id="waiting for the model", marks=pytest.mark.long),
        pytest.param(SPIN, id="code running"),
    ],
)
def test_ctrl_c_ends_with_the_best_there_is_and_a_complete_record(second: ScriptedReply | str, folder: Path) -> None:
    with ScriptedServer([LOOK, second]) as server:
        env = environment(folder, OPENAI_API_KEY=KEY, OPENAI_BASE_URL=server.base_url)
        command = [sys.executable, "-m", "sonde", "ask", "Who failed first?", "logs", "--json"]
        pipe = subprocess.PIPE
        with subprocess.Popen(
            command, cwd=folder, env=env, stdout=pipe, stderr=pipe, start_new_session=True
        ) as process:
            await_journal(folder, server, '"name":"budget"' if second == SPIN else "")
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the whole group gets it
            out, err = process.communicate(timeout=250)

    answer = json.loads(out)
    assert process.returncode == 130, err
    assert answer["status"] == "partial"
    assert "cancelled by the user" in answer["gaps"]
    assert record(folder)["completed_at"]


def await_journal(folder: Path, server: ScriptedServer, text: str) -> None:
    """Wait until the second request is out and the journal holds the text."""
    for _ in range(2000):
        journals = [run / "events.jsonl" for run in kept_runs(folder)]
        if len(server.requests) == 2 and journals and journals[0].is_file() and text in journals[0].read_text():
            return
        server.closing.wait(0.05)
    raise AssertionError("the run did not get that far")


@pytest.mark.long
def test_on_a_terminal_citations_are_links_and_hostile_text_is_harmless(folder: Path) -> None:
    hostile = CITE.replace("payments failed first", "payments\\x1b]52;c;ZXZpbA==\\x07 failed")
    with ScriptedServer([LOOK, hostile]) as server:
        ours, theirs = pty.openpty()
        env = environment(folder, OPENAI_API_KEY=KEY, OPENAI_BASE_URL=server.base_url) | {"TERM": "xterm"}
        command = [sys.executable, "-m", "sonde", "ask", "Who failed first?", "logs"]
        with subprocess.Popen(command, cwd=folder, env=env, stdin=theirs, stdout=theirs, stderr=theirs) as process:
            os.close(theirs)
            shown = read_terminal(ours)
            process.wait(60)
        os.close(ours)

    assert f"\x1b]8;;file://{folder}/logs/app.log#L2\x1b\\" in shown
    assert "\x1b]52" not in shown
    assert "payments" in shown


def read_terminal(fd: int) -> str:
    chunks: list[bytes] = []
    try:
        while chunk := os.read(fd, 65536):
            chunks.append(chunk)
    except OSError:  # Linux answers EIO when the other side is closed
        pass
    return b"".join(chunks).decode("utf-8", "replace")


@pytest.mark.parametrize("flags", [(), ("--code",)], ids=["plain", "code"])
@pytest.mark.parametrize(
    ("question", "first"),
    [
        ("Where is url_for defined?", "flask/helpers.py:3-7"),
        ("How does url_for build a link?", "flask/helpers.py:3-7"),
        ("Where is the class Query defined?", "orm/query.py:2-3"),
        ("Where is MAX_DEPTH defined?", "orm/query.py:1-3"),
        ("Where is openDoor declared?", "web/door.ts:1-3"),
        ("Where is Scan implemented?", "go/scan.go:1-3"),
    ],
)
def test_without_a_model_the_definition_of_what_a_question_names_comes_first(
    tmp_path: Path, question: str, first: str, flags: tuple[str, ...]
) -> None:
    prose = "The url_for function is defined so that a Query class and url_for work; Scan, openDoor and MAX_DEPTH are defined too.\n\n"
    texts = {
        "docs/api.rst": prose * 9 + "    class Query:\n        pass\n",
        "docs/index.html": f"<html><body>{prose * 9}</body></html>",
        "flask/app.py": f'class App:\n    """{prose}"""\n\n    def url_for(self):\n        return url_for(self)\n',
        "flask/helpers.py": "import json\n\ndef url_for(\n    endpoint: str,\n    scheme: str = '',\n) -> str:\n    return endpoint\n",
        "go/scan.go": "func (s *Scanner) Scan() bool {\n\treturn false\n}\n",
        "orm/query.py": "MAX_DEPTH = 9\nclass Query(Base):\n    pass\n",
        "tests/test_query.py": "class Query:\n    depth = MAX_DEPTH\n\ndef url_for():\n    return Query()\n",
        "web/door.ts": "export async function openDoor(key: string) {\n  return key;\n}\n",
    }
    for name, text in texts.items():
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).write_text(text)

    asked = sonde("ask", question, "data", *flags, cwd=tmp_path)

    assert f"[1] {first}\n" in asked.stdout, asked.stdout
