"""People are told of each change once, whatever happens to the watch, the receiver or the clock, and texts of traces stay data."""

from __future__ import annotations

import importlib
import json
import socket
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cli.cli_program import Shown, sonde
from sonde.core.cancellation import Stop
from sonde.errors import ConfigError
from sonde.watch.lifecycle import mute
from sonde.watch.notices import (
    IssueNotice,
    Messenger,
    NoticeTarget,
    github_issue,
    slack_message,
)
from sonde.watch.state import FILE, WatchState, happened
from watch.notice_receiver import Receiver, Reply
from watch.watch_scene import Fault, Post, append, trace, traffic

pytestmark = pytest.mark.long

TOKEN = "tok-1234567890-abcdef"
STOCK = Fault(step="search_stock", text="KeyError: 'sku' in row {n}", begin=0, end=1e9)
CARD = Fault(step="charge_card", text="Timeout: bank {n} is silent", begin=0, end=1e9)


@pytest.fixture
def post(tmp_path: Path) -> Post:
    found = Post(tmp_path)
    append(found.traces, [trace(1, 0)])
    found.look(0)
    return found


@contextmanager
def messenger(post: Post, target: str, **more: Any) -> Generator[tuple[Messenger, list[str]]]:
    """One that tells only when it is asked to; its clock is the post's."""
    said: list[str] = []
    environ = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "OPENAI_API_KEY": "sk-user-own-key"}
    told = NoticeTarget.of(target, token=more.pop("token", ""), shape=more.pop("shape", None), environ=environ)
    with WatchState(post.folder, create=True) as state:
        yield Messenger(state, told, clock=post.clock, said=said.append, **more), said


def fail(post: Post, *faults: Fault) -> None:
    """Each of these faults makes an issue."""
    for place, fault in enumerate(faults):
        append(post.traces, [trace(100 + place, 10 + place, fault)])
    post.look(200)


def test_a_new_issue_is_told_once(post: Post) -> None:
    with Receiver() as receiver:
        with messenger(post, receiver.url, token=TOKEN) as (told, _):
            fail(post, STOCK, CARD)
            assert [told.tell(), told.tell(), told.tell()] == [True, True, False]
        with messenger(post, receiver.url) as (again, _):
            assert not again.tell()

    assert [body["event"] for body in receiver.bodies] == ["new", "new"]
    assert receiver.bodies[0]["issue"]["title"].startswith("search_stock: KeyError")
    assert receiver.bodies[0]["text"].startswith("issue 1 (new): search_stock: KeyError")
    assert receiver.headers[0]["authorization"] == f"Bearer {TOKEN}"
    assert receiver.headers[0]["idempotency-key"] == receiver.bodies[0]["key"] != receiver.bodies[1]["key"]


def test_a_watch_that_is_killed_while_it_tells_tells_again_with_the_same_key(post: Post) -> None:
    class Killed(BaseException):
        pass

    with Receiver() as receiver:
        with messenger(post, receiver.url) as (told, _):
            fail(post, STOCK)
            send = told._send

            def sent_and_killed(notice: IssueNotice) -> None:
                send(notice)
                raise Killed

            told._send = sent_and_killed  # pyright: ignore[reportAttributeAccessIssue]  # a kill at the worst moment
            with pytest.raises(Killed):
                told.tell()
        with messenger(post, receiver.url) as (again, _):
            assert again.tell()
            assert not again.tell()

    first, second = receiver.bodies
    assert first["key"] == second["key"]
    assert (first["attempt"], second["attempt"]) == (1, 2)


def test_a_receiver_that_is_away_is_tried_again_as_late_as_it_asks(post: Post) -> None:
    with (
        Receiver(Reply(503), Reply(429, {"Retry-After": "90"})) as receiver,
        messenger(post, receiver.url) as (told, said),
    ):
        fail(post, STOCK)
        assert not told.tell()
        assert not told.tell()
        assert len(receiver.bodies) == 1
        post.clock.seconds += 2
        assert not told.tell()
        post.clock.seconds += 89
        assert not told.tell()
        assert len(receiver.bodies) == 2
        post.clock.seconds += 2
        assert told.tell()

    assert len({body["key"] for body in receiver.bodies}) == 1
    assert "503" in said[0]
    assert "again in 90 s" in said[1]


