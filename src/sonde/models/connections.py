"""Connections to one server, reused by many threads.

Each connection is its own client, and idle ones wait on a stack. One shared pool would do the same, but it looks
through all its connections at every request: with a hundred in flight that cost as much as the rest of a call.
A stop cuts the socket under its reader; only a connection that is still being made cannot be cut.
"""

from __future__ import annotations

import math
import socket
import ssl
import threading
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import httpx2

from sonde.core.cancellation import Stop
from sonde.core.deadline import Deadline


class Connection:
    """A client with one connection, and its socket, so that another thread can cut it."""

    def __init__(self, client: httpx2.Client) -> None:
        self.client = client
        self._socket: socket.socket | None = None
        self._cut = False

    @contextmanager
    def send(
        self, method: str, url: httpx2.URL, content: bytes, timeout: httpx2.Timeout, stop: Stop
    ) -> Generator[httpx2.Response]:
        self._cut = late = False
        told: dict[str, Any] = {"trace": self._traced}

        def give_up() -> None:
            nonlocal late
            late = True
            self.cut()

        # A read timeout starts anew with every byte: without this, a server that drips its headers could be waited for without end.
        headers = threading.Timer(timeout.read or 0, give_up)
        headers.daemon = True
        if timeout.read is not None:
            headers.start()
        try:
            with (
                stop.cutting(self.cut),
                self.client.stream(method, url, content=content, timeout=timeout, extensions=told) as response,
            ):
                headers.cancel()
                yield response
        except httpx2.TransportError as failure:
            if late:
                raise httpx2.ReadTimeout(f"no whole header within {timeout.read:g} s") from failure
            raise
        finally:
            headers.cancel()

    def cut(self) -> None:
        """Release whoever waits for the other side, now or as soon as the socket exists."""
        self._cut = True
        if self._socket is not None:
            shut(self._socket)

    def _traced(self, name: str, info: Mapping[str, Any]) -> None:
        """A new connection, or the same one with TLS around it: a socket object of its own."""
        if name.endswith((".connect_tcp.complete", ".start_tls.complete")):
            self._socket = info["return_value"].get_extra_info("socket")
            if self._cut:
                self.cut()


def shut(line: socket.socket) -> None:
    """End a connection under its reader."""
    with suppress(OSError):  # already closed by the other side
        socket.socket.shutdown(line, socket.SHUT_RDWR)  # not SSLSocket's: it would pull TLS from under the reader


class ConnectionStack:
    """Lends a connection to each request; opens one only when none is idle."""

    def __init__(self, url: httpx2.URL, headers: dict[str, str], proxy: str | None) -> None:
        self._url = url
        self._headers = headers
        self._proxy = proxy
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._certificates: ssl.SSLContext | bool | None = None
        self._closed = False

    def post(self, content: bytes, timeout: httpx2.Timeout, stop: Stop) -> AbstractContextManager[httpx2.Response]:
        """The answer to a request."""
        return self._send("POST", self._url, content, timeout, stop)

    def get(self, url: httpx2.URL, timeout: httpx2.Timeout, stop: Stop) -> AbstractContextManager[httpx2.Response]:
        """Another page of the same server."""
        return self._send("GET", url, b"", timeout, stop)

    @contextmanager
    def _send(
        self, method: str, url: httpx2.URL, content: bytes, timeout: httpx2.Timeout, stop: Stop
    ) -> Generator[httpx2.Response]:
        with self._lock:
            # The last used: its connection is the least likely to have gone stale.
            line = self._idle.pop() if self._idle else None
            if (
                line is None and self._certificates is None
            ):  # once: reading them takes 20 ms, which plain HTTP need not pay
                secure = self._url.scheme == "https" or self._proxy is not None
                self._certificates = httpx2.create_ssl_context(trust_env=False) if secure else False
            options: dict[str, Any] = {"verify": self._certificates, "proxy": self._proxy}
        if line is None:  # the environment (proxies, certificates) is read above, once, and passed down
            line = Connection(httpx2.Client(headers=self._headers, trust_env=False, **options))
        try:
            with line.send(method, url, content, timeout, stop) as response:
                yield response
        finally:
            with self._lock:
                closed = self._closed
                if not closed:
                    self._idle.append(line)
            if closed:
                line.client.close()

    def close(self) -> None:
        """Close the idle lines now and the others when they come back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for line in idle:
            line.client.close()


class LineTimer:
    """Cuts the line when time is up: a read timeout alone restarts with every byte that a server drips."""

    def __init__(self, attempt: Deadline) -> None:
        self._attempt = attempt
        self.fired = False

    @contextmanager
    def cutting(self, response: httpx2.Response) -> Generator[None]:
        """Inside this block the line is cut when the attempt's time is up."""
        remaining = self._attempt.remaining()
        whole = "content-length" in response.headers  # the server has all of it: no reason to pay for a thread
        if whole and not math.isinf(remaining):
            response.request.extensions["timeout"]["read"] = max(remaining, 0.001)  # from here on, not from the start
        if whole or math.isinf(remaining):
            yield
            return
        with self.within(response, remaining):
            yield

    @contextmanager
    def within(self, response: httpx2.Response, seconds: float) -> Generator[None]:
        """Inside this block the line is cut after `seconds`."""
        line = response.extensions["network_stream"].get_extra_info("socket")
        if not isinstance(line, socket.socket):
            yield
            return

        def cut() -> None:
            self.fired = True
            shut(line)

        timer = threading.Timer(seconds, cut)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
