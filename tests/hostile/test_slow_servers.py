"""Servers that answer one byte at a time, or with far more than they sent. Nobody waits or swells without end."""

from __future__ import annotations

import gzip
import json
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from victim import Victim

from sonde.core.deadline import Deadline, SystemClock
from sonde.errors import ModelCallFailed, ToolResponseInvalid
from sonde.models import Message, ModelRequest, ModelSettings, open_model
from sonde.phoenix import PhoenixClient, ServerUnavailable

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
PATIENCE_S = 200


@contextmanager
def server(head: bytes, dripped: bytes) -> Generator[str]:
    """Sends `head` at once and `dripped` byte by byte, again and again, until the other side hangs up."""
    over = threading.Event()

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(client,), daemon=True).start()

    def answer(client: socket.socket) -> None:
        with client:
            try:
                client.recv(65536)
                client.sendall(head)
                while dripped and not over.is_set():
                    for byte in dripped:
                        client.sendall(bytes([byte]))
                        if over.wait(0.1):
                            return
            except OSError:
                return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            over.set()


@pytest.mark.parametrize(
    "dripped", [b"x-a: 1\r\n", b"HTTP/1.1 103 Early Hints\r\n\r\n"], ids=["headers", "interim replies"]
)
def test_a_model_server_that_drips_its_headers_is_given_up(dripped: bytes) -> None:
    with server(HEAD if dripped.startswith(b"x") else b"", dripped) as url:
        model = open_model("openai:x", ModelSettings(base_url=f"{url}/v1"))
        with pytest.raises(ModelCallFailed):
            model.complete(ModelRequest(messages=[Message("user", "?")]), deadline=Deadline(SystemClock(), 3.0))


@pytest.mark.parametrize("part", ["headers", "body"])
def test_a_trace_server_that_drips_is_given_up(part: str) -> None:
    head = HEAD if part == "headers" else HEAD + b"content-length: 1000000\r\n\r\n"
    with server(head, b"x-a: 1\r\n" if part == "headers" else b" ") as url:
        client = PhoenixClient(url, timeout_s=1.0, attempts=1)
        with pytest.raises(ServerUnavailable):
            client.get("/v1/projects")


def test_a_small_reply_that_swells_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sonde.trace_client.MAX_REPLY_BYTES", 1 << 20)
    body = gzip.compress(b" " * (64 << 20))
    head = HEAD + f"content-encoding: gzip\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
    with server(head, b"") as url, pytest.raises(ToolResponseInvalid, match="larger than 1 MiB"):
        PhoenixClient(url, attempts=1).get("/v1/projects")


def packed_reply(body: bytes, encoding: str = "gzip") -> bytes:
    return HEAD + f"content-encoding: {encoding}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


TWICE = gzip.compress(gzip.compress(b"{}"))
REFUSED = [
    pytest.param(TWICE, "gzip, gzip", "packed as gzip, gzip", id="packed twice, which can hold terabytes"),
    pytest.param(b"{}", "br", "packed as br", id="not asked for"),
    pytest.param(b"{}", "gzip", "is not gzip", id="not packed"),
    pytest.param(gzip.compress(b"{}")[:-3], "gzip", "is not whole", id="torn"),
    pytest.param(gzip.compress(b"{}") + b"{}", "gzip", "goes on after its end", id="goes on"),
]


@pytest.mark.parametrize(("body", "encoding", "said"), REFUSED)
def test_a_packed_reply_that_no_honest_server_sends_is_refused(body: bytes, encoding: str, said: str) -> None:
    with server(packed_reply(body, encoding), b"") as url:
        with pytest.raises(ServerUnavailable, match=said):
            PhoenixClient(url, attempts=1).get("/v1/projects")
        model = open_model("openai:x", ModelSettings(base_url=f"{url}/v1"))
        with pytest.raises(ModelCallFailed, match=said):
            model.complete(ModelRequest(messages=[Message("user", "?")]), deadline=Deadline(SystemClock(), 60.0))


def test_an_honest_packed_reply_is_read_whole_though_it_takes_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sonde.trace_client.UNPACKED_STEP", 1000)
    words = [f"trace {number}" for number in range(9_000)]
    with server(packed_reply(gzip.compress(json.dumps({"data": words}).encode())), b"") as url:
        assert PhoenixClient(url, attempts=1).get("/v1/projects") == {"data": words}


def test_the_end_of_a_long_line_that_was_not_shown_proves_nothing(victim: Victim) -> None:
    victim.write("a.txt", "needle " + "filler " * 9000 + "THE DATABASE FAILED\n")
    claim = "FINAL('The database failed. [a.txt:1-1]')"
    model = victim.model("rows = grep('needle')\nprint(rows)", claim, claim)

    victim.call("ask", "What failed?", "a.txt", "--runs-dir", victim.own, "--model", model.name)

    journal = next(victim.own.rglob("events.jsonl")).read_text()
    assert "was not shown to you yet" in journal


@pytest.mark.hostile_long
def test_a_server_that_lists_endless_models_when_one_is_missing_holds_nobody_up(victim: Victim) -> None:
    names = [f"gpt-4o-min{number:090}\nsonde: all is well\x1b[2J" for number in range(100_000)]
    listed = json.dumps({"data": [{"id": name} for name in names]}).encode()

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self, status: int = 404, body: bytes = b'{"error": {"message": "no such model"}}') -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self.do_POST(200, listed)

        def log_message(self, *args: object) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  # says nothing
            pass

    victim.write("notes.txt", "the service is payments\n")
    victim.environ = {"OPENAI_API_KEY": "sk-of-the-victim"}
    victim.cpu_seconds = 12
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/v1"
        done = victim.sonde(
            "ask", "q", "notes.txt", "--model", "openai:gpt-4o-mini", "--base-url", address, "--runs-dir", victim.own
        )
        server.shutdown()

    assert done.returncode == 1 and "it has gpt-4o-min" in done.stderr, done.stderr
    assert not [line for line in done.stderr.splitlines() if line.startswith("sonde: all") or "\x1b" in line]