def test_a_receiver_that_hangs_or_is_away_is_named_as_such(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sonde.watch.notices.SEND_S", 0.2)
    heard: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as silent:  # nobody takes the call
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/hook"
        with messenger(post, address) as (told, said):
            fail(post, STOCK)
            told.tell()
            heard += said
    post.clock.seconds += 3600
    with messenger(post, address) as (told, said):
        told.tell()
        heard += said

    assert "it gave no whole answer within 0.2 s" in heard[0]
    assert "nothing could be reached at its address" in heard[1]


def test_a_program_that_hangs_is_ended_and_its_limit_named(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sonde.watch.notices.PROGRAM_S", 0.2)
    with messenger(post, f"{sys.executable} -c 'import time; time.sleep(600)'") as (told, said):
        fail(post, STOCK)
        told.tell()

    assert "it took more than 0.2 s and was ended" in said[0]


def test_a_clock_that_jumps_back_does_not_keep_a_notice_waiting(post: Post) -> None:
    with Receiver(Reply(503)) as receiver, messenger(post, receiver.url) as (told, _):
        fail(post, STOCK)
        told.tell()
        post.clock.seconds -= 86_400
        assert told.tell()


def test_a_body_that_is_refused_for_good_does_not_hold_up_the_next(post: Post) -> None:
    with Receiver(Reply(422, body=b"no such label")) as receiver, messenger(post, receiver.url) as (told, said):
        fail(post, STOCK, CARD)
        assert told.tell()
        assert told.tell()

    assert [body["issue"]["component"] for body in receiver.bodies] == ["search_stock", "charge_card"]
    assert "will not be: 422: no such label" in said[0]


def test_a_muted_issue_is_not_told(post: Post) -> None:
    with Receiver() as receiver, messenger(post, receiver.url) as (told, _):
        fail(post, STOCK)
        with WatchState(post.folder) as state:
            mute(state, 1)
        assert not told.tell()

    assert receiver.bodies == []


def test_what_happened_before_anybody_was_to_be_told_is_not_told(post: Post) -> None:
    fail(post, STOCK)
    with Receiver() as receiver, messenger(post, receiver.url) as (told, _):
        assert not told.tell()


def test_a_digest_tells_all_changes_of_an_hour_together(post: Post) -> None:
    with Receiver() as receiver, messenger(post, receiver.url, digest_s=3600.0) as (told, _):
        fail(post, STOCK)
        assert told.tell()
        append(
            post.traces,
            [trace(300, 300, CARD), trace(301, 301, Fault(step="send_mail", text="no route", begin=0, end=1))],
        )
        post.look(500)
        assert not told.tell()
        post.clock.seconds += 3600
        assert told.tell()
        assert not told.tell()

    (first, second) = receiver.bodies
    assert [event["issue"]["component"] for event in first["events"]] == ["search_stock"]
    assert [event["issue"]["component"] for event in second["events"]] == ["charge_card", "send_mail"]


def test_many_changes_at_once_are_one_message(post: Post) -> None:
    with Receiver() as receiver, messenger(post, receiver.url) as (told, _):
        fail(post, STOCK)
        with WatchState(post.folder) as state, state.transaction():
            for _ in range(99):
                happened(state, 1, "regressed", 0)
        assert told.tell()
        assert not told.tell()

    (body,) = receiver.bodies
    assert body["event"] == "digest"
    assert (len(body["events"]), body["left_out"]) == (50, 50)


def test_a_program_gets_the_issue_on_its_standard_input_and_no_keys(post: Post, tmp_path: Path) -> None:
    script = tmp_path / "tell.py"
    script.write_text("import os, sys; open(sys.argv[1], 'w').write(sys.stdin.read() + str(dict(os.environ)))")
    with messenger(post, f"{sys.executable} {script} '{tmp_path}/told here; $HOME'") as (told, _):
        fail(post, STOCK)
        assert told.tell()

    text = (tmp_path / "told here; $HOME").read_text()
    assert json.loads(text.splitlines()[0])["issue"]["number"] == 1
    assert "sk-user-own-key" not in text


def test_a_program_that_fails_is_tried_again(post: Post) -> None:
    with messenger(post, f"{sys.executable} -c 'import sys; sys.exit(\"no mail today\")'") as (told, said):
        fail(post, STOCK)
        assert not told.tell()

    assert "exit code 1: no mail today" in said[0]


def test_neither_address_nor_token_nor_key_is_in_messages_or_state(post: Post) -> None:
    secretive = Fault(step="send_mail", text="401 with sk-user-own-key", begin=0, end=1e9)
    echo = Reply(500, body=f"/hook/T0P-s3cret-path {TOKEN}".encode())
    with Receiver(echo) as receiver:
        with messenger(post, receiver.url, token=TOKEN, keys=["sk-user-own-key"]) as (told, said):
            fail(post, secretive)
            told.tell()
        left = b"".join(path.read_bytes() for path in post.folder.glob(f"{FILE}*"))

    assert said
    assert "sk-user-own-key" not in json.dumps(receiver.bodies)
    for text in (TOKEN, "T0P-s3cret-path"):
        assert text not in " ".join(said)
        assert text.encode() not in left


@pytest.mark.parametrize(
    "part", ["T0P-s3cret-path", "LASTSEGMENT", "query-value-1", "an other+value", "an+other%2Bvalue", "bare-query-word"]
)
def test_no_part_of_the_address_that_the_receiver_repeats_is_in_messages_or_state(post: Post, part: str) -> None:
    more = "/LASTSEGMENT?key=query-value-1&more=an+other%2Bvalue&bare-query-word"
    with Receiver(Reply(400, body=f"no hook {part} here".encode())) as receiver:
        with messenger(post, receiver.url + more) as (told, said):
            fail(post, STOCK)
            told.tell()
        left = b"".join(path.read_bytes() for path in post.folder.glob(f"{FILE}*"))

    assert "400: no hook" in said[0]
    assert part not in said[0]
    assert part.encode() not in left


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("https://hooks.slack.com/services/T/B/x", "slack"),
        ("https://api.github.com/repos/o/r/issues", "github"),
        ("https://example.org/hook?room=1", "json"),
        ("https://hooks.slack.com.evil.example/services", "json"),
    ],
)
def test_the_shape_follows_from_the_address(text: str, shape: str) -> None:
    assert NoticeTarget.of(text, environ={}).shape == shape


