"""OTLP/HTTP on loopback: what exporters send is stored before they hear 200, and who may not send hears why."""

from __future__ import annotations

import gzip
import http.client
import json
import sqlite3
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from otlp_bodies import as_json, as_protobuf, request, span, trace_id

from sonde.contexts.traces.filestore import FileStore
from sonde.errors import ConfigError
from sonde.watch.intake import Intake
from sonde.watch.listener import ListenAddress, OtlpListener
from sonde.watch.state import WatchState
from sonde.watch.vitals import Vitals

LOOPBACK = ListenAddress("127.0.0.1", 0)
PROTOBUF = {"Content-Type": "application/x-protobuf"}
JSON = {"Content-Type": "application/json"}
TOKEN = "a token that nobody guesses"


@contextmanager
def listening(
    folder: Path, *, token: str | None = None, address: ListenAddress = LOOPBACK, queued_bytes: int = 1 << 26
) -> Generator[http.client.HTTPConnection]:
    with (
        Intake(folder, queued_bytes=queued_bytes) as intake,
        OtlpListener(intake, address, token=token) as listener,
        closing(http.client.HTTPConnection("127.0.0.1", int(listener.url.rpartition(":")[2]), timeout=60)) as line,
    ):
        yield line


def post(
    line: http.client.HTTPConnection, body: bytes, headers: dict[str, str], path: str = "/v1/traces"
) -> tuple[int, bytes, http.client.HTTPMessage]:
    line.request("POST", path, body, headers)
    reply = line.getresponse()
    return reply.status, reply.read(), reply.headers


def stored(folder: Path, trace: int = 1) -> list[str]:
    with FileStore(folder) as store:
        return [each.name for each in store.summaries(trace_id(trace))]


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("headers", [PROTOBUF, JSON], ids=["protobuf", "json"])
def test_a_request_is_stored_before_it_is_answered(tmp_path: Path, headers: dict[str, str], packed: bool) -> None:
    body = (as_json if headers is JSON else as_protobuf)(request(span(1), span(2, parent=1)))
    if packed:
        body, headers = gzip.compress(body), {**headers, "Content-Encoding": "gzip"}
    with listening(tmp_path) as line:
        status, reply, told = post(line, body, headers)

        assert stored(tmp_path) == ["step 1", "step 2"]
    assert (status, told["Content-Type"]) == (200, headers["Content-Type"])
    assert reply == (b"{}" if "json" in headers["Content-Type"] else b"")


def test_requests_in_chunks_and_several_on_one_connection_are_read(tmp_path: Path) -> None:
    with listening(tmp_path) as line:
        for number in (1, 2):
            body = as_json(request(span(number)))
            line.request("POST", "/v1/traces", iter([body[:7], body[7:]]), JSON, encode_chunked=True)
            assert line.getresponse().read() == b"{}"
        assert stored(tmp_path) == ["step 1", "step 2"]


def test_spans_that_are_refused_are_counted_in_the_reply(tmp_path: Path) -> None:
    record = request(span(1), span(2, traceId="no/id"), span(3, spanId="x"))
    with listening(tmp_path) as line:
        status, reply, _ = post(line, as_json(record), JSON)
        assert status == 200
        assert json.loads(reply)["partialSuccess"]["rejectedSpans"] == "2"
        status, reply, _ = post(line, as_protobuf(request(span(1, trace=2))), PROTOBUF)
        told = ExportTraceServiceResponse.FromString(reply).partial_success
        assert (status, told.rejected_spans) == (200, 1)
        assert trace_id(1) in told.error_message
    assert stored(tmp_path) == ["step 1"]


@pytest.mark.parametrize(
    ("status", "headers", "path"),
    [
        (403, {**JSON, "Host": "evil.example:4318"}, "/v1/traces"),
        (403, {**JSON, "Host": "localhost.evil.example"}, "/v1/traces"),
        (403, {**JSON, "Host": "["}, "/v1/traces"),
        (403, {**JSON, "Origin": "http://localhost:3000"}, "/v1/traces"),
        (415, {"Content-Type": "text/plain"}, "/v1/traces"),
        (415, {"Content-Type": "application/x-www-form-urlencoded"}, "/v1/traces"),
        (415, {}, "/v1/traces"),
        (415, {**JSON, "Content-Encoding": "br"}, "/v1/traces"),
        (400, {**JSON, "Content-Encoding": "gzip"}, "/v1/traces"),
        (404, JSON, "/v1/metrics"),
        (404, JSON, "/"),
    ],
    ids=str,
)
def test_what_is_not_an_export_of_traces_to_this_machine_is_refused(
    tmp_path: Path, status: int, headers: dict[str, str], path: str
) -> None:
    with listening(tmp_path) as line:
        got, reply, _ = post(line, as_json(request(span(1))), headers, path)
        assert got == status
        assert json.loads(reply)["message"]
        assert post(line, as_json(request(span(2))), {**JSON, "Host": "LocalHost:1"})[0] == 200
    assert stored(tmp_path) == ["step 2"]


