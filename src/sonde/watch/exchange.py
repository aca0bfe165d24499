"""The manners of our small HTTP servers: the listener of a watch and the viewer.

A request has REQUEST_S seconds and HEAD_BYTES for its head, however it drips; connections are few, and the idlest makes room. What two
readers could understand in two ways (two Hosts, two lengths, a length and chunks, a line without a colon, an address of another
server) is refused before anybody looks at it. Every refusal is one plain line that repeats nothing of the request, and ends the
connection.
"""

from __future__ import annotations

import http.client
import io
import math
import socket
import threading
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

CONNECTIONS = 128
IDLE_S = 120.0
REQUEST_S = 30.0
HEAD_BYTES = 128 * 1024
RETRY_S = "2"
BLOCK = 64 * 1024
_DRAINED_BYTES = 1024 * 1024
_DRAINED_S = 2.0
_ONCE = (
    *("Host", "Origin", "Authorization", "X-Sonde-Key", "Sec-Fetch-Site"),
    *("Content-Type", "Content-Encoding", "Content-Length", "Transfer-Encoding"),
)
_WORDS = {
    HTTPStatus.BAD_REQUEST: "this is no HTTP request",
    HTTPStatus.METHOD_NOT_ALLOWED: "only GET and POST are understood here",
    HTTPStatus.REQUEST_URI_TOO_LONG: "the address is too long",
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE: "the headers are too many or too long",
    HTTPStatus.HTTP_VERSION_NOT_SUPPORTED: "ask with HTTP/1.1",
}


class HttpService:
    """Serves in the background until closed."""

    def __init__(self, http: HttpPort, name: str) -> None:
        self._serving = http
        self._thread = threading.Thread(target=http.serve_forever, args=(0.05,), name=name, daemon=True)

    def start(self) -> Self:
        """Serve in the background."""
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop; closing twice is fine."""
        if self._thread.is_alive():
            self._serving.shutdown()
            self._thread.join()
        self._serving.server_close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()


class HttpPort(ThreadingHTTPServer):
    """A port with a thread for each connection, up to CONNECTIONS."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = CONNECTIONS

    def __init__(self, host: str, port: int, exchange: type[HttpExchange]) -> None:
        self._guard = threading.Lock()
        self._idle_since: dict[socket.socket, float | None] = {}
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), exchange)

    def server_bind(self) -> None:
        """Without the look-up of our own name in DNS that the parent does."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """A thread for each connection, up to CONNECTIONS. Then the one that has been idle longest is closed to make room."""
        with self._guard:
            longest = None
            if full := len(self._idle_since) >= CONNECTIONS:
                idle = [(since, each) for each, since in self._idle_since.items() if since is not None]
                longest = min(idle, key=lambda pair: pair[0], default=(0.0, None))[1]
            if longest is not None:
                del self._idle_since[longest]
            if not full or longest is not None:
                self._idle_since[request] = time.monotonic()
        if full and longest is None:
            self._turn_away(request)
            return
        if longest is not None:
            with suppress(OSError):  # the other side may be gone already
                longest.shutdown(socket.SHUT_RDWR)  # its thread wakes up and ends
        super().process_request(request, client_address)

    def _turn_away(self, request: socket.socket) -> None:
        with suppress(OSError):  # the other side may be gone already
            request.settimeout(0)
            request.send(
                f"HTTP/1.1 503 Service Unavailable\r\nRetry-After: {RETRY_S}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
            )
        self.shutdown_request(request)

    def close_request(self, request: Any) -> None:
        """Forget the connection."""
        with self._guard:
            self._idle_since.pop(request, None)
        super().close_request(request)

    def mark(self, request: socket.socket, *, idle: bool) -> None:
        """Say whether a connection waits for a request."""
        with self._guard:
            if request in self._idle_since:
                self._idle_since[request] = time.monotonic() if idle else None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Silent: clients hang up all the time."""


