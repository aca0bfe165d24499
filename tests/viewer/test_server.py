"""The viewer's server: loopback, our own files and runs only, and nothing that a hostile run or page could use."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from runs.streams import SOURCE, Teller, TickingClock, write_long_story, write_story
from sonde.core.events import Noted
from sonde.runs.recorder import Recorder
from sonde.runs.rundir import RunDir
from sonde.viewer import ViewerServer
from sonde.viewer.server import STATIC


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ViewerServer]:
    source = tmp_path / "repo"
    (source / "src").mkdir(parents=True)
    (source / "src" / "fetch.py").write_text(SOURCE)
    write_story(tmp_path / "runs", "a", root=source)
    (tmp_path / "runs" / "secret.txt").write_text("outside any run")
    (tmp_path / "secret.txt").write_text("outside")
    with ViewerServer(tmp_path / "runs", within=lambda _run: ["/"]) as running:
        yield running


def ask(
    server: ViewerServer, path: str, method: str = "GET", host: str | None = None
) -> tuple[int, dict[str, str], bytes]:
    address = urlsplit(server.url)
    connection = HTTPConnection("127.0.0.1", address.port or 0, timeout=60)
    connection.putrequest(method, path, skip_host=host is not None)
    if host is not None and host:
        connection.putheader("Host", host)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, body


def data(server: ViewerServer, path: str) -> Any:
    status, _, body = ask(server, path)
    assert status == 200, body
    return json.loads(body)


def test_it_listens_on_loopback_only(server: ViewerServer) -> None:
    assert server._http.socket.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "", "127.0.0.1", "127.0.0.1.evil.example"])
def test_a_request_for_another_name_is_refused(server: ViewerServer, host: str) -> None:
    status, _, body = ask(server, "/api/runs", host=host)

    assert status == (403 if host else 400) and b"fetch" not in body


def test_localhost_is_a_name_too(server: ViewerServer) -> None:
    assert ask(server, "/", host=f"localhost:{urlsplit(server.url).port}")[0] == 200


@pytest.mark.parametrize("path", ["/", "/app.js", "/api/runs", "/api/runs/nosuch/events", "/nothing"])
def test_every_answer_carries_the_policy(server: ViewerServer, path: str) -> None:
    _, headers, _ = ask(server, path)

    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy
    assert "unsafe" not in policy and "http" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_only_get_is_answered(server: ViewerServer, method: str) -> None:
    assert ask(server, "/api/runs", method)[0] == 405


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.txt",
        "/..%2fsecret.txt",
        "/%2e%2e/secret.txt",
        "/static/../server.py",
        "/server.py",
        "/__init__.py",
        "//etc/passwd",
        "/api/runs/../secret.txt",
        f"/api/runs/{quote('../..', safe='')}/events",
        f"/api/runs/{quote('/etc', safe='')}/events",
        f"/api/runs/{quote('a/../a', safe='')}/events",
        "/api/runs/./events",
        "/api/runs/%00/events",
        "/api/runs//events",
        "/api/compare/a/..",
        "/api/nothing",
    ],
)
def test_no_path_leads_out(server: ViewerServer, path: str) -> None:
    status, _, body = ask(server, path)

    assert status == 404 and b"outside" not in body and b"root:" not in body


def test_runs_and_their_events_are_served(server: ViewerServer) -> None:
    (run,) = data(server, "/api/runs")
    news = data(server, "/api/runs/a/events")

    assert run["run_id"] == "a"
    assert news["total"] == len(news["events"]) > 80
    assert not news["running"] and news["tampered_line"] is None


def test_only_what_is_new_is_sent_again(server: ViewerServer) -> None:
    total = data(server, "/api/runs/a/events")["total"]

    assert len(data(server, f"/api/runs/a/events?after={total - 3}")["events"]) == 2
    assert data(server, f"/api/runs/a/events?after={total + 50}")["events"] == []


@pytest.mark.parametrize("query", ["after=x", "after=1e9", "after="])
def test_a_number_that_is_none_is_refused(server: ViewerServer, query: str) -> None:
    status, _, body = ask(server, f"/api/runs/a/events?{query}")

    assert status in (200, 409) and (status == 200) == (query == "after=")
    assert b"Traceback" not in body


def test_whole_events_come_by_number(server: ViewerServer) -> None:
    events = data(server, "/api/runs/a/full?n=0,5,999999,-1")

    assert [event["n"] for event in events] == [0, 5]
    assert events[0]["type"] == "run_started"


def test_excerpts_are_read_again_only_where_the_hash_fits(server: ViewerServer, tmp_path: Path) -> None:
    before = data(server, "/api/runs/a/excerpts")
    (tmp_path / "repo" / "src" / "fetch.py").write_text(SOURCE.replace("RETRIES = 3", "RETRIES = 4"))
    after = data(server, "/api/runs/a/excerpts")

    assert [each["state"] for each in before] == ["verified", "verified"]
    assert before[0]["text"] == "RETRIES = 3\nBACKOFF_S = 0.5"
    assert [each["state"] for each in after] == ["changed", "verified"]
    assert "RETRIES = 4" not in json.dumps(after)


def test_two_runs_are_compared(server: ViewerServer, tmp_path: Path) -> None:
    write_story(tmp_path / "runs", "b", root=tmp_path / "repo")

    assert data(server, "/api/compare/a/b")["equal"]


def test_a_named_run_outside_the_folder_is_shown_and_no_other(tmp_path: Path) -> None:
    named = write_story(tmp_path / "elsewhere", "x")
    write_story(tmp_path / "elsewhere", "y")
    with ViewerServer(tmp_path / "runs", named=[named]) as server:
        assert [run["run_id"] for run in data(server, "/api/runs")] == ["x"]
        assert ask(server, "/api/runs/y/events")[0] == 404


def test_a_run_that_goes_on_is_followed(server: ViewerServer, tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "runs", "live")
    journal = run.journal()
    recorder = Recorder(TickingClock(), journal)
    Teller(recorder).start("live", "A question")
    first = data(server, "/api/runs/live/events")
    recorder.emit(Noted(text="news"))
    second = data(server, f"/api/runs/live/events?after={first['total'] - 1}")
    journal.close()
    last = data(server, "/api/runs/live/events?after=99")

    assert first["running"] and second["running"] and not last["running"]
    assert [event["text"] for event in second["events"]] == ["news"]


def test_a_newer_run_is_refused_with_words(server: ViewerServer, tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "runs", "newer")
    journal = run.journal()
    Teller(Recorder(TickingClock(), journal)).start("newer", "?", schema_version="7.0.0")
    journal.close()

    status, _, body = ask(server, "/api/runs/newer/events")

    assert status == 409 and b"7.0.0" in body


@pytest.mark.long
def test_a_long_run_is_served_small(server: ViewerServer, tmp_path: Path) -> None:
    write_long_story(tmp_path / "runs", 10_000)

    _, _, body = ask(server, "/api/runs/run-long/events")

    assert len(body) < 8_000_000


def test_the_page_loads_nothing_from_elsewhere_and_parses_no_markup() -> None:
    texts = {each.name: each.read_text() for each in STATIC.iterdir()}

    for name, text in texts.items():
        addresses = [found for found in re.findall(r"(?:https?:)?//[\w.-]+\.\w+", text) if "www.w3.org" not in found]
        assert addresses == [], name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), (
            name
        )
    assert " style=" not in texts["index.html"] and "onclick=" not in texts["index.html"]
