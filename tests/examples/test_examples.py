"""Each example runs as its docstring says, with a scripted model in the place of a real one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from example_program import EXAMPLES, block, logs, refused_example, run_example

import sonde
from sonde.bench.seeded import generate
from sonde.testing import ScriptedModel, ScriptedServer

pytestmark = pytest.mark.long

PLAN = block("row = read_file(list_files()[0], 2, 2)\nprint(row)")


def test_own_tool_is_called_by_generated_code_and_its_fault_goes_back_to_the_model(tmp_path: Path) -> None:
    look = block('team = owner_of("payments")\nprint(team, runbook(team), grep("refused"))')
    wrong = block('owner_of("billing")')
    end = block("FINAL('payments; call team-ledger [context.txt:2-2]')")

    shown = run_example("own_tool.py", cwd=tmp_path, replies=[wrong, look, end, end])

    assert "call team-ledger" in shown
    assert "tool calls: 4 · judged by LLM" in shown


def test_own_engine_judges_with_a_model_and_lists_without_one(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("x = 1\n# TODO: this loses data\n")
    replies = [block("print(todos)"), block('FINAL([{"path": "a.py", "line": 2, "why": "loses data"}])')]

    judged = run_example("own_engine.py", "src", cwd=tmp_path, replies=replies)
    listed = run_example("own_engine.py", "src", cwd=tmp_path)

    assert "a.py:2 loses data" in judged
    assert "succeeded, judged by LLM" in judged
    assert "a.py:2 # TODO: this loses data" in listed
    assert "judged by CODE" in listed


def test_own_engine_stays_under_eighty_lines() -> None:
    assert len((EXAMPLES / "own_engine.py").read_text().splitlines()) < 80


def test_typed_result_is_an_instance_after_the_model_was_told_what_does_not_fit(tmp_path: Path) -> None:
    value = '{"service": "payments", "minute": "%s", "severity": "high", "citations": ["app.log:2-2"]}'
    replies = [PLAN, block(f"FINAL({value % 'one past nine'})"), block(f"FINAL({value % '09:01'})")]

    shown = run_example("typed_result.py", logs(tmp_path), cwd=tmp_path, replies=replies)

    assert "09:01 payments (high)" in shown
    assert "app.log:2" in shown


def test_command_models_are_two_programs(tmp_path: Path) -> None:
    root, small = tmp_path / "root.py", tmp_path / "small.py"
    code = "kind = llm_query('what is it?')\\nFINAL(f'{kind} [app.log:1-1]')"
    root.write_text(
        f"import sys; sys.stdin.read(); print('```python\\n' + {code!r}.replace('\\\\n', chr(10)) + '\\n```')"
    )
    small.write_text("import sys; sys.stdin.read(); print('a log')")
    programs = [f"{sys.executable} {each}" for each in (root, small)]

    shown = run_example("command_models.py", *programs, "What is it?", logs(tmp_path), cwd=tmp_path)

    assert "a log" in shown
    assert "small.py" in shown


def test_local_server_is_asked_with_typed_actions(tmp_path: Path) -> None:
    actions = [
        {"type": "tool_call", "tool_name": "read_file", "args": {"path": "app.log", "start_line": 2, "end_line": 2}},
        {"type": "finalize", "output": {"answer": "payments [app.log:2-2]"}},
    ]
    with ScriptedServer([json.dumps(each) for each in actions] * 2) as server:
        shown = run_example("local_server.py", server.base_url, "tiny", "What failed?", logs(tmp_path), cwd=tmp_path)

    assert "payments [app.log:2-2]" in shown
    assert server.requests[0].body["model"] == "tiny"


def test_phoenix_rca_reports_on_a_trace_file_without_a_model(tmp_path: Path) -> None:
    data = generate(5, seed=7)
    data.write(tmp_path / "traces.jsonl", tmp_path / "gold.json")
    sick = next(each.trace_id for each in data.gold if each.label == "tool_failure")

    shown = run_example("phoenix_rca.py", "traces.jsonl", "", sick, cwd=tmp_path)

    assert "tool_failure" in shown
    assert "judged by CODE" in shown


def test_batch_asks_each_file_and_does_not_pay_twice(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("MIT\n")
    (tmp_path / "b.md").write_text("Apache-2.0\n")
    reply = block("path = list_files()[0]\nread_file(path, 1, 1)\nFINAL(f'it says so [{path}:1-1]')")

    shown = run_example("batch.py", "Which licence?", "a.md", "b.md", cwd=tmp_path, replies=reply)
    again = run_example("batch.py", "Which licence?", "a.md", "b.md", cwd=tmp_path)  # nobody is there to be paid

    assert shown == again


def test_mcp_client_lists_the_tools_and_gets_a_cited_answer(tmp_path: Path) -> None:
    logs(tmp_path)
    reply = block("read_file('app.log', 2, 2)\nFINAL('payments [app.log:2-2]')")

    shown = run_example("mcp_client.py", "What failed?", "logs", cwd=tmp_path, replies=reply)

    assert "tools: ask" in shown
    assert "succeeded payments" in shown


def test_mcp_client_shows_why_the_server_refuses(tmp_path: Path) -> None:
    shown = refused_example("mcp_client.py", "What failed?", "/etc/passwd", cwd=tmp_path)

    assert "/etc/passwd" in shown
    assert "Traceback" not in shown


def test_record_to_pandas_prints_runs_and_events(tmp_path: Path) -> None:
    model = ScriptedModel([block("FINAL('hello [context.txt:1-1]')")] * 2)
    sonde.ask("What does it say?", "hello there\n", model=model, runs_dir=tmp_path / "runs")

    shown = run_example("record_to_pandas.py", "runs", cwd=tmp_path)

    assert "ask succeeded" in " ".join(shown.split())
    assert "model_replied" in shown


def test_rollouts_writes_conversations_with_rewards(tmp_path: Path) -> None:
    shown = run_example("rollouts.py", "lines.jsonl", "4", cwd=tmp_path)
    lines = [json.loads(each) for each in (tmp_path / "lines.jsonl").read_text().splitlines()]
    roots = [each for each in lines if each["session"] == "root"]

    assert len(shown.splitlines()) == len(roots) == 12
    assert {len(each["turns"]) for each in roots if each["reward"] > 1} == {2}  # looked, then cited
    assert {len(each["turns"]) for each in roots if each["reward"] < 0} == {1}  # guessed
    assert any(each["session"] == "root/1.2" for each in lines)
    assert all(each["messages"][turn["message"]]["role"] == "assistant" for each in lines for turn in each["turns"])
    assert all((tmp_path / each["run"] / "run_record.json").exists() for each in lines)


FOLDED = """
import rollouts, sonde
from sonde.errors import ModelCallFailed
from sonde.testing import ScriptedModel
step = "  First I look.\\n```python\\nprint('x' * 3000)\\n```\\nDone. "
long = ModelCallFailed("the prompt is too long", retryable=False, too_long=True)
model, heard = ScriptedModel([*[step] * 6, long, step, "```python\\nFINAL('x')\\n```"]), rollouts.Conversations()
sonde.ask("What?", "some text here", model=model, citations=False, on_event=heard.hear, in_memory=True)
seen = [[{"role": each.role, "content": each.content} for each in asked.messages] for asked in model.requests]
del seen[6]
told = [talk["messages"][: turn["message"]] for talk in heard.all for turn in talk["turns"]]
print(seen == told, len(heard.all) > 1)
"""


def test_rollouts_hear_every_prompt_as_the_policy_saw_it_also_after_a_fold(tmp_path: Path) -> None:
    (tmp_path / "client.py").write_text(FOLDED)

    shown = run_example(str(tmp_path / "client.py"), cwd=tmp_path, PYTHONPATH=str(EXAMPLES))

    assert shown.strip() == "True True"


def test_web_app_answers_and_refuses(tmp_path: Path) -> None:
    script = "from fastapi.testclient import TestClient; import web_app; c = TestClient(web_app.app); "
    script += "print(c.get('/ask', params={'question': 'What failed?'}).json()); "
    script += "print(c.get('/ask', params={'question': ' '}).status_code)"
    (tmp_path / "client.py").write_text(script)
    reply = block("read_file('app.log', 2, 2)\nFINAL('payments [app.log:2-2]')")

    shown = run_example(
        str(tmp_path / "client.py"), cwd=tmp_path, replies=reply, DOCS=str(logs(tmp_path)), PYTHONPATH=str(EXAMPLES)
    )

    assert "'citations': ['app.log:2-2']" in shown
    assert shown.strip().endswith("422")


GONE = """
import asyncio, web_app
web_app.LOOK_S = 0.01
messages = iter([{"type": "http.request", "body": b""}])
async def receive(): return next(messages, {"type": "http.disconnect"})
async def send(message): print(message)
scope = {"type": "http", "method": "GET", "path": "/ask", "query_string": b"question=What+failed", "headers": []}
try: asyncio.run(web_app.app(scope, receive, send))
except asyncio.CancelledError: print("cancelled")
"""


def test_web_app_stops_a_run_whose_client_is_gone(tmp_path: Path) -> None:
    (tmp_path / "client.py").write_text(GONE)
    with ScriptedServer(block("print(1)"), delay_s=0.1) as server:
        keys = {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "k", "PYTHONPATH": str(EXAMPLES)}
        shown = run_example(str(tmp_path / "client.py"), cwd=tmp_path, DOCS=str(logs(tmp_path)), **keys)

    assert "cancelled" in shown
    assert len(server.requests) < 12
    assert list(tmp_path.glob(".local/state/sonde/runs/*/*/run_record.json"))


@pytest.mark.parametrize(
    "name",
    [
        "batch",
        "command_models",
        "local_server",
        "mcp_client",
        "phoenix_rca",
        "record_to_pandas",
        "rollouts",
        "typed_result",
    ],
)
def test_an_example_without_its_arguments_says_how_it_is_called(name: str, tmp_path: Path) -> None:
    shown = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")], capture_output=True, text=True, cwd=tmp_path, check=False
    )

    assert shown.returncode == 1
    assert f"python examples/{name}.py" in shown.stderr
    assert "Traceback" not in shown.stderr
