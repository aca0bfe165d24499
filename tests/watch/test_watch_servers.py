"""Other doors of a watch: a server of traces that fails for a while, and issues over MCP."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from engines.phoenix_double import PhoenixDouble
from sonde.api.settings import resolve
from sonde.api.trace_source import Source
from sonde.server.mcp import build
from sonde.watch.loop import TraceWatch
from sonde.watch.state import WatchState, state_place
from watch.watch_scene import Fault, Post, append, traffic

pytestmark = pytest.mark.long

STOCK = Fault(step="search_stock", text="KeyError: 'sku' in row {n}", begin=0, end=1e9)


@pytest.mark.long
def test_a_phoenix_server_that_fails_for_a_while_is_caught_up_with(tmp_path: Path) -> None:
    post = Post(tmp_path)
    first, later = (traffic(20, 120, [STOCK], begin=at, first=1 + at) for at in (0, 600))
    with (
        PhoenixDouble([span for spans in first for span in spans]) as server,
        WatchState(post.folder, create=True) as state,
    ):
        watching = TraceWatch(
            state=state,
            place=Source(source=server.url, project="shop"),
            settings=post.settings(),
            options=post.options,
            clock=post.clock,
        )
        post.clock.seconds = 300
        before = watching.turn()
        server.rows += PhoenixDouble([span for spans in later for span in spans]).rows
        server.dead = True
        post.clock.seconds = 900
        away = watching.turn()
        server.dead = False
        after = watching.turn()

    assert (before.traces, before.failed) == (20, 10)
    assert away.outage
    assert away.behind_s == 600
    assert (after.traces, after.failed, after.outage) == (20, 10, "")
    assert post.issues()[1].count == 20


def test_an_agent_lists_shows_and_with_permission_changes_issues_over_mcp(tmp_path: Path) -> None:
    post = Post(tmp_path)
    append(post.traces, traffic(12, 60, [STOCK]))
    settings = resolve({}, {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}, tmp_path)
    place = state_place(settings, None)
    place.parent.mkdir(parents=True)
    post.folder.symlink_to(place)
    place.mkdir()
    post.look(500)

    async def go() -> list[Any]:
        async with (
            Client(build(settings, tmp_path)) as client,
            Client(build(settings, tmp_path, writeback=True)) as allowed,
        ):
            tools = {tool.name: tool.annotations for tool in (await client.list_tools()).tools}
            return [
                tools,
                await client.call_tool("issues", {}),
                await client.call_tool("issues", {"number": 1}),
                await client.call_tool("change_issue", {"number": 1, "change": "mute"}),
                await allowed.call_tool("change_issue", {"number": 1, "change": "resolve", "value": "2.0"}),
                await client.call_tool("issues", {}),
            ]

    tools, listed, shown, refused, resolved, empty = asyncio.run(go())

    assert tools["issues"].read_only_hint
    assert not tools["change_issue"].read_only_hint
    assert listed.structured_content["issues"][0]["traces"] == 6
    assert shown.structured_content["issues"][0]["signatures"][0]["component"] == "search_stock"
    assert refused.is_error
    assert resolved.structured_content["issues"][0]["state"] == "resolved"
    assert empty.structured_content["issues"] == []
