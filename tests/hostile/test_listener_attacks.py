"""Strangers at the doors of `sonde watch --listen` and `sonde view`: bombs, drips, floods and forged stores.

Whoever sends properly is still served.
"""

from __future__ import annotations

import gzip
import http.client
import json
import os
import re
import socket
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from victim import Victim, one_in_make_test

from journeys.journey import SONDE
from sonde.contexts.traces.span import Span
from sonde.core.canonical import items_in
from sonde.viewer.server import ViewerServer
from sonde.watch import exchange, listener
from sonde.watch.intake import Delivery, Intake
from sonde.watch.listener import ListenAddress, OtlpListener

pytestmark = pytest.mark.hostile_long

PATIENCE_S = 240.0
JSON = {"Content-Type": "application/json"}
PROTOBUF = {"Content-Type": "application/x-protobuf"}
HEAD = b"POST /v1/traces HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
ESCAPE = "\x1b]0;owned\x07"


def body(number: int = 1, **fields: Any) -> bytes:
    span = {
        "traceId": f"{number:032x}",
        "spanId": f"{number:016x}",
        "name": "step",
        "startTimeUnixNano": "1760000000000000000",
    }
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [{**span, **fields}]}]}]}).encode()


@contextmanager
def listening(folder: Path) -> Generator[int]:
    with Intake(folder) as intake, OtlpListener(intake, ListenAddress("127.0.0.1", 0)) as door:
        yield int(door.url.rpartition(":")[2])


def post(port: int, sent: bytes, headers: dict[str, str] = JSON) -> tuple[int, str | None]:
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        line.request("POST", "/v1/traces", sent, headers)
        reply = line.getresponse()
        reply.read()
        return reply.status, reply.headers["Retry-After"]
    finally:
        line.close()


def say(port: int, words: bytes) -> bytes:
    """What is answered to these bytes until the connection ends."""
    heard = b""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as line, suppress(ConnectionError):
        line.sendall(words)
        line.shutdown(socket.SHUT_WR)
        while part := line.recv(65536):
            heard += part
    return heard


def test_a_gzip_bomb_is_refused(tmp_path: Path) -> None:
    bomb = gzip.compress(bytes(80 << 20), 1)
    with listening(tmp_path) as port:
        assert post(port, bomb, {**JSON, "Content-Encoding": "gzip"})[0] == 413
        assert post(port, gzip.compress(body()) * 2, {**JSON, "Content-Encoding": "gzip"})[0] == 400
        assert post(port, gzip.compress(body())[:-9], {**JSON, "Content-Encoding": "gzip"})[0] == 400
        assert post(port, body())[0] == 200


def test_many_values_in_few_bytes_are_refused(tmp_path: Path) -> None:
    with listening(tmp_path) as port:
        assert post(port, b'{"resourceSpans":[' + b"{}," * 2_100_000 + b"{}]}")[0] == 413
        assert post(port, b'{"resourceSpans":' + b"[" * 1_000_000)[0] in (400, 413)
        assert post(port, b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", PROTOBUF)[0] == 400


def attributes(name: str, value: dict[str, Any]) -> bytes:
    """A request whose spans have this one attribute, as many as go into it."""
    span = {"startTimeUnixNano": "1760000000000000000", "attributes": [{"key": name, "value": value}]}
    text = json.dumps(span).encode()
    most = min((60 << 20) // len(text), 1_900_000 // items_in(text))
    spans = [{**span, "traceId": f"{n + 1:032x}", "spanId": f"{n + 1:016x}"} for n in range(most)]
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}, separators=(",", ":")).encode()


def test_attributes_that_multiply_in_memory_are_left_out_or_refused(tmp_path: Path) -> None:
    below = [{"key": f"{n:x}", "value": {"boolValue": True}} for n in range(15_000)]
    names = attributes("k" * 990, {"kvlistValue": {"values": below}})
    lists = attributes("metadata", {"stringValue": f"[{'[],' * 95_000}0]"})
    with listening(tmp_path) as port:
        post(port, body())
        before = peak()
        assert post(port, names)[0] == 200
        assert post(port, lists)[0] == 413
        assert post(port, body(2))[0] == 200
        assert peak() - before < 500 << 10  # it was 726 MiB for the first and 1.6 GiB for the second


def peak() -> int:
    """The most memory that this process had, in KiB."""
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])


