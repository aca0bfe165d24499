"""Servers of traces that lie: no end of pages, circles, floods, depth, another host. Keys stay here, commands end with one line, and a
run leaves its record.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest
from victim import Listener, Victim, one_in_make_test

from contexts.traces import trace_servers as servers
from contexts.traces.trace_servers import KEYS, PUBLIC, SECRET, Asked, Reply, serving
from journeys.journey import SONDE
from sonde.errors import ToolResponseInvalid
from sonde.phoenix import Annotation, PhoenixClient, PhoenixReads, write_annotations

Json = dict[str, Any]
LIES = (SECRET, servers.KEY, KEYS["PHOENIX_API_KEY"])
HONEST = {"phoenix": servers.phoenix, "langfuse": servers.langfuse, "langsmith": servers.langsmith}
ROOM = {"phoenix": "/v1/projects/shop/", "langfuse": "/api/public/v2/observations", "langsmith": "/api/v1/runs/query"}
TRACE = {
    "phoenix": servers.hex_ids(servers.STEPS[3])[0],
    "langfuse": servers.hex_ids(servers.STEPS[3])[0],
    "langsmith": servers.uuids(servers.STEPS[3])[0],
}


def _page(product: str, rows: list[Json], following: str | None) -> Json:
    match product:
        case "langfuse":
            return {"data": rows, "meta": {"cursor": following} if following else {}}
        case "langsmith":
            return {"runs": rows, "cursors": {"next": following}}
        case _:
            return {"data": rows, "next_cursor": following}


def _lying(product: str, lie: Callable[[Asked], Reply]) -> Callable[[Asked], Reply]:
    """A server that is honest about its projects, and lies about traces."""

    def answer(asked: Asked) -> Reply:
        return lie(asked) if asked.path.startswith(ROOM[product]) else HONEST[product](asked)

    return answer


def _endless(product: str) -> Callable[[Asked], Reply]:
    turns = iter(range(1 << 30))
    return lambda _: (200, _page(product, [], f"page-{next(turns)}"))


WRONG: dict[str, Callable[[str], Callable[[Asked], Reply]]] = {
    "the same page for ever": lambda product: lambda _: (200, _page(product, [], "again")),
    "pages without end": _endless,
    "a cursor too long for an address": lambda product: lambda _: (200, _page(product, [], "x" * 70_000)),
    "half a character for a cursor": lambda product: lambda _: (200, _page(product, [], "\ud800\0\r\nX: y")),
    "a list for a cursor": lambda product: lambda _: (200, _page(product, [], cast("Any", [["x"]]))),
    "a flood": lambda _: lambda _: (200, b'{"data": "' + b"x" * (2 << 20) + b'"}'),
    "values": lambda _: lambda _: (200, b'{"data": [' + b"[]," * 30_000 + b"[]]}"),
    "depth": lambda _: lambda _: (200, b'{"data": ' + b"[" * 200_000),
    "a page of HTML": lambda _: lambda _: (200, "<html><body>Sign in</body></html>"),
    "rows that are none": lambda product: lambda _: (200, _page(product, [{"id": 7}], None)),
    "a trace in place of an observation": lambda product: (
        lambda _: (200, _page(product, [{"observations": [{}, {}]}], None))
    ),
    "no rows": lambda _: lambda _: (200, [1, 2]),
    "times of nowhere": lambda product: lambda _: (200, _page(product, [_broken(product)], None)),
}


def _broken(product: str) -> Json:
    step = servers.STEPS[3]
    match product:
        case "langfuse":
            return servers.langfuse_observation(step) | {"startTime": "yesterday"}
        case "langsmith":
            return servers.langsmith_run(step) | {"start_time": {"$date": 1}}
        case _:
            return servers.phoenix_span(step) | {"start_time": "yesterday"}


@pytest.mark.parametrize("wrong", one_in_make_test(WRONG))
@pytest.mark.parametrize("product", ["langfuse", "langsmith", "phoenix"])
def test_a_run_ends_with_one_line_and_its_record_says_what_the_server_did(
    victim: Victim, monkeypatch: pytest.MonkeyPatch, product: str, wrong: Callable[[str], Callable[[Asked], Reply]]
) -> None:
    monkeypatch.setattr("sonde.trace_client.MAX_PAGES", 30)
    monkeypatch.setattr("sonde.trace_client.MAX_REPLY_BYTES", 1 << 20)
    monkeypatch.setattr("sonde.core.canonical.MAX_JSON_ITEMS", 20_000)
    victim.environ = KEYS
    with serving(_lying(product, wrong(product))) as (url, _):
        place = ("--source", f"{product}:{url}", "--project", servers.PROJECT)
        done = victim.call("rca", TRACE[product], *place, "--runs-dir", victim.own)

    (record,) = victim.own.glob("*/run_record.json")
    assert done.returncode == 1, done.stderr
    assert json.loads(record.read_text())["error"]["code"] == "TOOL_RESPONSE_INVALID"
    assert "Traceback" not in done.stderr
    kept = "".join(path.read_text() for path in record.parent.iterdir() if path.is_file())
    assert not any(secret in done.stdout + done.stderr + kept for secret in LIES)


@pytest.mark.parametrize("product", ["langfuse", "langsmith", "phoenix"])
@pytest.mark.parametrize("status", one_in_make_test({"302": 302, "307": 307, "308": 308}))
def test_no_key_follows_a_redirect_to_another_host(
    victim: Victim, listener: Listener, product: str, status: int
) -> None:
    victim.environ = KEYS
    with serving(lambda asked: (status, "moved", {"location": f"{listener.url}{asked.path}"})) as (url, seen):
        done = victim.call("traces", "ls", "--source", f"{product}:{url}", "--project", servers.PROJECT)

    assert seen and listener.heard == []
    assert done.returncode != 0 and "Traceback" not in done.stderr


@pytest.mark.parametrize("product", ["langfuse", "langsmith", "phoenix"])
def test_each_server_gets_its_own_key_and_repeats_it_in_vain(victim: Victim, product: str) -> None:
    victim.environ = KEYS
    with serving(lambda asked: (403, {"you": asked.headers, "again": f"Basic {PUBLIC}:{SECRET}"})) as (url, seen):
        done = victim.call("traces", "ls", "--source", f"{product}:{url}", "--project", servers.PROJECT)

    others = {"langfuse": LIES[1:], "langsmith": (LIES[0], LIES[2]), "phoenix": LIES[:2]}[product]
    assert seen and not any(secret in str(seen) for secret in others)
    assert done.returncode != 0 and "403" in done.stderr
    mine = next(secret for secret in LIES if secret not in others)
    assert mine not in done.stdout + done.stderr
    assert str(seen[0].headers.get("authorization", "-" * 9)).split()[-1] not in done.stderr


@pytest.mark.parametrize("product", ["langfuse", "langsmith"])
def test_a_manifest_names_no_server_of_another_product_or_host(
    victim: Victim, listener: Listener, product: str
) -> None:
    victim.environ = {**KEYS, "SONDE_SOURCE": f"{product}:https://mine.example"}
    for place in (f"{product}:{listener.url}", listener.url, f"phoenix:{listener.url}"):
        item = {"id": "i1", "engine": "rca", "trace_ids": [TRACE[product]], "source": place}

        done = victim.call("batch", victim.write("items.jsonl", json.dumps(item) + "\n"), "--runs-dir", victim.own)

        assert done.returncode == 2 and f"--source {place}" in done.stderr
    assert listener.heard == []


def test_a_found_file_of_settings_names_no_server_and_no_key(victim: Victim, listener: Listener) -> None:
    victim.environ = {name: value for name, value in KEYS.items() if name != "LANGFUSE_SECRET_KEY"}
    for line in (f'source = "langfuse:{listener.url}"', 'langfuse_secret_key = "x"', 'LANGFUSE_SECRET_KEY = "x"'):
        victim.write("sonde.toml", line + "\n")
        done = victim.call("traces", "ls")
        assert listener.heard == [] and done.returncode != 0

    (victim.folder / "sonde.toml").unlink()
    done = victim.call("traces", "ls", "--source", f"langfuse:{listener.url}")
    assert done.returncode == 2 and "LANGFUSE_SECRET_KEY" in done.stderr
    assert listener.heard == []


@pytest.mark.parametrize("product", ["langfuse", "langsmith"])
def test_parents_in_a_circle_and_names_with_escapes_are_shown_plainly(victim: Victim, product: str) -> None:
    def circle(asked: Asked) -> Reply:
        status, honest, *_ = HONEST[product](asked)
        text = json.dumps(honest).replace("reserve_stock", "\\u001b[2Jgone\\nfake: line")
        reply: Any = json.loads(text)
        rows: list[Json] = [] if isinstance(reply, list) else reply.get("data") or reply.get("runs") or []
        for row in rows:
            name, other = (
                ("parentObservationId", servers.hex_ids) if product == "langfuse" else ("parent_run_id", servers.uuids)
            )
            if row.get("name", "").startswith("\x1b"):
                row[name] = other(("bad", "connect"))[1]
        return status, cast("Any", reply)

    victim.environ = KEYS
    with serving(circle) as (url, _):
        place = ("--source", f"{product}:{url}", "--project", servers.PROJECT)
        done = victim.call("traces", "show", TRACE[product], *place)

    assert done.returncode == 0, done.stderr
    assert "a cycle, cut here" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert not any(line.startswith("fake:") for line in done.stdout.splitlines())


@pytest.mark.hostile_long
def test_a_window_with_more_traces_than_anybody_can_list_says_so(
    victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sonde.contexts.traces.langfusestore.LISTED", 2)
    victim.environ = KEYS
    with serving(servers.langfuse) as (url, _):
        done = victim.call("incident", "--source", f"langfuse:{url}", "--runs-dir", victim.own)

    (record,) = victim.own.glob("*/run_record.json")
    assert done.returncode == 1 and "shorter one (--from, --to)" in done.stderr
    assert json.loads(record.read_text())["error"]["code"] == "TOOL_CALL_FAILED"


@pytest.mark.parametrize("limit", ["MAX_LISTING_S", "MAX_LISTING_BYTES"])
def test_a_listing_is_bounded_as_a_whole(victim: Victim, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(f"sonde.trace_client.{limit}", 0.0)
    victim.environ = KEYS
    with serving(_lying("phoenix", _endless("phoenix"))) as (url, seen):
        done = victim.call("traces", "ls", "--source", url, "--project", servers.PROJECT)

    assert done.returncode != 0 and "and no end" in done.stderr
    assert len(seen) < 5


def test_annotations_without_end_are_not_kept(victim: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sonde.phoenix.reads.MAX_ANNOTATIONS", 100)
    turns = iter(range(1 << 30))
    with serving(lambda _: (200, _page("phoenix", [{"name": "x"}] * 50, str(next(turns))))) as (url, seen):
        reads = PhoenixReads(PhoenixClient(url), servers.PROJECT)
        with pytest.raises(ToolResponseInvalid):
            reads.annotations("span", ["a"])

    assert len(seen) == 3


TAKEN: dict[str, Any] = {
    "no objects": {"data": [1, None]},
    "no list": {"data": 7},
    "nothing": {"data": None},
    "more than were sent": {"data": [{"id": "a"}] * 9},
    "objects without an id": {"data": [{}]},
}


@pytest.mark.parametrize("taken", [pytest.param(case, id=name) for name, case in TAKEN.items()])
def test_a_senseless_reply_to_annotations_is_a_failed_write_and_no_traceback(taken: Any) -> None:
    said = Annotation(
        run_id="r",
        engine_type="rca",
        schema_version="1",
        name="rca.primary",
        annotator_kind="CODE",
        label="x",
        score=None,
        explanation="x",
        level="span",
        target="a",
        identifier="i",
    )
    with serving(lambda _: (200, taken)) as (url, _):
        written = write_annotations([said], PhoenixClient(url))

    assert written.ids == ()


@pytest.mark.hostile_long
def test_sigterm_ends_a_run_that_reads_pages_without_end(victim: Victim) -> None:
    victim.environ = KEYS
    with serving(_lying("phoenix", _endless("phoenix"))) as (url, seen):
        words = ("incident", "--source", url, "--project", servers.PROJECT, "--runs-dir", str(victim.own))
        with subprocess.Popen(
            [SONDE, *words], cwd=victim.folder, env=victim.environment(), stderr=subprocess.PIPE
        ) as run:
            pause = threading.Event()
            while len(seen) < 20 and run.poll() is None:
                pause.wait(0.05)
            run.terminate()
            _, said = run.communicate(timeout=victim.seconds)

    assert run.returncode == 143 and b"Traceback" not in said, said
    assert len(seen) < 4_000


@pytest.mark.parametrize("words", [("batch", "--since", "2000-01-01T00:00Z"), ("rca", "abc")], ids=["batch", "rca"])
def test_the_same_traces_under_new_times_are_not_listed_for_ever(victim: Victim, words: tuple[str, ...]) -> None:
    begun = iter(range(1 << 30))

    def again(_: Asked) -> Reply:
        times = [f"2026-01-01T00:00:{second % 60:02}.{second:06}Z" for second in (next(begun) for _ in range(300))]
        rows: list[Json] = [
            {"trace_id": f"{n:032x}", "id": "x", "project_id": "x", "start_time": each, "end_time": each, "spans": []}
            for n, each in enumerate(sorted(times))
        ]
        return 200, _page("phoenix", rows, f"page-{next(begun)}")

    victim.environ = KEYS
    with serving(_lying("phoenix", again)) as (url, _):
        done = victim.call(*words, "--source", url, "--project", servers.PROJECT, "--runs-dir", victim.own)

    assert done.returncode in (1, 2) and "Traceback" not in done.stderr


def test_a_window_is_loaded_within_the_time_of_the_run(victim: Victim) -> None:
    victim.environ = KEYS
    over = threading.Event()
    turns = iter(range(1 << 30))

    def silent_from_the_third_page_on(_: Asked) -> Reply:
        if (turn := next(turns)) >= 2:
            over.wait(200)
        return (200, _page("langfuse", [], f"page-{turn}"))

    with serving(_lying("langfuse", silent_from_the_third_page_on)) as (url, seen):
        limit = ("--max-wall-time-sec", "1", "--runs-dir", victim.own)
        done = victim.call("ask", "Why?", "--source", f"langfuse:{url}", *limit)
        asked = len(seen)
        over.set()

    assert done.returncode == 2, done.stderr
    assert "no time left" in done.stderr and "Traceback" not in done.stderr
    assert asked <= 6