@pytest.mark.parametrize(
    "text",
    [
        "ftp://example.org/x",
        "file:///etc/passwd",
        "https://me:pw@example.org/",
        "https:///x",
        "no-such-program-here",
        "'open",
        "",
    ],
)
def test_what_is_no_address_and_no_program_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        NoticeTarget.of(text, environ={"PATH": "/usr/bin:/bin"})

    assert "pw" not in str(refused.value)


def notice(title: str) -> IssueNotice:
    issue = {
        **dict.fromkeys(("cause", "judge", "first_seen", "last_seen", "assignee"), title),
        **dict.fromkeys(("number", "traces", "rate", "users", "sessions"), 1),
        "title": title,
        "releases": [title],
        "trace_ids": [title],
        "component": title,
    }
    event = {"event": "new", "at": "", "text": f"{title}.", "issue": issue}
    event |= dict.fromkeys(("cause", "extent", "set_apart", "page"), title)
    return IssueNotice(key="k", last=1, attempt=1, events=(event,), left_out=0, together=False, project="p")


def test_a_message_says_how_many_of_how_many_where_since_when_and_what_sets_it_apart(post: Post) -> None:
    with Receiver() as receiver, messenger(post, receiver.url, shape="slack") as (told, _):
        told.page = "http://127.0.0.1:8080/"
        append(post.traces, [trace(number, 60.0 + number, release="1.0") for number in range(10, 20)])
        append(post.traces, [trace(number, 70.0 + number, STOCK, release="2.0") for number in range(20, 24)])
        post.look(300)
        assert told.tell()

    assert receiver.bodies[0]["blocks"][1]["text"]["text"].split("\n") == [
        "cause: tool_failure (by rule)",
        "traces: 4 of 14 traces, first 2026-03-02 09:01:30 UTC, last 2026-03-02 09:01:33 UTC",
        "where: search_stock",
        "affected: 4 users, 4 sessions",
        "releases: only 2.0, not 1.0",
        f"for example: {20:032x}",
        "page: http://127.0.0.1:8080/#/issue/1",
    ]