@pytest.mark.parametrize(
    "words",
    [
        HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        HEAD + b"Content-Length: -5\r\n\r\n",
        HEAD + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n",
        HEAD + b"\r\n",
        HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}{}\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n" + b"a: b\r\n" * 200,
    ],
)
def test_a_body_of_unclear_length_is_refused(tmp_path: Path, words: bytes) -> None:
    with listening(tmp_path) as port:
        assert b" 400 " in say(port, words).split(b"\r\n")[0]
        assert post(port, body())[0] == 200


@contextmanager
def showing(folder: Path) -> Generator[int]:
    with ViewerServer(folder) as page:
        yield int(page.url.rstrip("/").rpartition(":")[2])


GET = b"GET /healthz HTTP/1.1\r\nHost: localhost:PORT\r\n"
AMBIGUOUS: dict[str, tuple[bytes, int]] = {
    "put": (b"PUT /<script> HTTP/1.1\r\nHost: localhost:PORT\r\nContent-Length: 5\r\n\r\nhello", 405),
    "unknown method": (b"<B>X</B> / HTTP/1.1\r\nHost: localhost:PORT\r\n\r\n", 405),
    "connect": (b"CONNECT evil.example:443 HTTP/1.1\r\nHost: localhost:PORT\r\n\r\n", 400),
    "no http": (b"<script>alert(1)</script>\r\n\r\n", 400),
    "http 0.9": (b"GET /healthz\r\n\r\n", 400),
    "http 2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "http 1.0 without a host": (b"GET /healthz HTTP/1.0\r\n\r\n", 403),
    "no host": (b"GET /healthz HTTP/1.1\r\n\r\n", 400),
    "two hosts": (GET + b"Host: evil.example\r\n\r\n", 400),
    "two origins": (GET + b"Origin: http://localhost:PORT\r\nOrigin: http://evil.example\r\n\r\n", 400),
    "a line without a colon": (GET + b"nonsense\r\nOrigin: http://evil.example\r\n\r\n", 400),
    "a blank before the colon": (GET + b"Content-Length : 5\r\n\r\nhello", 400),
    "two lengths": (GET + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", 400),
    "length and chunks": (GET + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "a length below zero": (GET + b"Content-Length: -1\r\n\r\n", 400),
    "another server": (b"GET http://evil.example/healthz HTTP/1.1\r\nHost: localhost:PORT\r\n\r\n", 400),
    "ourselves as a proxy": (b"GET http://localhost:PORT/ HTTP/1.1\r\nHost: localhost:PORT\r\n\r\n", 400),
    "a long address": (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: localhost:PORT\r\n\r\n", 414),
    "many headers": (GET + b"X: y\r\n" * 200 + b"\r\n", 431),
    "a long header": (GET + b"X: " + b"y" * 70_000 + b"\r\n\r\n", 431),
    "long headers": (GET + (b"X: " + b"y" * 60_000 + b"\r\n") * 12 + b"\r\n", 431),
}


@pytest.mark.parametrize("door", [listening, showing])
@pytest.mark.parametrize("case", AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_a_request_with_two_meanings_gets_one_plain_line(
    tmp_path: Path, door: Callable[[Path], AbstractContextManager[int]], case: tuple[bytes, int]
) -> None:
    words, status = case
    with door(tmp_path) as port:
        heard = say(port, words.replace(b"PORT", str(port).encode()))

    head, _, told = heard.partition(b"\r\n\r\n")
    assert head.split(b"\r\n")[0].split(b" ")[1] == str(status).encode(), heard
    assert heard.count(b"HTTP/1.1 ") == 1, "one answer, and the rest is no request"
    assert len(told.splitlines()) == 1 and b"<" not in heard and b"text/html" not in heard
    assert b"connection: close" in head.lower() or b"HTTP/1.0" in words


@pytest.mark.parametrize("door", [listening, showing])
def test_a_body_that_nobody_asked_for_is_not_the_next_request(
    tmp_path: Path, door: Callable[[Path], AbstractContextManager[int]]
) -> None:
    with door(tmp_path) as port:
        hidden = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
        head = GET.replace(b"PORT", str(port).encode())
        heard = say(port, head + b"Content-Length: %d\r\n\r\n" % len(hidden) + hidden)

    assert heard.count(b"HTTP/1.1 ") == 1


def test_a_page_that_is_asked_slowly_serves_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "CONNECTIONS", 4)
    with showing(tmp_path) as port, ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S))
        heard = say(port, b"GET /api/runs HTTP/1.1\r\nHost: localhost:%d\r\nConnection: close\r\n\r\n" % port)

    assert heard.startswith(b"HTTP/1.1 200")


def test_a_body_in_more_chunks_than_allowed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = body()
    monkeypatch.setattr(listener, "CHUNKS", len(whole))
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in whole)
    with listening(tmp_path) as port:
        for blank, status in ((b"", b" 200 "), (b"1\r\n \r\n", b" 413 ")):
            words = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + blank + b"0\r\n\r\n"
            assert status in say(port, words).split(b"\r\n")[0]
        assert post(port, body())[0] == 200


