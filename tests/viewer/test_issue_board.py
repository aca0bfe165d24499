"""The page over a watch: issues first, what people do about them, health and metrics; and nobody else changes anything."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from cli.cli_program import sonde
from sonde.viewer import ViewerServer
from sonde.viewer.issues import IssueBoard
from sonde.watch.state import WatchState
from watch.watch_scene import Fault, Post, append, traffic

pytestmark = pytest.mark.long

HOSTILE = "<img src=x onerror=alert(1)>"
STOCK = Fault(step="search_stock", text=f"KeyError: 'sku' {HOSTILE}", begin=0, end=1e9, every=4)
CARD = Fault(step="charge_card", text="TimeoutError: bank {n}", begin=900, end=1e9, every=5)


@pytest.fixture
def post(tmp_path: Path) -> Post:
    found = Post(tmp_path)
    append(found.traces, traffic(30, 900, [STOCK]))
    append(found.traces, traffic(30, 900, [STOCK, CARD], begin=900, first=100, release="2.0"))
    found.look(2000)
    return found


@pytest.fixture
def server(post: Post) -> Iterator[ViewerServer]:
    with WatchState(post.folder) as state:
        place = post.watch(state).place
    board = IssueBoard(post.folder, source=place, now=lambda: post.clock.utc().timestamp())
    with ViewerServer((), board=board) as running:
        yield running
    board.close()


def ask(server: ViewerServer, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, str], str]:
    """GET, or POST as our own page does, with other headers where they are given; an empty one is left out."""
    port = int(server.url.rsplit(":", 1)[1].strip("/"))
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    sent: dict[str, str] = {}
    if body is not None:
        assert server.board is not None
        sent = {"Origin": server.url.rstrip("/"), "Content-Type": "application/json", "X-Sonde-Key": server.board.key}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(
        "GET" if body is None else "POST",
        path,
        body=None if body is None else json.dumps(body),
        headers={name: value for name, value in sent.items() if value},
    )
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, text


def data(server: ViewerServer, path: str) -> Any:
    status, _, text = ask(server, path)
    assert status == 200, text
    return json.loads(text)


def test_the_list_has_every_issue_with_its_trend(server: ViewerServer) -> None:
    told = data(server, "/api/issues")

    assert [(each["number"], each["state"]) for each in told["watch"]["issues"]] == [(1, "ongoing"), (2, "ongoing")]
    assert sum(told["watch"]["issues"][1]["trend"]) == 5
    assert told["problem"] == ""


def test_the_list_follows_what_another_program_changes(server: ViewerServer, post: Post) -> None:
    data(server, "/api/issues")
    with WatchState(post.folder) as state:
        state.change("UPDATE issues SET muted = 1 WHERE number = 1")

    assert [each["muted"] for each in data(server, "/api/issues")["watch"]["issues"]] == [False, True]


def test_an_issue_has_its_rate_and_what_changed_around_its_onset(server: ViewerServer) -> None:
    issue = data(server, "/api/issues/2")
    rate = issue["rate_over_time"]

    assert sum(each["hit"] for each in rate) == issue["count"] == 5
    assert rate[0]["hit"] == 0
    assert rate[0]["traces"] > 0
    assert [(each["release"], each["shows_it"], each["suspect"]) for each in issue["changes"]] == [
        ("2.0", True, True),
        ("1.0", False, False),
    ]


def test_the_trace_of_an_issue_that_nobody_investigated_is_read_from_the_source(server: ViewerServer) -> None:
    picture = data(server, "/api/issues/2/look")["trace"]

    assert [each["name"] for each in picture["spans"] if each["status"] == "ERROR"] == ["handle_order", "charge_card"]


def test_attributes_that_set_the_traces_of_an_issue_apart_are_shown(server: ViewerServer) -> None:
    apart = data(server, "/api/issues/2/look")["apart"]

    assert [(each["key"], each["value"], each["share"]) for each in apart] == [("release", "2.0", 1.0)]
    assert apart[0]["before"] < 0.1  # one healthy trace came between the release and the first failure
    assert data(server, "/api/issues/1/look")["apart"] == []


def test_what_sets_an_issue_apart_is_counted_over_its_traces_not_over_a_few_examples(tmp_path: Path) -> None:
    post = Post(tmp_path)
    fault = Fault(step="charge_card", text="TimeoutError: bank {n}", begin=600, end=1e9, every=1)
    append(post.traces, traffic(20, 600, []))
    append(post.traces, traffic(12, 600, [fault], begin=600, first=100, user="vip"))
    append(post.traces, traffic(6, 300, [fault], begin=1200, first=200, user="vip", release="2.0"))
    post.look(2000)
    with WatchState(post.folder) as state:
        place = post.watch(state).place
    board = IssueBoard(post.folder, source=place, now=lambda: post.clock.utc().timestamp())

    look = board.looked(1)
    board.close()

    assert look is not None
    assert [(each["value"], each["share"], each["of"], each["of_before"]) for each in look["apart"]] == [
        ("vip", 1.0, 18, 20)
    ]


def test_a_page_that_was_not_given_the_source_reads_none(post: Post) -> None:
    board = IssueBoard(post.folder)
    assert board.looked(1) is None
    board.close()


def test_people_do_everything_from_the_page(server: ViewerServer) -> None:
    for action, body in (
        ("assign", {"who": "Ada"}),
        ("note", {"text": f"see {HOSTILE}"}),
        ("mute", {}),
        ("mute", {"off": True}),
        ("resolve", {"release": "2.1"}),
        ("reopen", {}),
    ):
        status, _, text = ask(server, f"/api/issues/1/{action}", body)
        assert status == 200, (action, text)
    issue = data(server, "/api/issues/1")
    assert (issue["assignee"], issue["muted"], issue["state"]) == ("Ada", False, "reopened")
    assert issue["notes"][0]["text"] == f"see {HOSTILE}"

    assert json.loads(ask(server, "/api/issues/2/merge", {"into": 1})[2])["number"] == 1
    assert ask(server, "/api/issues/2")[0] == 404
    groups = [each["id"] for each in data(server, "/api/issues/1")["signatures"]]
    assert ask(server, "/api/issues/1/split", {"group": groups[1]})[0] == 200
    assert [each["number"] for each in data(server, "/api/issues")["watch"]["issues"]] == [1, 3]


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": "http://127.0.0.1"},
        {"Content_Type": "text/plain"},
        {"Content_Type": ""},
        {"X_Sonde_Key": ""},
        {"X_Sonde_Key": "guess"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Host": "evil.example"},
    ],
)
def test_only_our_own_page_with_the_key_changes_issues(server: ViewerServer, headers: dict[str, str]) -> None:
    assert ask(server, "/api/issues/1/mute", {}, **headers)[0] == 403
    assert data(server, "/api/issues/1")["muted"] is False


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/api/issues/9/mute", {}, 404),
        ("/api/issues/1/burn", {}, 409),
        ("/api/issues/1/merge", {"into": "2"}, 409),
        ("/api/issues/1/merge", {"into": True}, 409),
        ("/api/issues/1/note", {"text": ["x"]}, 409),
        ("/api/issues/1/note", {"text": " "}, 409),
        ("/api/issues/x/note", {"text": "x"}, 409),
        ("/api/runs", {}, 404),
        ("/api/issues/1/note", ["x"], 409),
        ("/api/issues/1/note", {"text": "x" * 100_000}, 413),
    ],
)
def test_a_request_that_makes_no_sense_changes_nothing(server: ViewerServer, path: str, body: Any, status: int) -> None:
    before = data(server, "/api/issues/1")

    assert ask(server, path, body)[0] == status
    assert data(server, "/api/issues/1") == before


def test_the_key_is_in_nothing_that_the_page_serves(server: ViewerServer) -> None:
    assert server.board is not None
    for path in ("/", "/api/issues", "/api/issues/1", "/metrics", "/healthz"):
        assert server.board.key not in ask(server, path)[2]


def test_health_is_bad_when_the_watch_is_stuck_or_far_behind(server: ViewerServer, post: Post) -> None:
    assert ask(server, "/healthz")[::2] == (200, "ok\n")
    post.clock.seconds += 3600
    assert ask(server, "/healthz")[0] == 503
    with WatchState(post.folder) as state:
        state.remember("read_at", post.clock.utc().timestamp())
        assert ask(server, "/healthz")[0] == 200
        state.remember("behind_s", "7200")
        state.remember("outage", "connection refused by /secret/path")
    assert ask(server, "/healthz")[::2] == (503, "2 h behind; the source cannot be read\n")


def test_metrics_have_the_form_of_open_metrics(server: ViewerServer) -> None:
    _, headers, text = ask(server, "/metrics")
    lines = text.splitlines()
    samples = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    kinds = {line.split()[2]: line.split()[3] for line in lines if line.startswith("# TYPE")}

    assert headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert lines[-1] == "# EOF"
    assert text.endswith("\n")
    assert samples["sonde_watch_traces_read_total"] == "60"
    assert samples['sonde_watch_issues{state="ongoing"}'] == "2"
    assert samples["sonde_watch_healthy"] == "1"
    for name in samples:
        base = name.partition("{")[0]
        assert kinds.get(base) == "gauge" or kinds[base.removesuffix("_total")] == "counter"


def test_a_view_without_a_watch_has_no_issues_and_takes_no_changes(tmp_path: Path) -> None:
    with ViewerServer(tmp_path) as plain:
        assert data(plain, "/api/issues") is None
        assert ask(plain, "/healthz")[0] == 404
        assert ask(plain, "/api/issues/1")[0] == 404
        assert "key=" not in plain.own_url


def test_a_port_that_others_could_reach_is_refused(tmp_path: Path) -> None:
    for address in ("0.0.0.0:8080", "x", "127.0.0.1:", "99999999"):
        shown = sonde("watch", "--source", "t.jsonl", "--page", address, "--state", tmp_path / "s", cwd=tmp_path)
        assert shown.returncode == 2, shown.stderr
