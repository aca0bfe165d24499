"""The Phoenix client against a server made of a function: retries, deadlines, secrets, pages, splitting of batches."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

import sonde.phoenix
from sonde.contexts.traces.phoenixstore import PhoenixStore
from sonde.contexts.traces.store import TraceQuery
from sonde.core.deadline import Deadline
from sonde.errors import ConfigError, ToolFault, ToolResponseInvalid
from sonde.phoenix import (
    Annotation,
    PhoenixClient,
    PhoenixReads,
    ServerRefused,
    ServerUnavailable,
    write_annotations,
)
from sonde.testing import FrozenClock

Json = dict[str, Any]
Answer = Callable[[httpx2.Request], httpx2.Response]
KEY = "px-secret-123"


class Server:
    """Answers requests with a function and remembers them and the pauses between them."""

    def __init__(self, answer: Answer, **options: Any) -> None:
        self.requests: list[httpx2.Request] = []
        self.pauses: list[float] = []
        self._answer = answer
        transport = httpx2.MockTransport(self._handle)
        self.client = PhoenixClient(
            "http://phoenix.test:6006/", transport=transport, wait=self.pauses.append, **options
        )

    def _handle(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        return self._answer(request)


def reply(value: Any, status: int = 200) -> httpx2.Response:
    return httpx2.Response(status, json=value)


def in_turn(*answers: httpx2.Response | Exception) -> Answer:
    waiting = list(answers)

    def answer(_: httpx2.Request) -> httpx2.Response:
        following = waiting.pop(0)
        if isinstance(following, Exception):
            raise following
        return following

    return answer


def test_what_may_pass_is_tried_again_with_growing_pauses() -> None:
    server = Server(in_turn(reply({}, 503), httpx2.ConnectError("refused"), reply({}, 500), reply({"data": []})))

    assert server.client.get("/v1/projects") == {"data": []}
    assert server.pauses == [0.5, 1.0, 2.0]


def test_a_server_that_stays_away_is_unavailable_and_the_run_may_be_tried_again() -> None:
    server = Server(lambda _: reply({"detail": "queue is full"}, 503), attempts=3)

    with pytest.raises(ServerUnavailable) as raised:
        server.client.get("/v1/projects")

    assert raised.value.retryable
    assert len(server.requests) == 3
    assert "queue is full" in raised.value.message


def test_a_server_that_stayed_away_is_asked_only_once_until_it_is_back() -> None:
    away = [httpx2.ConnectError("refused")] * 5
    server = Server(in_turn(*away, reply({"data": []}), reply({}, 503), reply({"data": [1]})))

    for _ in range(2):
        with pytest.raises(ServerUnavailable):
            server.client.get("/v1/projects")
    assert (len(server.requests), len(server.pauses)) == (5, 3)

    assert server.client.get("/v1/projects") == {"data": []}
    assert server.client.get("/v1/projects") == {"data": [1]}


def test_a_refusal_is_not_repeated() -> None:
    server = Server(lambda _: reply({"detail": "no"}, 422))

    with pytest.raises(ServerRefused) as raised:
        server.client.get("/v1/x")

    assert (raised.value.status, len(server.requests)) == (422, 1)


def test_no_request_goes_out_after_the_deadline() -> None:
    clock = FrozenClock()
    server = Server(lambda _: reply({}), deadline=Deadline(clock, 10))
    clock.advance(11)

    with pytest.raises(ServerUnavailable):
        server.client.get("/v1/projects")
    assert server.requests == []


def test_keys_and_headers_are_sent_and_never_shown() -> None:
    server = Server(lambda _: reply({"detail": "bad key"}, 401), api_key=KEY, headers={"x-tenant": "t-secret"})

    with pytest.raises(ServerRefused) as raised:
        server.client.get("/v1/projects")

    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert server.requests[0].headers["x-tenant"] == "t-secret"
    shown = f"{raised.value!r} {raised.value} {raised.value.message} {server.client!r}"
    assert KEY not in shown and "t-secret" not in shown


@pytest.mark.parametrize("status", [401, 503])
def test_a_server_that_repeats_what_it_was_sent_does_not_show_the_key(status: int) -> None:
    def repeat(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(status, text=f"no: {request.headers['authorization']} {request.headers['x-tenant']}")

    server = Server(repeat, api_key=KEY, headers={"x-tenant": "t-secret"})

    with pytest.raises((ServerRefused, ServerUnavailable)) as raised:
        server.client.get("/v1/projects")

    assert "no: [key removed]" in str(raised.value)
    assert KEY not in str(raised.value) and "t-secret" not in str(raised.value)


@pytest.mark.parametrize("secret", [{"api_key": "px\u2019s"}, {"headers": {"x-tenant": "ä"}}, {"api_key": "a\nb"}])
def test_a_key_that_cannot_be_sent_is_refused_without_showing_it(secret: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as raised:
        PhoenixClient("http://phoenix.test:6006", **secret)

    assert "\u2019" not in raised.value.message and "ä" not in raised.value.message


def test_a_reply_that_cannot_be_unpacked_is_tried_again_and_then_said() -> None:
    garbled = {"content-encoding": "gzip"}
    server = Server(lambda _: httpx2.Response(200, content=b"no gzip", headers=garbled), attempts=2)

    with pytest.raises(ServerUnavailable):
        server.client.get("/v1/projects")

    assert len(server.requests) == 2


def test_redirects_are_not_followed_with_the_key() -> None:
    server = Server(lambda _: httpx2.Response(302, headers={"location": "http://evil.test/"}), api_key=KEY)

    with pytest.raises(ToolFault):
        server.client.get("/v1/projects")

    assert [request.url.host for request in server.requests] == ["phoenix.test"]


@pytest.mark.parametrize("url", ["", "localhost:6006", "ftp://x", "http://user:pass@x:6006", "http://"])
def test_addresses_that_cannot_be_right_are_refused_without_repeating_them(url: str) -> None:
    with pytest.raises(ConfigError) as raised:
        PhoenixClient(url)

    assert "pass@" not in raised.value.message


def test_a_page_that_is_not_json_is_a_fault() -> None:
    server = Server(lambda _: httpx2.Response(200, text="<html>login</html>"))

    with pytest.raises(ToolResponseInvalid, match="is this a Phoenix server"):
        server.client.get("/v1/projects")


def rest_span(number: int, trace_id: str = "a" * 32, **changes: Any) -> Json:
    span: Json = {
        "context": {"trace_id": trace_id, "span_id": f"{number:016x}"},
        "parent_id": None,
        "name": f"step {number}",
        "span_kind": "TOOL",
        "start_time": f"2026-01-01T00:00:{number:02d}+00:00",
        "end_time": f"2026-01-01T00:01:{number:02d}+00:00",
        "status_code": "OK",
        "status_message": "",
        "attributes": {"input.value": "x"},
        "events": [],
    }
    return {**span, **changes}


def store_of(answer: Answer, project: str = "shop") -> tuple[PhoenixStore, Server]:
    server = Server(answer)
    return PhoenixStore(PhoenixReads(server.client, project)), server


def test_a_trace_is_read_in_pages_once_a_run() -> None:
    pages = in_turn(
        reply({"data": [rest_span(2), rest_span(1)], "next_cursor": "next"}),
        reply({"data": [rest_span(3, parent_id=f"{1:016x}")], "next_cursor": None}),
    )
    store, server = store_of(pages)

    for _ in range(2):
        assert [span.span_id[-1] for span in store.summaries("a" * 32)] == ["1", "2", "3"]
        assert [span.summary.span_id[-1] for span in store.spans("a" * 32)] == ["1", "2", "3"]
        assert [span.name for span in store.children(f"{1:016x}")] == ["step 3"]
        assert store.span(f"{2:016x}").summary.name == "step 2"

    assert [request.url.params.get("cursor") for request in server.requests] == [None, "next"]
    assert server.requests[0].url.params["trace_id"] == "a" * 32


def test_a_span_is_a_point_read_and_unknown_ones_are_faults() -> None:
    store, server = store_of(in_turn(reply({"data": [rest_span(7)]}), reply({"data": []}), reply({"data": []})))

    assert store.span(f"{7:016x}").summary.kind == "TOOL"
    assert server.requests[0].url.params["span_id"] == f"{7:016x}"
    with pytest.raises(KeyError):
        store.span("ffff")
    with pytest.raises(KeyError):
        store.summaries("b" * 32)


def test_a_whole_project_is_never_read() -> None:
    store, _ = store_of(lambda _: reply({"data": []}))

    with pytest.raises(ValueError, match="never a whole project"):
        next(store._reads.spans())


def test_traces_with_the_same_start_keep_the_order_by_id_across_pages() -> None:
    def row(trace_id: str, second: int) -> Json:
        moment = f"2026-01-01T00:00:{second:02d}+00:00"
        return {"trace_id": trace_id * 32, "start_time": moment, "end_time": moment, "spans": [{}]}

    pages = in_turn(
        reply({"data": [row("d", 1), row("c", 2)], "next_cursor": "n"}),
        reply({"data": [row("b", 2), row("a", 3)], "next_cursor": None}),
    )
    store, _ = store_of(pages)

    found = store.traces(TraceQuery(project="shop"))

    assert [trace.trace_id[0] for trace in found.rows] == ["d", "b", "c", "a"]
    assert store.traces(TraceQuery(project="another")).rows == ()


def test_an_unknown_project_is_named_with_those_there_are() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/v1/projects":
            return reply({"data": [{"name": "other", "id": "1"}], "next_cursor": None})
        return reply({"detail": "not found"}, 404)

    store, _ = store_of(answer)

    with pytest.raises(ConfigError, match="there are: other"):
        store.summaries("a" * 32)


def test_a_project_whose_name_does_not_fit_into_a_path_goes_by_id() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/v1/projects":
            return reply({"data": [{"name": "team/shop", "id": "UHJvamVjdDoz"}], "next_cursor": None})
        return reply({"data": [rest_span(1)]})

    store, server = store_of(answer, "team/shop")

    assert len(store.summaries("a" * 32)) == 1
    assert server.requests[-1].url.path == "/v1/projects/UHJvamVjdDoz/spans"


def test_links_open_the_page_of_a_span_or_a_trace() -> None:
    store, _ = store_of(lambda _: reply({"data": []}))

    assert store.link("t1", "s1") == "http://phoenix.test:6006/redirects/spans/s1"
    assert store.link("t1") == "http://phoenix.test:6006/redirects/traces/t1"


def annotation(target: str, **changes: Any) -> Annotation:
    fields: Json = {
        "run_id": "r",
        "engine_type": "rca",
        "schema_version": "1.0.0",
        "name": "rca.evidence",
        "annotator_kind": "CODE",
        "label": "x",
        "score": 0.5,
        "explanation": "e",
        "level": "span",
        "target": target,
        "identifier": "rca",
    }
    return Annotation(**{**fields, **changes})


def strict_server(known: set[str]) -> Answer:
    """Refuses a batch with one unknown id, as Phoenix does."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        rows = json.loads(request.content)["data"]
        if any(row["span_id"] not in known for row in rows):
            return reply({"detail": "do not exist"}, 404)
        return reply({"data": [{"id": f"id-{row['span_id']}"} for row in rows]})

    return answer