def test_requests_that_drip_are_ended_and_others_are_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "REQUEST_S", 0.5)
    monkeypatch.setattr(exchange, "CONNECTIONS", 6)
    with listening(tmp_path) as port, ExitStack() as lines:
        dripping = [
            lines.enter_context(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)) for _ in range(6)
        ]
        for line in dripping:
            line.sendall(HEAD)
        for line in dripping:
            with suppress(ConnectionError):
                assert line.recv(100) == b""  # hung up, without a reply
        monkeypatch.setattr(exchange, "REQUEST_S", PATIENCE_S)
        assert post(port, body())[0] == 200


def test_connections_that_say_nothing_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "CONNECTIONS", 4)
    with listening(tmp_path) as port, ExitStack() as lines:
        for number in range(1, 6):
            for _ in range(8):
                lines.enter_context(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S))
            assert post(port, body(number))[0] == 200


def test_more_busy_connections_than_allowed_are_told_to_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "CONNECTIONS", 3)
    with listening(tmp_path) as port, ExitStack() as lines:
        for _ in range(3):
            busy = lines.enter_context(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S))
            busy.sendall(HEAD + b"Expect: 100-continue\r\nContent-Length: 9\r\n\r\n")
            assert busy.recv(100).startswith(b"HTTP/1.1 100")  # now it is known to be busy
        assert b" 503 " in say(port, b"").split(b"\r\n")[0]


def test_bodies_together_take_no_more_memory_than_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "BODIES_BYTES", 100_000)
    with listening(tmp_path) as port:
        assert post(port, b" " * 300_000 + body()) == (503, "2")
        assert post(port, body())[0] == 200


def test_names_that_are_sql_or_terminal_code_are_data(victim: Victim) -> None:
    wild = {
        "name": f"'; DROP TABLE spans; --{ESCAPE}",
        "attributes": [{"key": f"x') FROM spans; DELETE FROM bodies; --{ESCAPE}", "value": {"stringValue": ESCAPE}}],
    }
    with listening(victim.own) as port:
        assert post(port, body(1, **wild))[0] == 200
        assert post(port, body(2, traceId="../../../etc/passwd"))[0] == 200  # in partial_success, not stored

        shown = [
            victim.call("traces", *words, "--source", victim.own)
            for words in (("ls",), ("show", f"{1:032x}"), ("search", "DROP"), ("overview",))
        ]
    for each in shown:
        assert each.returncode == 0, each.stderr
        assert "\x1b" not in each.stdout + each.stderr
    assert "DROP TABLE" in shown[1].stdout
    assert "passwd" not in shown[0].stdout


