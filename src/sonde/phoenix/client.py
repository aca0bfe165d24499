"""HTTP to a Phoenix server: time-outs, retries on what may pass, and keys that never reach a message or a log.

A request is tried again after connection failures, read time-outs, 429 and 5xx, with growing pauses and never past the deadline. Writes are
upserts by identifier, so trying again does no harm. Redirects are not followed: a key must not travel to another host.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import httpx2
import msgspec

from sonde.core.deadline import Deadline
from sonde.core.redaction import secret_forms, url_secrets
from sonde.errors import ConfigError, ToolCallFailed, ToolFault, ToolResponseInvalid

TIMEOUT_S = 30.0
ATTEMPTS = 4
FIRST_PAUSE_S = 0.5
MAX_PAUSE_S = 8.0
MAX_REPLY_BYTES = 512 * 1024 * 1024
Json = dict[str, Any]
Params = Mapping[str, str | int | Sequence[str] | None]


class PhoenixUnavailable(ToolCallFailed):
    """The server did not answer, also after trying again; a later run may succeed."""

    retryable = True


class PhoenixRefused(ToolFault):
    """The server said no (4xx) or pointed elsewhere (3xx); `status` is its code."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class PhoenixClient:
    """One server. `wait` is how it pauses between attempts; tests pass one that does not."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
        attempts: int = ATTEMPTS,
        deadline: Deadline | None = None,
        transport: httpx2.BaseTransport | None = None,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self.base_url = _checked_url(base_url)
        self._timeout_s = timeout_s
        self._attempts = max(1, attempts)
        self._deadline = deadline
        self._wait = wait
        self._in_vain = 0
        self._lines: list[socket.socket] = []
        secret = {"authorization": f"Bearer {api_key}"} if api_key else {}
        given = {**secret, **dict(headers or {})}
        for name, value in given.items():
            if not (name + value).isascii() or "\n" in value.strip():
                shown = "the API key" if name == "authorization" else f"the header {name!r}"
                raise ConfigError(
                    f"{shown} for Phoenix holds a character that cannot be sent, such as a curly quote; copy it again"
                )
        sent = {name: value.strip() for name, value in given.items()}
        held = {api_key or "", *sent.values()}
        self._keys = secret_forms([*held, *url_secrets(base_url)])
        self._http = httpx2.Client(
            base_url=self.base_url,
            headers={**sent, "accept": "application/json"},
            transport=transport,
            trust_env=False,  # a proxy from the environment would see the key
            follow_redirects=False,
        )

    def __repr__(self) -> str:
        return f"PhoenixClient({self.base_url!r})"

    def close(self) -> None:
        """Let go of the connections."""
        self._http.close()

    def get(self, path: str, params: Params | None = None) -> Json:
        """The JSON object at a path."""
        return self._request("GET", path, params, None)

    def post(self, path: str, body: Any, params: Params | None = None) -> Json:
        """Send JSON and get the JSON object that comes back."""
        return self._request("POST", path, params, body)

    def _request(self, method: str, path: str, params: Params | None, body: Any) -> Json:
        query: list[tuple[str, str]] = []
        for name, value in (params or {}).items():
            if value is not None:
                values = [str(value)] if isinstance(value, (str, int)) else value
                query.extend((name, item) for item in values)
        sent = httpx2.QueryParams(tuple(query))
        problem = ""
        patience = 1 if self._in_vain >= self._attempts else self._attempts  # a server silent for so long is asked once
        for attempt in range(patience):
            if attempt:
                self._wait(min(FIRST_PAUSE_S * 2 ** (attempt - 1), MAX_PAUSE_S, self._timeout(problem)))
            self._in_vain += 1
            try:
                reply = self._reply(method, path, sent, body, self._timeout(problem))
            except httpx2.RequestError as failure:
                problem = f"{type(failure).__name__} at {method} {path}"
                continue
            if reply.status_code < 300:
                self._in_vain = 0
                return _decoded(reply, path)
            said = self._keys.remove(reply.text[:4_000])  # some servers repeat what was sent in the headers
            problem = f"{reply.status_code} at {method} {path}: {' '.join(said[:300].split())}"
            if reply.status_code != 429 and reply.status_code < 500:
                self._in_vain = 0
                raise PhoenixRefused(f"Phoenix refused: {problem}", reply.status_code)
        raise PhoenixUnavailable(
            f"Phoenix at {self.base_url} did not answer after {self._in_vain} attempts: {problem}; "
            "is it running, and is --source right? Files work too: --source traces.jsonl"
        )

    def _reply(self, method: str, path: str, query: httpx2.QueryParams, body: Any, seconds: float) -> httpx2.Response:
        """The whole reply within the time, cut off under its reader if it drips, and no longer than we take in."""

        def traced(name: str, info: Mapping[str, Any]) -> None:
            if name.endswith((".connect_tcp.complete", ".start_tls.complete")):
                self._lines.append(info["return_value"].get_extra_info("socket"))

        def give_up() -> None:  # of all lines: which one was lent for this request is not told
            for line in self._lines:
                with suppress(OSError, TypeError):
                    socket.socket.shutdown(line, socket.SHUT_RDWR)
            self._lines.clear()

        timer = threading.Timer(seconds, give_up)
        timer.daemon = True
        timer.start()
        began, content = time.monotonic(), bytearray()
        try:
            options: dict[str, Any] = {
                "params": query,
                "json": body,
                "timeout": seconds,
                "extensions": {"trace": traced},
            }
            with self._http.stream(method, path, **options) as reply:
                for chunk in reply.iter_bytes():
                    content += chunk
                    if len(content) > MAX_REPLY_BYTES:
                        largest = f"the reply at {path} is larger than {MAX_REPLY_BYTES >> 20} MiB"
                        raise PhoenixRefused(largest, reply.status_code)
                    if time.monotonic() - began > seconds:
                        raise httpx2.ReadTimeout(f"the reply took longer than {seconds:g} s")
                return httpx2.Response(reply.status_code, content=bytes(content))
        finally:
            timer.cancel()

    def _timeout(self, problem: str) -> float:
        left = self._deadline.remaining() if self._deadline is not None else self._timeout_s
        if left <= 0:
            raise PhoenixUnavailable(
                f"no time left to ask Phoenix at {self.base_url}{f' (before: {problem})' if problem else ''}"
            )
        return min(self._timeout_s, left)


def _checked_url(text: str) -> str:
    try:
        url = httpx2.URL(text)
    except httpx2.InvalidURL:
        raise ConfigError("the address of Phoenix is not a URL; for example: http://localhost:6006") from None
    if url.scheme not in {"http", "https"} or not url.host:
        raise ConfigError(
            "the address of Phoenix must begin with http:// or https://; for example: http://localhost:6006"
        )
    if url.userinfo:
        raise ConfigError("the address of Phoenix must not hold a password; pass an API key or headers instead")
    return str(url).rstrip("/")


def _decoded(reply: httpx2.Response, path: str) -> Json:
    try:
        value = msgspec.json.decode(reply.content or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError):  # it refuses NaN and bytes that are not UTF-8
        try:
            value = json.loads(reply.content.decode("utf-8", "replace"))
        except ValueError:
            raise ToolResponseInvalid(f"the reply at {path} is not JSON; is this a Phoenix server?") from None
    return cast("Json", value) if isinstance(value, dict) else {"data": value}
