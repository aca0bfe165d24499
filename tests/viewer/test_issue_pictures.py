"""The issues of a watch in a real browser: the list, one issue, and what a person does there."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from sonde.viewer import ViewerServer
from sonde.viewer.issues import IssueBoard
from sonde.watch.state import WatchState
from viewer.test_issue_board import CARD, HOSTILE, STOCK
from watch.watch_scene import Post, append, traffic

HERE = Path(__file__).resolve()
TOOLS = HERE.parents[2] / ".tools" / "browser"


@pytest.mark.browser
@pytest.mark.skipif(shutil.which("chromium") is None or not TOOLS.is_dir(), reason="sh scripts/browser.sh")
def test_issues_in_a_browser(tmp_path: Path) -> None:
    post = Post(tmp_path)
    append(post.traces, traffic(30, 900, [STOCK]))
    append(post.traces, traffic(30, 900, [STOCK, CARD], begin=900, first=100, release="2.0"))
    with post.traces.open("a") as file:
        file.write("not a span\n")
    post.look(2000)
    with WatchState(post.folder) as state:
        watching = post.watch(state)
        place = watching.place
        watching.end()
    post.clock.seconds += 7
    board = IssueBoard(post.folder, source=place, now=lambda: post.clock.utc().timestamp())
    with ViewerServer((), board=board) as server:
        script = HERE.parent / "issues.mjs"
        done = subprocess.run(
            ["node", script, server.own_url, tmp_path, TOOLS], capture_output=True, text=True, timeout=300, check=False
        )
    board.close()

    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["problems"] == []
    assert seen["foreign"] == []
    for look in seen["looks"]:
        assert look["fits"]
        assert look["front"][0].startswith("1  search_stock") or look["front"][0].startswith("2  charge_card")
        assert look["sparks"] == 2
        assert look["said"][0] == "The watch is not running: it ended 7 s ago."
        assert look["said"][1].startswith("Gap: 1 malformed record")
        assert "charge_card" in look["failed"]
        assert look["suspects"] == 1
        assert HOSTILE in look["hostile"]
    assert seen["address"].endswith("#/issue/1")  # without the key
    assert seen["noted"] == [f"see {HOSTILE}"]
    assert seen["live"] == "resolved"
    assert seen["stranger"] == 0