class _TimedReader(io.RawIOBase):
    """Reads a socket until a moment, however slowly its bytes come, and no more than there is room for."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.until = 0.0
        self.room = math.inf

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request took too long")
        if self.room <= 0:
            raise http.client.HTTPException("the head is too long")
        self._connection.settimeout(left)
        count = self._connection.recv_into(buffer)
        self.room -= count
        return count


class HttpExchange(BaseHTTPRequestHandler, ABC):
    """The requests of one connection. `get` and `post` see only those that have one meaning."""

    protocol_version = "HTTP/1.1"
    server: HttpPort  # pyright: ignore[reportIncompatibleVariableOverride]  # no other server makes these
    server_version = "sonde"
    sys_version = ""

    @abstractmethod
    def get(self) -> None:
        """Answer a GET."""

    @abstractmethod
    def post(self) -> None:
        """Answer a POST."""

    def do_GET(self) -> None:
        """The parent's name for it."""
        self.get()

    def do_POST(self) -> None:
        """The parent's name for it."""
        self.post()

    def setup(self) -> None:
        """Read the connection with a limit of time."""
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        self.timer = _TimedReader(self.connection)
        self.rfile = self._buffered = io.BufferedReader(self.timer, BLOCK)

    def handle_one_request(self) -> None:
        """One request, or the end of the connection."""
        self.server.mark(self.connection, idle=True)
        self.timer.until, self.timer.room = time.monotonic() + IDLE_S, HEAD_BYTES
        self.close_connection = True
        try:
            if not self._buffered.peek(1):
                return
            self.server.mark(self.connection, idle=False)
            self.timer.until = time.monotonic() + REQUEST_S
            super().handle_one_request()
        except (OSError, http.client.HTTPException):  # gone, or too slow, or too long
            self.close_connection = True

    def parse_request(self) -> bool:
        """Whether there is a request that has one meaning; otherwise it is answered."""
        if not super().parse_request():
            return False
        self.timer.room = math.inf
        if wrong := self._ambiguous():
            self.refuse(HTTPStatus.BAD_REQUEST, wrong)
        return not wrong

    def _ambiguous(self) -> str:
        """What two readers of the head could understand in two ways; "" for nothing."""
        for name in _ONCE:
            if len(self.headers.get_all(name, [])) > 1:
                return f"a request has one {name} header, not several"
        length = self.headers.get("Content-Length", "0").strip()
        if self.headers.defects or self.headers.get_payload():
            return "a header line has no name with a colon"
        if self.request_version == "HTTP/0.9":
            return "ask with HTTP/1.1"
        if self.request_version != "HTTP/1.0" and "Host" not in self.headers:
            return "a request names its server in a Host header"
        if not self.path.startswith("/"):
            return "the address begins with /: this server is not a proxy"
        if "Transfer-Encoding" in self.headers and "Content-Length" in self.headers:
            return "a body has either a Content-Length or chunks"
        if not length.isascii() or not length.isdigit() or len(length) > 18:
            return "the Content-Length is not a number"
        return ""

    @property
    def has_body(self) -> bool:
        """Whether the head announces a body."""
        return "Transfer-Encoding" in self.headers or self.headers.get("Content-Length", "0").strip() != "0"

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the parent refuses, without its page of HTML and without the client's words."""
        del message, explain
        status = HTTPStatus.METHOD_NOT_ALLOWED if code == HTTPStatus.NOT_IMPLEMENTED else HTTPStatus(code)
        self.refuse(status, _WORDS.get(status, status.phrase))

    def refuse(self, status: HTTPStatus, words: str) -> None:
        """Answer with one line, and end the connection."""
        self.close_connection = True
        self.request_version = self.protocol_version  # to whoever spoke none that we know, too
        body = f"{words}\n".encode()
        headers = {"Content-Type": "text/plain; charset=utf-8", "X-Content-Type-Options": "nosniff"}
        allow = {"Allow": "GET, POST"} if status == HTTPStatus.METHOD_NOT_ALLOWED else {}
        self.send_response(status)
        for name, value in {**headers, **allow, "Content-Length": str(len(body)), "Connection": "close"}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        with suppress(OSError):  # closing while bytes are unread would reset the connection, and our reply with it
            self.connection.shutdown(socket.SHUT_WR)
            self.timer.until, self.timer.room = time.monotonic() + _DRAINED_S, math.inf
            left = _DRAINED_BYTES
            while left > 0 and (part := self._buffered.read1(BLOCK)):
                left -= len(part)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the overridden method's name for it
        """Silent: the terminal belongs to the command that started us."""
