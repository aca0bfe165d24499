"""An MCP client whose model was talked into something: it gets no key sent away and reads nothing elsewhere."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from sonde.api.ask_run import ask
from sonde.api.settings import Settings
from sonde.server.mcp import build
from sonde.testing import ScriptedModel, ScriptedServer

KEY = "phoenix-key-never-send-away"


def call(folder: Path, settings: Settings, tool: str, **arguments: Any) -> Any:
    async def go() -> Any:
        async with Client(build(settings, folder)) as client:
            return await client.call_tool(tool, arguments)

    return asyncio.run(go())


def answered(folder: Path, runs: Path) -> Path:
    (folder / "a.txt").write_text("one\n")
    model = ScriptedModel(["FINAL('x')"])
    run = ask("?", folder / "a.txt", model=model, settings=Settings(), runs_dir=runs).run_dir
    assert run is not None
    return run


@pytest.mark.parametrize("tool", ["rca", "comply", "incident"])
@pytest.mark.parametrize("scheme", ["http", "HTTP"])
def test_the_users_key_goes_to_no_server_that_the_client_names(tmp_path: Path, tool: str, scheme: str) -> None:
    mine = Settings(runs_dir=tmp_path / "runs", environ={"PHOENIX_API_KEY": KEY})
    more = {} if tool == "incident" else {"trace_id": "t"}
    with ScriptedServer() as server:
        port = server.base_url.split(":")[2]
        result = call(tmp_path, mine, tool, source=f"{scheme}://127.1:{port}", **more)

        assert result.is_error
        assert server.connections == 0


def test_runs_elsewhere_are_not_shown(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    run = answered(tmp_path, tmp_path / "elsewhere")

    result = call(tmp_path / "here", Settings(runs_dir=tmp_path / "here/runs"), "runs", run=str(run))

    assert result.is_error


def test_a_summary_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    run = answered(tmp_path, tmp_path / "runs")
    (tmp_path / "private").write_text(KEY)
    (run / "summary.md").unlink()
    (run / "summary.md").symlink_to(tmp_path / "private")

    result = call(tmp_path, Settings(runs_dir=tmp_path / "runs"), "runs", run="last")

    assert not result.is_error
    assert KEY not in str(result)


@pytest.mark.parametrize("tool", ["rca", "comply", "incident"])
def test_annotations_are_written_only_if_the_user_started_the_server_so(tmp_path: Path, tool: str) -> None:
    mine = Settings(runs_dir=tmp_path / "runs", source="http://127.0.0.1:1")
    more = {} if tool == "incident" else {"trace_id": "t"}

    result = call(tmp_path, mine, tool, source="http://127.0.0.1:1", writeback=True, **more)

    assert result.is_error and "--writeback" in result.content[0].text
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["pipe", "link", "folder/pipe"])
def test_a_pipe_is_an_error_at_once(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "folder/pipe")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")

    result = call(tmp_path, Settings(runs_dir=tmp_path / "runs"), "ask", question="?", paths=[name])

    assert result.is_error and "pipe" in result.content[0].text


@pytest.mark.parametrize(
    "name", ["other", "..", ".", "{runs}/other", "{runs}/..", "{runs}/../runs/other", "runs/other"]
)
def test_a_run_that_lies_in_the_working_folder_or_above_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    run = answered(tmp_path, tmp_path / "elsewhere")
    here = run / "here"
    here.mkdir()
    (here / "other").symlink_to(run)
    (here / "events.jsonl").write_bytes((run / "events.jsonl").read_bytes())
    (here / "runs").mkdir()
    (here / "runs/other").symlink_to(run)
    monkeypatch.chdir(here)

    for shown in (name, None):
        asked = {"run": shown.replace("{runs}", str(here / "runs"))} if shown else {}
        result = call(here, Settings(runs_dir=here / "runs"), "runs", **asked)
        assert result.is_error or result.structured_content["runs"] == []


@pytest.mark.parametrize("source", ["langfuse:http://127.0.0.1:1", "langsmith:http://127.0.0.1:1"])
def test_annotations_are_not_written_to_a_server_that_is_only_read(tmp_path: Path, source: str) -> None:
    mine = Settings(runs_dir=tmp_path / "runs", source=source)

    async def asked() -> Any:
        async with Client(build(mine, tmp_path, writeback=True)) as client:
            return await client.call_tool("rca", {"trace_id": "t", "source": source, "writeback": True})

    result = asyncio.run(asked())

    assert result.is_error and "Phoenix only" in result.content[0].text
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("writeback", [False, True])
def test_tools_say_truthfully_what_they_do(tmp_path: Path, writeback: bool) -> None:
    async def go() -> Any:
        async with Client(build(Settings(), tmp_path, writeback=writeback)) as client:
            return (await client.list_tools()).tools

    tools = {tool.name: tool for tool in asyncio.run(go())}

    hints = {name: tool.annotations.model_dump(exclude={"title"}) for name, tool in tools.items()}
    asks = {"read_only_hint": False, "destructive_hint": False, "idempotent_hint": False, "open_world_hint": True}
    assert hints["ask"] == asks
    assert hints["rca"] == hints["comply"] == hints["incident"] == {**asks, "destructive_hint": writeback}
    assert hints["runs"] == {
        "read_only_hint": True, "destructive_hint": False, "idempotent_hint": True, "open_world_hint": False,
    }  # fmt: skip
    for tool in tools.values():
        assert all(each.get("description") for each in tool.input_schema["properties"].values()), tool.name
