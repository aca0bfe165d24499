"""The MCP server, driven by the client of the official SDK: in the same process, and over the pipes of a real one."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from sonde.api.ask_run import ask
from sonde.api.settings import Settings
from sonde.models.base import ModelRequest
from sonde.server.mcp import WORK, build
from sonde.testing import ScriptedModel

READ = '```python\nprint(read_file("notes.txt"))\n```'
FINISH = '```python\nadd_citation("notes.txt", 2, 2)\nFINAL("The service is payments. [notes.txt:2-2]")\n```'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "notes.txt").write_text("first line\nservice: payments\n")
    (tmp_path / ".env").write_text("KEY=1\n")
    return tmp_path


def settings(folder: Path) -> Settings:
    return Settings(runs_dir=folder / "runs")


def call(folder: Path, model: ScriptedModel, tool: str, told: list[str] | None = None, **arguments: Any) -> Any:
    async def go() -> Any:
        async def note(progress: float, total: float | None, message: str | None) -> None:
            if told is not None:
                told.append(message or "")

        async with Client(build(settings(folder), folder, model)) as client:
            return await client.call_tool(tool, arguments, progress_callback=note)

    return asyncio.run(go())


def test_the_tools_have_names_descriptions_and_schemas(folder: Path) -> None:
    async def go() -> Any:
        async with Client(build(settings(folder), folder)) as client:
            return (await client.list_tools()).tools

    tools = {tool.name: tool for tool in asyncio.run(go())}
    assert set(tools) == {"ask", "rca", "comply", "incident", "runs", "issues", "change_issue"}
    assert tools["ask"].input_schema["required"] == ["question"]


def test_ask_returns_the_cited_answer_and_the_path_of_the_run(folder: Path) -> None:
    told: list[str] = []

    result = call(
        folder,
        ScriptedModel([READ, FINISH], cost_usd=None),
        "ask",
        told,
        question="Which service?",
        paths=["notes.txt"],
    )

    found = result.structured_content
    assert found["status"] == "succeeded"
    assert found["citations"][0]["path"].endswith("notes.txt")
    assert Path(found["run_dir"], "run_record.json").is_file()
    assert any("turn" in message for message in told)
    assert found["usage"]["cost_usd"] is None and found["usage"]["unpriced"] == 2


def test_a_cited_file_is_named_from_the_folder_of_the_server_and_one_path_needs_no_list(folder: Path) -> None:
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "notes.txt").rename(folder / "deep" / "er" / "notes.txt")

    result = call(folder, ScriptedModel([READ, FINISH]), "ask", question="Which service?", paths="deep/er")

    cited = result.structured_content["citations"][0]
    assert (cited["path"], cited["file"]) == ("notes.txt", "deep/er/notes.txt")


def test_a_question_about_nothing_asks_no_model(folder: Path) -> None:
    model = ScriptedModel([FINISH])

    result = call(folder, model, "ask", question="Which service?")

    assert result.is_error and "give paths" in result.content[0].text and not model.requests


def test_a_model_that_calls_gets_the_placeholders_of_a_masked_run(folder: Path) -> None:
    (folder / "notes.txt").write_text("first line\nservice of jane@corp.com\n")
    model = ScriptedModel([READ, 'FINAL("It is <email-1>. [notes.txt:2]")'])

    async def go() -> Any:
        async with Client(build(replace(settings(folder), mask=True), folder, model)) as client:
            return await client.call_tool("ask", {"question": "Whose?", "paths": ["notes.txt"]})

    found = asyncio.run(go()).structured_content
    assert found["text"] == "It is <email-1>. [notes.txt:2]"
    assert "jane" not in str(found)


def test_ask_takes_a_source_of_traces_and_a_follow_up_reads_it_again(folder: Path) -> None:
    row: dict[str, Any] = {
        "trace_id": "a" * 32,
        "span_id": "1" * 16,
        "parent_id": None,
        "name": "pay",
        "status_code": "ERROR",
    }
    row |= {"start_time": 1_767_225_600_000_000_000, "end_time": 1_767_225_601_000_000_000, "attributes": {}}
    (folder / "traces.jsonl").write_text(f"{json.dumps(row)}\n")
    look = f"```python\nprint(get_span('{'1' * 16}'))\n```"
    finish = f"```python\nFINAL('pay fails [span:{'1' * 16}]')\n```"

    first = call(folder, ScriptedModel([look, finish]), "ask", question="What fails?", source="traces.jsonl")
    second = call(folder, ScriptedModel([look, finish]), "ask", question="Sure?", continue_from="last")
    outside = call(folder, ScriptedModel([]), "ask", question="What fails?", source="/etc/passwd")
    elsewhere = call(folder, ScriptedModel([]), "ask", question="What fails?", source="http://127.0.0.1:9/")

    for found in (first.structured_content, second.structured_content):
        assert (found["status"], found["citations"][0]["ref"]) == ("succeeded", "1" * 16)
    assert outside.is_error and "is outside" in outside.content[0].text
    assert elsewhere.is_error and "not the configured server" in elsewhere.content[0].text


def test_every_parameter_of_ask_is_described(folder: Path) -> None:
    async def go() -> Any:
        async with Client(build(settings(folder), folder)) as client:
            return (await client.list_tools()).tools

    for tool in asyncio.run(go()):
        undescribed = [name for name, row in tool.input_schema["properties"].items() if not row.get("description")]
        assert undescribed == [], tool.name


def test_ask_takes_a_schema_and_limits(folder: Path) -> None:
    finish = READ.replace('print(read_file("notes.txt"))', 'FINAL({"service": "payments"})')
    model = ScriptedModel([READ, finish])
    form = {"type": "object", "properties": {"service": {"type": "string"}}, "required": ["service"]}
    asked: dict[str, Any] = {"question": "Which service?", "paths": ["notes.txt"], "schema": form}

    shaped = call(folder, model, "ask", **asked, max_iterations=7, max_wall_time_sec=300)
    refused = call(folder, model, "ask", **asked, max_cost_usd=900.0)

    assert shaped.structured_content["value"] == {"service": "payments"}
    record = json.loads((Path(shaped.structured_content["run_dir"]) / "run_record.json").read_text())
    assert record["runtime_ref"]["budget"]["max_iterations"] == 7
    assert refused.is_error and "more than the 1.0 that the user allows" in refused.content[0].text


def test_ask_reads_source_code_by_its_symbols(folder: Path) -> None:
    (folder / "shop.py").write_text("def pay(order):\n    return order\n")
    model = ScriptedModel(["```python\nFINAL('pay')\n```"] * 9)

    call(folder, model, "ask", question="What pays?", paths=["shop.py"], code=True)

    assert "nav_outline" in str(model.requests[0].messages)


def test_ask_follows_up_on_an_earlier_run_of_this_folder_only(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "salary.txt"
    elsewhere.write_text("the salary is 4242\n")
    first = call(folder, ScriptedModel([READ, FINISH]), "ask", question="Which service?", paths=["notes.txt"])
    model = ScriptedModel([READ, FINISH])

    again = call(folder, model, "ask", question="Are you sure?", paths=[], continue_from="last")
    ask("What is it?", elsewhere, model=None, settings=settings(folder))
    refused = call(folder, model, "ask", question="What was it?", paths=[], continue_from="last")

    assert first.structured_content["status"] == again.structured_content["status"] == "succeeded"
    assert "Which service?" in str(model.requests[0].messages)
    assert refused.is_error and "4242" not in refused.content[0].text


@pytest.mark.parametrize("kept", [True, False])
def test_ask_follows_no_run_that_continues_one_of_another_folder(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, *, kept: bool
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "salary.txt"
    elsewhere.write_text("the salary is 4242\n")
    model = ScriptedModel(
        ["```python\nsalary = read_file('salary.txt')\n```", "```python\nFINAL('x [salary.txt:1]')\n```"]
    )
    first = ask("What is it?", elsewhere, model=model, settings=settings(folder))
    again = ScriptedModel([READ, FINISH])
    second = ask("And here?", folder / "notes.txt", model=again, continue_from=first.run_dir, settings=settings(folder))
    assert first.run_dir is not None and second.run_dir is not None
    if not kept:
        shutil.rmtree(first.run_dir)
    client = ScriptedModel(["```python\nprint(salary)\n```", FINISH])

    for paths in ([], ["notes.txt"]):
        refused = call(folder, client, "ask", question="How much?", paths=paths, continue_from=second.run_dir.name)
        assert refused.is_error and "4242" not in refused.content[0].text
        assert ("is outside" if kept else first.run_dir.name) in refused.content[0].text
    assert client.requests == []


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "~/.ssh", ".env"])
def test_files_outside_the_folder_and_secrets_are_refused(folder: Path, path: str) -> None:
    result = call(folder, ScriptedModel([FINISH]), "ask", question="?", paths=[path])

    assert result.is_error
    assert path in result.content[0].text  # in words that the client's model can act on


SPAN = {
    "trace_id": "t1",
    "span_kind": "TOOL",
    "start_time": "2026-01-01T00:00:00Z",
    "end_time": "2026-01-01T00:00:01Z",
}


@pytest.mark.parametrize(
    ("tool", "arguments", "field"),
    [
        ("rca", {"trace_id": "t1"}, "primary_label"),
        ("comply", {"trace_id": "t1"}, "overall_verdict"),
        ("incident", {"start": "2026-01-01T00:00:00Z", "end": "2026-01-02T00:00:00Z"}, "hypotheses"),
    ],
)
def test_traces_are_investigated_with_evidence(folder: Path, tool: str, arguments: dict[str, Any], field: str) -> None:
    spans = [
        SPAN | {"span_id": "a", "name": "agent.run", "span_kind": "AGENT", "status_code": "OK"},
        SPAN
        | {"span_id": "b", "parent_id": "a", "name": "search", "status_code": "ERROR", "status_message": "timeout"},
    ]
    (folder / "traces.jsonl").write_text("".join(json.dumps(span) + "\n" for span in spans))

    result = call(folder, ScriptedModel([]), tool, source="traces.jsonl", **arguments)

    found = result.structured_content
    assert found["status"] in ("succeeded", "partial"), found
    assert field in found["report"]
    assert found["citations"]


def test_runs_are_listed_and_shown(folder: Path) -> None:
    call(folder, ScriptedModel([READ, FINISH]), "ask", question="Which service?", paths=["notes.txt"])

    listed = call(folder, ScriptedModel([]), "runs").structured_content["runs"]
    assert [row["status"] for row in listed] == ["succeeded"]
    shown = call(folder, ScriptedModel([]), "runs", run="last").structured_content
    assert "payments" in shown["summary"]


def test_the_server_hears_its_client_while_runs_are_listed(folder: Path) -> None:
    reading: list[str] = []

    class Watched(Settings):
        def run_places(self) -> list[Path]:
            reading.append(threading.current_thread().name)
            return [folder / "runs"]

    async def go() -> None:
        async with Client(build(Watched(), folder)) as client:
            await client.call_tool("runs", {})
            await client.call_tool("runs", {"run": "none"})

    asyncio.run(go())

    assert reading == [WORK, WORK]


def test_a_run_stops_when_the_client_cancels(folder: Path) -> None:
    asked, stopped = threading.Event(), threading.Event()

    def answer(request: ModelRequest) -> str:
        asked.set()
        return "```python\nprint(1)\n```"

    async def go() -> None:
        async with Client(build(settings(folder), folder, ScriptedModel(answer))) as client:
            task = asyncio.create_task(client.call_tool("ask", {"question": "?", "paths": ["notes.txt"]}))
            await asyncio.to_thread(asked.wait, 60)
            task.cancel()
            await asyncio.wait([task])
            await asyncio.to_thread(_wait_for_the_end, folder / "runs", stopped)

    asyncio.run(go())
    assert stopped.is_set()


def _wait_for_the_end(runs: Path, stopped: threading.Event) -> None:
    pause = threading.Event()
    for _ in range(1200):
        if any(runs.glob("*/run_record.json")):
            stopped.set()
            return
        pause.wait(0.05)


@pytest.mark.long
def test_the_real_server_answers_over_its_pipes(folder: Path) -> None:
    model = f"command:{sys.executable} {Path(__file__).parent / 'mcp_model.py'}"
    arguments = ["-m", "sonde", "serve", "--mcp", "--model", model, "--runs-dir", str(folder / "runs")]

    async def go() -> Any:
        server = StdioServerParameters(command=sys.executable, args=arguments, cwd=folder)
        async with Client(server) as client:
            return await client.call_tool("ask", {"question": "Which service?", "paths": ["notes.txt"]})

    assert asyncio.run(go()).structured_content["text"].startswith("The service is payments")