def forged_body(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE bodies SET body = ?", (msgspec.msgpack.encode([1, {"a": 2}, "x"]),))


def forged_text(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE bodies SET body = 'not packed', gaps = '{'")


def forged_times(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE spans SET start_us = 'soon', name = x'ff00', status = 7")


def planted_view(connection: sqlite3.Connection) -> None:
    connection.execute("ALTER TABLE bodies RENAME TO real")
    connection.execute("CREATE VIEW bodies AS SELECT id, zeroblob(1000000000) AS body, '' AS gaps FROM real")


@pytest.mark.parametrize(
    "forge", one_in_make_test({each.__name__: each for each in (forged_text, forged_body, forged_times, planted_view)})
)
def test_a_strangers_store_ends_a_command_with_one_line(victim: Victim, forge: Any) -> None:
    store = victim.folder / "store"
    with listening(store) as port:
        assert post(port, body())[0] == 200
    connection = sqlite3.connect(store / "spans.sqlite")
    forge(connection)
    connection.commit()
    connection.close()

    for words in (("show", f"{1:032x}"), ("overview",), ("export", f"{1:032x}")):
        shown = victim.call("traces", *words, "--source", store)
        assert shown.returncode in (0, 1, 2)
        assert "Traceback" not in shown.stderr
        assert len(shown.stderr) < 2000


@pytest.mark.parametrize("at", one_in_make_test({str(at): at for at in (9000, 24, 100, 20_000, 60_000)}))
def test_a_damaged_store_ends_a_command_with_one_line(victim: Victim, at: int) -> None:
    store = victim.folder / "store"
    with listening(store) as port:
        for number in range(1, 30):
            assert post(port, body(number))[0] == 200
    with (store / "spans.sqlite").open("r+b") as file:
        file.seek(at)
        file.write(b"\xff" * 4000)

    for words in (("ls",), ("show", f"{1:032x}"), ("search", "step")):
        shown = victim.call("traces", *words, "--source", store)
        assert shown.returncode in (0, 1, 2)
        assert "Traceback" not in shown.stderr


@contextmanager
def watching(victim: Victim, limits: str) -> Generator[tuple[int, subprocess.Popen[str]]]:
    """`sonde watch --listen` as a process, under these limits of the shell."""
    command = f'{limits}; exec "$@"'
    words = ["watch", "--listen", "127.0.0.1:0", "--state", str(victim.own / "state")]
    with subprocess.Popen(
        ["sh", "-c", command, "sh", str(SONDE), *words],
        env=victim.environment(),
        cwd=victim.folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        found = next(filter(None, (re.search(r"http://127.0.0.1:(\d+)", line) for line in process.stderr)))
        try:
            yield int(found[1]), process
        finally:
            process.terminate()
            process.stderr.read()


def test_spans_that_are_refused_cost_no_more_than_their_bytes(victim: Victim) -> None:
    pairs = [{"key": str(number), "value": {"boolValue": True}} for number in range(2000)]
    attributes = [{"key": "7." * 490 + " ", "value": {"kvlistValue": {"values": pairs}}}]
    spans = [
        {"traceId": f"{number:032x}", "spanId": f"{number:016x}", "attributes": attributes} for number in range(1, 101)
    ]
    sent = gzip.compress(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).encode(), 1)
    with watching(victim, "ulimit -t 25") as (port, process):  # it took 40 s of processor time
        for _ in range(6):
            assert post(port, sent, {**JSON, "Content-Encoding": "gzip"})[0] == 200
        assert post(port, body())[0] == 200
        assert process.poll() is None


class HeldIntake(Intake):
    """Keeps the first request, and with it the decoder, until it is let go."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.holds, self.let_go = threading.Event(), threading.Event()

    def accept(self, spans: Iterable[Span], lost: Mapping[str, int] = MappingProxyType({})) -> Delivery:
        self.holds.set()
        assert self.let_go.wait(PATIENCE_S)
        return super().accept(spans, lost)


def test_a_request_waits_for_the_decoder_no_longer_than_it_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        HeldIntake(tmp_path) as intake,
        OtlpListener(intake, ListenAddress("127.0.0.1", 0)) as door,
        ThreadPoolExecutor(1) as sender,
    ):
        port = int(door.url.rpartition(":")[2])
        try:
            first = sender.submit(post, port, body())
            assert intake.holds.wait(PATIENCE_S)
            monkeypatch.setattr(exchange, "REQUEST_S", 3.0)

            assert post(port, body(2)) == (503, "2")
        finally:
            intake.let_go.set()
        assert first.result(PATIENCE_S)[0] == 200


@pytest.mark.hostile_long
def test_thousands_of_connections_do_not_stop_it(victim: Victim) -> None:
    with watching(victim, "ulimit -n 400") as (port, process), ExitStack() as lines:
        for number in range(2000):
            with suppress(OSError):
                line = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
                line.sendall(HEAD if number % 2 else b"")
                if number % 4 == 0:
                    lines.enter_context(line)
                else:
                    line.close()
        while (status := post_again(port, body())) == 503:
            pass
        assert status == 200
        assert process.poll() is None


def post_again(port: int, sent: bytes) -> int:
    """503 also stands for a connection that was closed to make room."""
    try:
        return post(port, sent)[0]
    except OSError:
        return 503


@pytest.mark.hostile_long
def test_a_full_disk_is_told_to_the_exporter_and_does_not_end_the_watch(victim: Victim) -> None:
    text = [{"key": "input.value", "value": {"stringValue": os.urandom(200_000).hex()}}]
    with watching(victim, "ulimit -f 4000") as (port, process):  # blocks of 512 bytes: 2 MB a file
        answers = [post(port, body(number, attributes=text)) for number in range(1, 20)]
        assert answers[0] == (200, None)
        assert answers[-1] == (503, "2")
        assert process.poll() is None
        stored = sum(status == 200 for status, _ in answers)

    connection = sqlite3.connect(victim.own / "state/traces/spans.sqlite")
    assert connection.execute("SELECT count(*) FROM spans").fetchone() == (stored,)
    connection.close()
