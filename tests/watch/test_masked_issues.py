"""People's data in traces that are watched: with --mask neither the state nor the page nor an MCP client has it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from watch_scene import Fault, Json, Post, append, trace

from sonde.api.launch import mask_of
from sonde.server.mcp import Tools
from sonde.viewer.issues import IssueBoard
from sonde.watch.state import WatchState, state_place

pytestmark = pytest.mark.hostile
BEFORE = Fault(step="charge_card", text="KeyError: no account of n{n}.person@corp.example", begin=0, end=1e9)


def told(post: Post, first: int, begin: float) -> None:
    """Ten failed traces, each of another person, who is named wherever a trace names something."""
    rows: list[list[Json]] = []
    for number in range(first, first + 10):
        person = f"n{number}.person@corp.example"
        spans = trace(number, begin + number, BEFORE, user=person, release=f"r {person}")
        for span in spans:
            span["attributes"] |= {"session.id": person, "note": person}
            span["name"] += " for team.person@corp.example"
        rows.append(spans)
    append(post.traces, rows)


def written(folder: Path) -> str:
    return "".join(file.read_bytes().decode("latin-1") for file in folder.rglob("*") if file.is_file())


def shown(post: Post, board: IssueBoard) -> str:
    """All that the page and an MCP client get."""
    tools = Tools(post.settings(), post.path)
    calls = [asyncio.run(tools.issues(number=number)) for number in (None, 1)]
    pages: list[Any] = [board.listed()["watch"], board.issue(1), board.looked(1)]
    return "".join([*(each.model_dump_json() for each in calls), *(str(bytes(pages[0])), json.dumps(pages[1:]))])


def test_the_state_of_a_masked_watch_holds_no_values_and_knows_its_issues_after_a_restart(tmp_path: Path) -> None:
    post = Post(tmp_path, flags={"mask": True})
    told(post, 1, 0)
    assert post.look(300) == ["new 1"]
    told(post, 11, 300)
    post.look(600)

    (issue,) = post.issues().values()
    assert "person" not in written(post.folder)
    assert issue.title == "charge_card for <email>: KeyError: no account of <email>"
    assert issue.users == 20, "people are told apart"


@pytest.mark.parametrize("masked_watch", [True, False])
def test_the_page_and_an_mcp_client_show_placeholders_whoever_has_written_the_state(
    tmp_path: Path, masked_watch: bool
) -> None:
    post = Post(tmp_path, flags={"mask": masked_watch})
    told(post, 1, 0)
    with WatchState(post.folder, create=True) as state:
        place = post.watch(state).place
    post.look(300)
    assert ("person@" in written(post.folder)) is not masked_watch
    post.flags["mask"] = True
    there = state_place(post.settings(), None)
    there.parent.mkdir(parents=True, exist_ok=True)
    there.symlink_to(post.folder)
    board = IssueBoard(post.folder, source=place, mask=mask_of(post.settings()))
    try:
        text = shown(post, board)
    finally:
        board.close()

    assert "charge_card for <email>" in text
    assert "person" not in text
