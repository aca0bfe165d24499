"""The page over a stranger's state of a watch: it opens nothing that the state names, and no foreign page changes anything."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from victim import Listener, Victim

from sonde.viewer import ViewerServer
from sonde.viewer.issues import IssueBoard
from sonde.watch.issues import known_issues
from sonde.watch.state import WatchState
from watch.watch_scene import Fault, append, traffic

pytestmark = pytest.mark.hostile_long

SECRET = "s3cr3t-words-of-the-victim"
HOSTILE = "</script><img src=x onerror=alert(1)> \x1b]0;owned\x07"


@pytest.fixture
def folder(victim: Victim) -> Path:
    traces = victim.write("traces.jsonl", "")
    append(traces, traffic(12, 1200, [Fault(step="send_mail", text=HOSTILE, begin=0, end=1e9)]))
    done = victim.call("watch", "--source", traces, "--once", "--state", victim.folder / "state", "--min-traces", "1")
    assert done.returncode == 0, done.stderr
    return victim.folder / "state"


def answer(server: ViewerServer, path: str, body: bytes | None = None, **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(server.url.rstrip("/") + path, body, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


def test_a_strangers_state_makes_the_page_open_and_ask_nothing(
    victim: Victim, folder: Path, listener: Listener
) -> None:
    (victim.home / "private").mkdir()
    (victim.home / "private/events.jsonl").write_text(SECRET)
    with WatchState(folder) as state:
        state.remember("source", f"{listener.url}/steal")
        state.change(
            "INSERT INTO investigations VALUES ('f', 1, 'new', ?, 'done', 1, ?, 0, 0, 'LLM', 'x', 1, 'c', '', ?)",
            *("t", f"../../../{victim.home.name}/private", HOSTILE),
        )
        assert known_issues(state, number=1)[0].proof is not None
    board = IssueBoard(folder)
    with ViewerServer((), board=board) as server:
        shown = [answer(server, path) for path in ("/", "/api/issues", "/api/issues/1", "/api/issues/1/look")]
        away = answer(server, f"/api/runs/..%2F..%2F..%2F{victim.home.name}%2Fprivate/events")
    board.close()

    assert [status for status, _ in shown] == [200] * 4
    assert away[0] == 404
    assert SECRET not in str(shown) + str(away)
    assert listener.heard == []
    assert json.loads(shown[3][1]) is None


def test_figures_without_measure_are_answered_at_once(folder: Path) -> None:
    with WatchState(folder) as state, state.transaction():
        state.remember("window", 1 << 61)
        state.remember("every_s", "1e-9")
        state.change("UPDATE hits SET window = window - 9000000000000000000")
        state.change("UPDATE signatures SET first_us = -9000000000000000000")
        state.change_many(
            "INSERT INTO releases VALUES (?, ?)", [(f"r{number}", number << 50) for number in range(5_000)]
        )
    board = IssueBoard(folder)
    with ViewerServer((), board=board) as server:
        status, text = answer(server, "/api/issues/1")
        health = answer(server, "/healthz")
        figures = answer(server, "/metrics")
    board.close()

    assert status in (200, 409)
    assert len(text) < 100_000
    assert health[0] in (200, 503)
    assert figures[1].endswith("# EOF\n")


def test_a_page_of_another_origin_changes_nothing(folder: Path) -> None:
    board = IssueBoard(folder)
    with ViewerServer((), board=board) as server:
        own = server.url.rstrip("/")
        tries = [
            {"Content-Type": "text/plain"},  # what a form or a plain fetch of a foreign page can send
            {"Content-Type": "application/x-www-form-urlencoded", "Origin": "https://evil.example"},
            {"Content-Type": "application/json", "Origin": "https://evil.example", "X-Sonde-Key": board.key},
            {"Content-Type": "application/json", "Origin": "null", "X-Sonde-Key": board.key},
            {"Content-Type": "application/json", "Origin": own, "X-Sonde-Key": ""},
            {"Content-Type": "application/json", "Origin": own, "X-Sonde-Key": board.key[:-1]},
            {"Content-Type": "application/json", "Origin": own, "X-Sonde-Key": board.key, "Host": "evil.example"},
        ]
        refused = [answer(server, "/api/issues/1/mute", b"{}", **headers)[0] for headers in tries]
        muted = json.loads(answer(server, "/api/issues/1")[1])["muted"]
        allowed = {"Content-Type": "application/json", "Origin": own, "X-Sonde-Key": board.key}
        own_page = answer(server, "/api/issues/1/mute", b"{}", **allowed)
    board.close()

    assert refused == [403] * len(tries)
    assert muted is False
    assert own_page[0] == 200
