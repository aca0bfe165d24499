"""HTTP to a server that keeps traces: time-outs, retries on what may pass, and keys that never reach a message, a log or
the data of a reply.

A request is tried again after connection failures, read time-outs, 429 and 5xx, with growing pauses (or the one that the server asks for)
and never past the deadline: the client's own, or that of the run that asks. A reply, and all pages of a listing together, have limits of
size and time. Writes are upserts by identifier, so trying again does no harm. Redirects are not followed: a key must not travel to
another host.
"""

from __future__ import annotations

import json
import socket
import threading
import time
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

import httpx2
import msgspec

from sonde.core.canonical import MAX_JSON_ITEMS, has_too_many_items
from sonde.core.deadline import Deadline, deadline_in_force
from sonde.core.redaction import rewrite_value, secret_forms, url_secrets, without_surrogates
from sonde.errors import ConfigError, ToolCallFailed, ToolFault, ToolResponseInvalid

TIMEOUT_S = 30.0
ATTEMPTS = 4
FIRST_PAUSE_S = 0.5
MAX_PAUSE_S = 8.0
MAX_ASKED_PAUSE_S = 60.0  # of what a server asks for with Retry-After
MAX_REPLY_BYTES = 64 * 1024 * 1024
UNPACKED_STEP = 1024 * 1024
MAX_PAGES = 5000
MAX_CURSOR = 4096  # characters; it goes into an address, and we remember each of a listing
MAX_LISTING_BYTES = 2 * 1024 * 1024 * 1024
MAX_LISTING_S = 900.0  # of waiting for the pages of one listing
GRACE_S = 10.0  # what a run that is out of time may still read for the report that it leaves
KEYS = {
    "Phoenix": "PHOENIX_API_KEY",
    "Langfuse": "LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY",
    "LangSmith": "LANGSMITH_API_KEY",
}
INTERRUPTIBLE = True  # Ctrl-C may raise KeyboardInterrupt while code of this module waits (cli/interrupt.py)
Json = dict[str, Any]
Params = Mapping[str, str | int | Sequence[str] | None]


class ServerUnavailable(ToolCallFailed):
    """The server did not answer, also after trying again; a later run may succeed."""

    retryable = True


class ReplyTooLarge(ToolResponseInvalid):
    """The reply is more than we take in; fewer rows at once may fit."""