def test_a_malformed_body_is_refused_and_the_connection_goes_on(tmp_path: Path) -> None:
    with listening(tmp_path) as line:
        assert post(line, b"\x0a\xff\xff\xff\xff\x0f", PROTOBUF)[0] == 400
        assert post(line, b"[" * 1000, JSON)[0] == 400
        assert post(line, as_protobuf(request(span(1))), PROTOBUF)[0] == 200


def test_only_who_has_the_token_may_send(tmp_path: Path) -> None:
    body = as_json(request(span(1)))
    with listening(tmp_path, token=TOKEN) as line:
        for wrong in ("", "Bearer", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", f"Basic {TOKEN}", "Bearer ÿ", TOKEN):
            status, _, headers = post(line, body, {**JSON, **({"Authorization": wrong} if wrong else {})})
            assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
        assert post(line, body, {**JSON, "Authorization": f"bearer {TOKEN}"})[0] == 200


def test_an_address_that_others_reach_needs_a_token(tmp_path: Path) -> None:
    everywhere = ListenAddress.of("0.0.0.0:0")
    with pytest.raises(ConfigError), listening(tmp_path / "a", address=everywhere):
        pass
    with pytest.raises(ConfigError), listening(tmp_path / "b", token="short", address=everywhere):
        pass
    with listening(tmp_path / "c", token=TOKEN, address=everywhere) as line:
        headers = {**JSON, "Host": "collector.internal:4318", "Authorization": f"Bearer {TOKEN}"}
        assert post(line, as_json(request(span(1))), headers)[0] == 200


def test_an_exporter_is_told_to_come_back_when_the_writer_is_behind(tmp_path: Path) -> None:
    with listening(tmp_path, queued_bytes=1) as line:
        blocker = sqlite3.connect(tmp_path / "spans.sqlite", isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        waiting = http.client.HTTPConnection("127.0.0.1", line.port, timeout=60)
        waiting.request("POST", "/v1/traces", as_json(request(span(1))), JSON)
        while (answer := post(line, as_json(request()), JSON))[0] == 200:
            pass  # until the first request is in the queue
        assert (answer[0], answer[2]["Retry-After"]) == (503, "2")
        blocker.execute("ROLLBACK")
        blocker.close()
        assert waiting.getresponse().status == 200
        waiting.close()
    assert stored(tmp_path) == ["step 1"]


@pytest.mark.parametrize("text", ["127.0.0.1", "host:port", ":4318", "127.0.0.1:99999", "127.0.0.1:²", ""])
def test_an_address_needs_a_port(text: str) -> None:
    with pytest.raises(ConfigError):
        ListenAddress.of(text)


def test_loopback_is_known_in_its_spellings() -> None:
    assert [ListenAddress.of(text).loopback for text in ("4318", "localhost:1", "127.9.9.9:1", "[::1]:1")] == [True] * 4
    assert not any(ListenAddress.of(text).loopback for text in ("0.0.0.0:1", "[::]:1", "10.0.0.1:1", "example.org:1"))


def get(line: http.client.HTTPConnection, path: str, **headers: str) -> tuple[int, bytes]:
    line.request("GET", path, headers=headers)
    reply = line.getresponse()
    return reply.status, reply.read()


def test_health_is_for_everybody_and_metrics_are_for_those_who_may_send(tmp_path: Path) -> None:
    with (
        WatchState(tmp_path / "state", create=True) as state,
        Intake(tmp_path / "store") as intake,
        OtlpListener(intake, LOOPBACK, token=TOKEN, vitals=(vitals := Vitals(state, since=time.time()))) as listener,
        closing(http.client.HTTPConnection("127.0.0.1", int(listener.url.rpartition(":")[2]), timeout=60)) as line,
    ):
        vitals.spans = listener.counts
        post(line, as_json(request(span(1))), {**JSON, "Authorization": f"Bearer {TOKEN}"})
        assert get(line, "/healthz") == (200, b"ok\n")
        assert get(line, "/metrics")[0] == 401
        status, figures = get(line, "/metrics", Authorization=f"Bearer {TOKEN}")
        assert get(line, "/healthz", Host="evil.example")[0] == 403
        assert get(line, "/healthz", Origin="https://evil.example")[0] == 403
        assert get(line, "/", Authorization=f"Bearer {TOKEN}")[0] == 404

    assert status == 200
    assert b'sonde_watch_spans_total{outcome="received"} 1\n' in figures