def test_texts_of_traces_are_no_markup_in_slack() -> None:
    hostile = "<!channel> <https://evil.example|click> @everyone *bold* &lt;!here&gt; " + "x" * 5000
    message = slack_message(notice(hostile))

    assert "<" not in message["text"]
    assert "&amp;lt;!here&amp;gt;" in message["text"]
    assert all(block["text"]["type"] == "plain_text" for block in message["blocks"])
    assert "@everyone" not in json.dumps(message, ensure_ascii=False)
    assert len(message["blocks"][0]["text"]["text"]) <= 150
    assert len(message["blocks"][1]["text"]["text"]) <= 3000


def test_texts_of_traces_are_no_markup_on_github() -> None:
    github: Any = importlib.import_module("cmarkgfm")  # GitHub's own renderer, without types
    hostile = "`` ` @octocat fixes #1 <img src=https://evil.example/x> [a](https://evil.example) ![](https://evil.example) ``` "
    made = github_issue(notice(hostile))
    page: str = github.github_flavored_markdown_to_html(made["body"])

    outside = "".join(part.partition("</code>")[2] for part in ("</code>" + page).split("<code>"))
    for word in ("octocat", "evil", "#1", "<img", "<a "):
        assert word not in outside
    assert len(made["title"]) <= 200


def watched(path: Path, *words: str, **env: str) -> Shown:
    traces = path / "traces.jsonl"
    if not traces.exists():
        append(traces, traffic(30, 1800, [STOCK]))
    return sonde("watch", "--source", traces, "--once", "--state", path / "state", *words, cwd=path, **env)


def test_once_with_fail_on_new_ends_with_three_only_while_issues_are_new(tmp_path: Path) -> None:
    assert watched(tmp_path, "--fail-on", "new").returncode == 3
    assert watched(tmp_path, "--fail-on", "new,regressed").returncode == 0
    assert watched(tmp_path, "--fail-on", "open").returncode == 3
    sonde("issues", "mute", "1", "--state", tmp_path / "state", cwd=tmp_path)
    assert watched(tmp_path, "--fail-on", "open").returncode == 0


def test_once_tells_before_it_ends_and_takes_the_address_from_a_file(tmp_path: Path) -> None:
    with Receiver() as receiver:
        (tmp_path / "hook").write_text(receiver.url + "\n")
        shown = watched(tmp_path, "--on-new-file", str(tmp_path / "hook"), SONDE_ON_NEW_TOKEN=TOKEN)

    assert shown.returncode == 0
    assert [body["event"] for body in receiver.bodies] == ["new"]
    assert receiver.headers[0]["authorization"] == f"Bearer {TOKEN}"
    assert "T0P" not in shown.stdout + shown.stderr
    assert "sets nothing" not in shown.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("--fail-on", "old"),
        ("--digest", "soon", "--on-new", "true"),
        ("--digest", "1h"),
        ("--tell", "everything", "--on-new", "true"),
        ("--on-new", "gopher://example.org"),
        ("--on-new", "true", "--on-new-as", "slack"),
    ],
)
def test_flags_that_make_no_sense_end_with_two(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert watched(tmp_path, *words).returncode == 2


def test_a_stop_ends_a_program_that_hangs(post: Post) -> None:
    stop = Stop()
    script = "import sys, time; sys.stdin.read(); print(flush=True); time.sleep(600)"
    with messenger(post, f"{sys.executable} -c '{script}'", stop=stop) as (told, said):
        fail(post, STOCK)
        stop.set()
        assert not told.tell()

    assert "it was stopped" in said[0]