def test_a_batch_with_unknown_ids_is_split_until_only_they_are_left_out() -> None:
    ids = [f"s{number}" for number in range(9)]
    server = Server(strict_server(set(ids) - {"s3", "s8"}))

    written = write_annotations([annotation(span_id) for span_id in ids], server.client)

    assert written.unknown == ("s3", "s8")
    assert written.ids == tuple(f"id-{span_id}" for span_id in ids if span_id not in {"s3", "s8"})
    assert all(request.url.params["sync"] == "true" for request in server.requests)
    assert all(request.method == "POST" and request.url.path == "/v1/span_annotations" for request in server.requests)


def test_any_other_refusal_ends_the_writing_and_is_told() -> None:
    server = Server(lambda _: reply({"detail": "bad"}, 422))

    written = write_annotations([annotation("t", level="trace"), annotation("s")], server.client)

    assert (written.ids, written.unknown, len(server.requests)) == ((), (), 1)
    assert written.error is not None and "422" in written.error


def test_what_a_server_took_before_it_went_away_counts_as_written() -> None:
    taken: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        if taken:
            return reply({}, 503)
        taken.extend(row["span_id"] for row in json.loads(request.content)["data"])
        return reply({"data": [{"id": span_id} for span_id in taken]})

    server = Server(answer, attempts=2)

    written = write_annotations([annotation(f"s{number}") for number in range(250)], server.client)

    assert len(taken) == 100 and written.ids == tuple(taken)
    assert written.error is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"annotator_kind": None},
        {"annotator_kind": "ROBOT"},
        {"name": "note"},
        {"name": ""},
        {"identifier": ""},
        {"target": ""},
    ],
)
def test_an_annotation_that_phoenix_would_take_for_something_else_is_refused(changes: Json) -> None:
    with pytest.raises(ConfigError):
        annotation(**{"target": "s1", **changes})


def test_nothing_is_ever_deleted() -> None:
    names = [name for door in (PhoenixClient, PhoenixReads, sonde.phoenix) for name in dir(door)]

    assert not [name for name in names if "delete" in name.lower()]