class ServerRefused(ToolFault):
    """The server said no (4xx) or pointed elsewhere (3xx); `status` is its code."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class TraceClient:
    """One server of a product. `headers` carry the key; no message holds them, or any of the `secrets`.

    `wait` is how it pauses between attempts; tests pass one that does not.
    """

    def __init__(
        self,
        product: str,
        base_url: str,
        *,
        headers: Mapping[str, str] | None = None,
        secrets: Sequence[str] = (),
        timeout_s: float = TIMEOUT_S,
        attempts: int = ATTEMPTS,
        deadline: Deadline | None = None,
        transport: httpx2.BaseTransport | None = None,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self.product = product
        self.base_url = _checked_url(product, base_url)
        self._timeout_s = timeout_s
        self._attempts = max(1, attempts)
        self._deadline = deadline
        self._wait = wait
        self._in_vain = 0
        self._received = 0
        self._lines: list[socket.socket] = []
        for name, value in (headers or {}).items():
            if not (name + value).isascii() or "\n" in value.strip():
                shown = "the API key" if name in {"authorization", "x-api-key"} else f"the header {name!r}"
                raise ConfigError(
                    f"{shown} for {product} holds a character that cannot be sent, such as a curly quote; copy it again"
                )
        sent = {name: value.strip() for name, value in (headers or {}).items()}
        self._keys = secret_forms([*sent.values(), *secrets, *url_secrets(base_url)])
        self._http = httpx2.Client(
            base_url=self.base_url,
            headers={**sent, "accept": "application/json", "accept-encoding": "gzip"},
            transport=transport,
            trust_env=False,  # a proxy from the environment would see the key
            follow_redirects=False,
        )

    def __repr__(self) -> str:
        return f"TraceClient({self.product!r}, {self.base_url!r})"

    def close(self) -> None:
        """Let go of the connections."""
        self._http.close()

    def get(self, path: str, params: Params | None = None) -> Json:
        """The JSON object at a path."""
        return self._request("GET", path, params, None)

    def post(self, path: str, body: Any, params: Params | None = None) -> Json:
        """Send JSON and get the JSON object that comes back."""
        return self._request("POST", path, params, body)

    def tell(self, path: str, body: Any, headers: Mapping[str, str]) -> httpx2.Response:
        """Post JSON once, to somebody who need not answer in JSON. RequestError if there is no answer."""
        return self._reply("POST", path, None, body, self._timeout(""), headers=headers)

    def without_keys(self, text: str) -> str:
        """What a server said, fit for a message."""
        return self._keys.remove(text)

    def _request(self, method: str, path: str, params: Params | None, body: Any) -> Json:
        query: list[tuple[str, str]] = []
        for name, value in (params or {}).items():
            if value is not None:
                values = [str(value)] if isinstance(value, (str, int)) else value
                query.extend((name, item) for item in values)
        sent = httpx2.QueryParams(tuple(query))
        problem, asked = "", 0.0
        patience = 1 if self._in_vain >= self._attempts else self._attempts  # a server silent for so long is asked once
        for attempt in range(patience):
            if attempt:
                usual = min(FIRST_PAUSE_S * 2 ** (attempt - 1), MAX_PAUSE_S, self._timeout(problem))
                left = MAX_ASKED_PAUSE_S if (deadline := self._limit()) is None else deadline.remaining()
                self._wait(max(usual, min(asked, MAX_ASKED_PAUSE_S, left)))
            self._in_vain += 1
            try:
                reply = self._reply(method, path, sent, body, self._timeout(problem))
            except httpx2.RequestError as failure:
                why = f": {failure}" if isinstance(failure, httpx2.DecodingError) else ""
                problem = f"{type(failure).__name__} at {method} {path}{why}"
                continue
            except (httpx2.InvalidURL, UnicodeError):
                raise ToolFault(
                    f"{self.product} cannot be asked at {path:.100}: an id or a name is too long for an address, or is not text"
                ) from None
            if reply.status_code < 300:
                self._in_vain = 0
                return self._decoded(reply, path)
            said = self._keys.remove(reply.text[:4_000])  # some servers repeat what was sent in the headers
            problem = f"{reply.status_code} at {method} {path}: {' '.join(said[:300].split())}"
            if reply.status_code != 429 and reply.status_code < 500:
                self._in_vain = 0
                key = (
                    f"; set {KEYS.get(self.product, 'its variable')} to a key that may do this"
                    if reply.status_code in (401, 403)
                    else ""
                )
                raise ServerRefused(f"{self.product} refused: {problem}{key}", reply.status_code)
            pause = reply.headers.get("retry-after", "")
            asked = float(pause) if pause.isdecimal() and len(pause) < 10 else 0.0
        raise ServerUnavailable(
            f"{self.product} at {self.base_url} did not answer after {self._in_vain} attempts: {problem}; "
            "is it running, and is --source right? Files work too: --source traces.jsonl"
        )

    def _reply(
        self,
        method: str,
        path: str,
        query: httpx2.QueryParams | None,
        body: Any,
        seconds: float,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> httpx2.Response:
        """The whole reply within the time, cut off under its reader if it drips, and no longer than we take in."""

        def traced(name: str, info: Mapping[str, Any]) -> None:
            if name.endswith((".connect_tcp.complete", ".start_tls.complete")):
                self._lines.append(info["return_value"].get_extra_info("socket"))

        def give_up() -> None:  # of all lines: which one was lent for this request is not told
            for line in self._lines:
                with suppress(OSError, TypeError):
                    socket.socket.shutdown(line, socket.SHUT_RDWR)
            self._lines.clear()

        began, content = time.monotonic(), bytearray()
        timer = threading.Timer(seconds, give_up)
        timer.daemon = True
        timer.start()
        try:
            options: dict[str, Any] = {
                "params": query,
                "json": body,
                "headers": headers,
                "timeout": seconds,
                "extensions": {"trace": traced},
            }
            with self._http.stream(method, path, **options) as reply:
                for piece in unpacked(reply):
                    content += piece
                    if len(content) > MAX_REPLY_BYTES:
                        raise ReplyTooLarge(f"the reply at {path} is larger than {MAX_REPLY_BYTES >> 20} MiB")
                    if time.monotonic() - began > seconds:
                        raise httpx2.ReadTimeout(f"the reply took longer than {seconds:g} s")
                asked = {name: reply.headers[name] for name in ("retry-after",) if name in reply.headers}
                return httpx2.Response(reply.status_code, content=bytes(content), headers=asked)
        except (httpx2.NetworkError, httpx2.ProtocolError) as failure:
            if time.monotonic() - began < seconds:
                raise
            raise httpx2.ReadTimeout(f"no whole reply within {seconds:g} s") from failure  # we have hung up ourselves
        finally:
            timer.cancel()

    @contextmanager
    def within(self, deadline: Deadline) -> Generator[None]:
        """Inside this block nothing is asked past this deadline, not even what a run that is out of time may still read."""
        before, self._deadline = self._deadline, deadline
        try:
            yield
        finally:
            self._deadline = before

    def _limit(self) -> Deadline | None:
        """The client's own deadline, or that of the run that asks."""
        return self._deadline or deadline_in_force()

    def _timeout(self, problem: str) -> float:
        deadline = self._limit()
        left = self._timeout_s if deadline is None else deadline.remaining()
        if left <= 0 and deadline is not None and deadline is not self._deadline:
            left = deadline.seconds + GRACE_S - deadline.elapsed()
        if left <= 0:
            raise ServerUnavailable(
                f"no time left to ask {self.product} at {self.base_url}{f' (before: {problem})' if problem else ''}"
            )
        return min(self._timeout_s, left)

    def _decoded(self, reply: httpx2.Response, path: str) -> Json:
        self._received += len(reply.content)
        if has_too_many_items(reply.content):
            raise ReplyTooLarge(f"the reply at {path} holds more than {MAX_JSON_ITEMS} values")
        try:
            try:
                value = msgspec.json.decode(reply.content or b"{}")
            except (msgspec.DecodeError, UnicodeDecodeError):  # it refuses NaN and bytes that are not UTF-8
                value = json.loads(reply.content.decode("utf-8", "replace"))
                value = rewrite_value(value, without_surrogates)  # no file and no address can hold those
            whole = json.dumps(value, ensure_ascii=False)
            if (
                self._keys.remove(whole) != whole
            ):  # a server may repeat the key in its data, and code would see halves of it
                value = rewrite_value(value, self._keys.remove)
        except (ValueError, RecursionError):
            raise ToolResponseInvalid(
                f"the reply at {path} is not JSON; is this a {self.product} server? (langfuse:URL and langsmith:URL name others)"
            ) from None
        return cast("Json", value) if isinstance(value, dict) else {"data": value}

    def pages(
        self, what: str, ask: Callable[[str | None, int], tuple[Any, Any]], *, size: int = 1
    ) -> Iterator[list[Json]]:
        """Pages of rows up to the last one. `ask` gets a cursor and the size of a page, and gives the rows with the next cursor.
        If a page is more than we take in, it is asked for again with fewer rows.

        ToolResponseInvalid if the rows are no list, or if the pages go round in a circle, never end, or take too much time or room.
        """
        cursor: str | None = None
        seen: set[str] = set()
        waited = received = 0.0
        for _ in range(MAX_PAGES):
            began, before = time.monotonic(), self._received
            while True:
                try:
                    rows, following = ask(cursor, size)
                    break
                except ReplyTooLarge:
                    if size == 1:
                        raise
                    size = max(1, size // 8)
            waited += time.monotonic() - began  # what the caller does between two pages does not count
            received += self._received - before
            if waited > MAX_LISTING_S or received > MAX_LISTING_BYTES:
                raise ToolResponseInvalid(
                    f"{self.product} at {self.base_url} gave {received / (1 << 20):.0f} MiB of {what} in {waited:.0f} s, and no end"
                )
            if not isinstance(rows, list) or not all(isinstance(row, dict) for row in cast("list[Any]", rows)):
                raise ToolResponseInvalid(
                    f"the reply of {self.product} at {what} holds no list of rows; is this a {self.product} server?"
                )
            yield cast("list[Json]", rows)
            if not following:
                return
            # Python refuses to write a number of thousands of digits.
            number = isinstance(following, int) and abs(following) < 1 << 64
            cursor = str(following) if number or isinstance(following, str) else None
            if cursor is None or len(cursor) > MAX_CURSOR:
                raise ToolResponseInvalid(
                    f"{self.product} at {self.base_url} sent no usable cursor for the next page of {what}: a cursor is a text of at "
                    f"most {MAX_CURSOR:,} characters"
                )
            if cursor in seen:
                raise ToolResponseInvalid(
                    f"{self.product} at {self.base_url} gives the same page of {what} again and again"
                )
            seen.add(cursor)
        raise ToolResponseInvalid(f"{self.product} at {self.base_url} gave {MAX_PAGES} pages of {what}, and no end")


def unpacked(reply: httpx2.Response) -> Iterator[bytes]:
    """What a reply says, piece by piece, plain or gzip. DecodingError if it is packed otherwise, or not whole.

    A piece may be empty: packed data can go on for terabytes and mean nothing, and the reader has to look at the clock.
    """
    encoding = reply.headers.get("content-encoding", "identity").strip().lower()
    if encoding in {"", "identity"}:
        yield from reply.iter_bytes()
        return
    if encoding not in {"gzip", "x-gzip"}:
        raise httpx2.DecodingError(f"the reply is packed as {encoding:.40}, where gzip was asked for")
    unpacker = zlib.decompressobj(wbits=31)
    try:
        for packed in reply.iter_raw():
            if unpacker.eof:
                raise httpx2.DecodingError("the packed reply goes on after its end")
            piece, rest = b"", packed
            while rest or len(piece) == UNPACKED_STEP:
                yield (piece := unpacker.decompress(rest, UNPACKED_STEP))
                rest = unpacker.unconsumed_tail
    except zlib.error:
        raise httpx2.DecodingError("the reply is not gzip, as it says") from None
    if not unpacker.eof or unpacker.unused_data:
        raise httpx2.DecodingError("the packed reply is not whole, or goes on after its end")


def _checked_url(product: str, text: str) -> str:
    try:
        url = httpx2.URL(text)
    except httpx2.InvalidURL:
        raise ConfigError(f"the address of {product} is not a URL; for example: http://localhost:6006") from None
    if url.scheme not in {"http", "https"} or not url.host:
        raise ConfigError(
            f"the address of {product} must begin with http:// or https://; for example: http://localhost:6006"
        )
    if url.userinfo:
        raise ConfigError(f"the address of {product} must not hold a password; pass an API key or headers instead")
    return str(url).rstrip("/")
