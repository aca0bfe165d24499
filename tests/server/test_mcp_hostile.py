"""An MCP client whose model was talked into something: it gets no key sent away and reads nothing elsewhere."""

from __future__ import annotations

import asyncio
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
