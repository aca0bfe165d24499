"""OTLP over HTTP: `POST /v1/traces`, protobuf or JSON, plain or gzip, into an `Intake`.

A reply of 200 means that the spans are on the disk; those that were refused are counted in its `partial_success`. 503 with `Retry-After`
means that nothing was stored and the exporter should send the request again, which exporters do by themselves: the store is behind, its
disk is full, or too many are connected.

On loopback it answers only to loopback's names, so that no web page reaches it by tricking DNS; anywhere else only to whoever has the
token. Web pages are refused in any case: they cannot send the two content types without asking first, and whatever names an origin is
turned away. A request has REQUEST_S seconds however it drips; the bodies in memory together are bounded, and one is decoded at a time.
It speaks no TLS: put a proxy before it where the network is not yours. `GET /healthz` says whether the watch turns, to whoever reaches
us; `GET /metrics` is for those who may send.
"""

from __future__ import annotations

import errno
import hmac
import ipaddress
import re
import threading
import time
import zlib
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Self
from urllib.parse import urlsplit

from sonde.core.canonical import plural
from sonde.errors import ConfigError, SondeError
from sonde.watch import otlp
from sonde.watch.exchange import BLOCK, RETRY_S, HttpExchange, HttpPort, HttpService
from sonde.watch.intake import Intake, NotKept
from sonde.watch.vitals import Vitals

PORT = 4318
BODY_BYTES = 64 * 1024 * 1024
UNPACKED_BYTES = 64 * 1024 * 1024
BODIES_BYTES = 160 * 1024 * 1024
CHUNKS = 200_000  # of one body
SHORTEST_TOKEN = 16
_LOOPBACK_NAME = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d{1,5})?", re.IGNORECASE | re.ASCII)
_ENCODINGS: dict[str, otlp.Encoding] = {
    "application/x-protobuf": "application/x-protobuf",
    "application/json": "application/json",
}
_RPC = {400: 3, 401: 16, 403: 7, 413: 8, 415: 3, 503: 14}  # codes of google.rpc for our statuses


class RefusedRequest(Exception):
    """A request that is answered with this status."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where to listen."""

    host: str
    port: int

    @classmethod
    def of(cls, text: str) -> Self:
        """From `HOST:PORT`, `[::1]:PORT` or `PORT` alone, which is on loopback."""
        host, colon, port = text.rpartition(":")
        if not port.isascii() or not port.isdigit() or int(port) > 65535 or (colon and not host):
            raise ConfigError(f"--listen takes HOST:PORT, such as 127.0.0.1:{PORT}; not {text!r}")
        return cls(host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port))

    @property
    def loopback(self) -> bool:
        """Whether only this machine reaches it."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


class OtlpListener(HttpService):
    """Serves an intake until closed, at `url`. Port 0 picks a free one. Anything but loopback needs a token."""

    def __init__(
        self, intake: Intake, address: ListenAddress, *, token: str | None = None, vitals: Vitals | None = None
    ) -> None:
        if token is None and not address.loopback:
            raise ConfigError(
                f"--listen {address.host}: others can reach that address, so a token is needed: set SONDE_LISTEN_TOKEN, or "
                "give --listen-token-file FILE"
            )
        if token is not None and (len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
            raise ConfigError(f"the token of --listen must have {SHORTEST_TOKEN} or more plain characters")
        try:
            self._http = _OtlpServer(intake, address, token, vitals)
        except OSError as error:
            taken = "another program uses this port; give another one" if error.errno == errno.EADDRINUSE else None
            raise ConfigError(f"--listen {address.host}:{address.port}: {taken or error.strerror or error}") from None
        super().__init__(self._http, "sonde-listen")

    def counts(self) -> dict[str, int]:
        """What became of spans since the start."""
        intake = self._http.intake
        return {"received": intake.kept, "refused": self._http.refused, "expired": intake.expired}

    @property
    def url(self) -> str:
        """What goes into OTEL_EXPORTER_OTLP_ENDPOINT."""
        host = self._http.address.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self._http.server_port}"


class _OtlpServer(HttpPort):
    def __init__(self, intake: Intake, address: ListenAddress, token: str | None, vitals: Vitals | None) -> None:
        self.intake = intake
        self.vitals = vitals
        self.refused = 0
        self.address = address
        self.token = None if token is None else token.encode()
        self.decoder = threading.Lock()
        self._counting = threading.Lock()
        self._bodies = 0
        super().__init__(address.host, address.port, _OtlpExchange)

    @contextmanager
    def room(self) -> Generator[_Room]:
        """Memory for one body, given back at the end."""
        room = _Room(self)
        try:
            yield room
        finally:
            self.use(-room.taken)

    def refuse(self, spans: int) -> None:
        """Count spans that were not stored."""
        with self._counting:
            self.refused += spans

    def use(self, size: int) -> None:
        """Count bytes of bodies in memory; refuses more than BODIES_BYTES."""
        with self._counting:
            if size > 0 and self._bodies + size > BODIES_BYTES:
                raise RefusedRequest(
                    HTTPStatus.SERVICE_UNAVAILABLE, "too many requests at once: send it again in a few seconds"
                )
            self._bodies += size


class _Room:
    def __init__(self, server: _OtlpServer) -> None:
        self._server = server
        self.taken = 0

    def take(self, size: int) -> None:
        self._server.use(size)
        self.taken += size


class _OtlpExchange(HttpExchange):
    server: _OtlpServer  # pyright: ignore[reportIncompatibleVariableOverride]  # no other server makes these

    def post(self) -> None:
        encoding: otlp.Encoding = "application/json"
        self._unread, self._taken = True, 0
        try:
            encoding = self._check()
            with self.server.room() as room:
                sent = self._body(room)
                self._unread = False
                with self._decoder():
                    received = otlp.read_request(self._unpacked(sent, room), encoding)
                    delivery = self.server.intake.accept(received.spans, received.lost)
                    refused = [*received.refused]
                    del received, sent  # while others wait for the disk too
            refused += delivery.settled()
        except RefusedRequest as refusal:
            self._fail(encoding, refusal.status, refusal.reason)
        except otlp.TooMuch as much:
            self._fail(encoding, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, str(much))
        except otlp.BadRequest as bad:
            self._fail(encoding, HTTPStatus.BAD_REQUEST, str(bad))
        except NotKept as failure:
            self._fail(encoding, HTTPStatus.SERVICE_UNAVAILABLE, failure.message)
        except OSError:
            raise  # the client is gone
        except Exception:  # noqa: BLE001  # the top of a request: the exporter must hear that nothing was stored
            self._fail(encoding, HTTPStatus.INTERNAL_SERVER_ERROR, "the request could not be processed")
        else:
            reason = "; ".join(refused[:3]) + ("; …" if len(refused) > 3 else "")
            self.server.refuse(len(refused))
            told = f"{plural(len(refused), 'span')} not stored: {reason}" if refused else ""
            self._reply(HTTPStatus.OK, encoding, otlp.accepted(encoding, len(refused), told))

    @contextmanager
    def _decoder(self) -> Generator[None]:
        """Waits for its turn no longer than the request may take."""
        if not self.server.decoder.acquire(timeout=max(0.0, self.timer.until - time.monotonic())):
            raise RefusedRequest(
                HTTPStatus.SERVICE_UNAVAILABLE, "other requests take long to decode: send it again in a few seconds"
            )
        try:
            yield
        finally:
            self.server.decoder.release()

    def get(self) -> None:
        self.close_connection = True  # a body that nobody reads must not become the next request
        path = urlsplit(self.path).path
        try:
            self._admit(asks_token=path != "/healthz")
            found = self.server.vitals.answer(path) if self.server.vitals is not None else None
            words = b"traces are sent to /v1/traces by POST; /healthz and /metrics are read\n"
            status, kind, body = found or (HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", words)
        except RefusedRequest as refusal:
            status, kind, body = refusal.status, "text/plain; charset=utf-8", f"{refusal.reason}\n".encode()
        except SondeError as error:
            status, kind, body = HTTPStatus.SERVICE_UNAVAILABLE, "text/plain; charset=utf-8", f"{error}\n".encode()
        self._reply(HTTPStatus(status), kind, body)

    def _check(self) -> otlp.Encoding:
        """The encoding of a request that may be read: it asks for the right thing, by a right name, and may do so."""
        self._admit()
        if urlsplit(self.path).path.rstrip("/") != "/v1/traces":
            raise RefusedRequest(
                HTTPStatus.NOT_FOUND,
                "only traces are taken, at /v1/traces; set OTEL_METRICS_EXPORTER=none and OTEL_LOGS_EXPORTER=none",
            )
        kind = self.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind not in _ENCODINGS:
            raise RefusedRequest(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the content type must be application/x-protobuf or application/json"
            )
        if self.headers.get("Content-Encoding", "identity").strip().lower() not in ("identity", "gzip"):
            raise RefusedRequest(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the content encoding must be gzip, or none")
        if self.server.intake.behind:
            raise RefusedRequest(HTTPStatus.SERVICE_UNAVAILABLE, "the store is behind: send it again in a few seconds")
        return _ENCODINGS[kind]

    def _admit(self, *, asks_token: bool = True) -> None:
        """Refuse whoever may not ask here."""
        if self.server.address.loopback and not _LOOPBACK_NAME.fullmatch(self.headers.get("Host", "")):
            raise RefusedRequest(HTTPStatus.FORBIDDEN, "this listener answers to 127.0.0.1 and localhost only")
        if "Origin" in self.headers:
            raise RefusedRequest(HTTPStatus.FORBIDDEN, "web pages may not send traces here")
        if self.server.token is not None and asks_token:
            scheme, _, given = self.headers.get("Authorization", "").partition(" ")
            same = hmac.compare_digest(given.strip().encode("utf-8", "replace"), self.server.token)
            if scheme.lower() != "bearer" or not same:
                raise RefusedRequest(
                    HTTPStatus.UNAUTHORIZED, "the token is missing or wrong: authorization=Bearer TOKEN"
                )

    def _body(self, room: _Room) -> bytes:
        """The body as it was sent, in one piece or in chunks."""
        lengths = self.headers.get_all("Content-Length", [])
        transfer = self.headers.get("Transfer-Encoding")
        if transfer is not None:
            if transfer.strip().lower() != "chunked" or lengths:
                raise RefusedRequest(HTTPStatus.BAD_REQUEST, "a body has either a Content-Length or chunks")
            return self._chunks(room)
        if len(lengths) != 1 or not lengths[0].isascii() or not lengths[0].isdigit() or len(lengths[0]) > 18:
            raise RefusedRequest(HTTPStatus.BAD_REQUEST, "the Content-Length is missing or no number")
        if int(lengths[0]) > BODY_BYTES:
            raise _too_large()
        body = bytearray()
        self._read_onto(body, int(lengths[0]), room)
        return bytes(body)

    def _read_onto(self, body: bytearray, size: int, room: _Room) -> None:
        """So many bytes more. Memory is taken as they come, not as they are announced."""
        while size > 0:
            part = self.rfile.read1(min(size, BLOCK))
            if not part:
                raise ConnectionAbortedError("the client hung up within the body")
            self._taken += len(part)
            room.take(len(part))
            body += part
            size -= len(part)

    def _chunks(self, room: _Room) -> bytes:
        body = bytearray()
        for _ in range(CHUNKS + 1):
            line = self.rfile.readline(1024).partition(b";")[0].strip()
            if not 0 < len(line) <= 8 or not all(digit in b"0123456789abcdefABCDEF" for digit in line):
                raise RefusedRequest(HTTPStatus.BAD_REQUEST, "a chunk has no size")
            size = int(line, 16)
            if len(body) + size > BODY_BYTES:
                raise _too_large()
            if size == 0:
                break
            self._read_onto(body, size, room)
            if self.rfile.readline(3) != b"\r\n":
                raise RefusedRequest(HTTPStatus.BAD_REQUEST, "a chunk is longer than its size")
        else:
            raise RefusedRequest(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body has more than {CHUNKS:,} chunks: send larger ones"
            )
        for _ in range(100):  # lines after the last chunk, which say nothing here
            if self.rfile.readline(8192) in (b"\r\n", b"\n", b""):
                return bytes(body)
        raise RefusedRequest(HTTPStatus.BAD_REQUEST, "too many lines after the last chunk")

    def _unpacked(self, sent: bytes, room: _Room) -> bytes:
        if self.headers.get("Content-Encoding", "identity").strip().lower() == "identity":
            return sent
        unpacker = zlib.decompressobj(wbits=31)
        try:
            body = unpacker.decompress(sent, UNPACKED_BYTES + 1)
        except zlib.error as error:
            raise RefusedRequest(HTTPStatus.BAD_REQUEST, f"the body is not gzip: {error}") from None
        if len(body) > UNPACKED_BYTES:
            raise RefusedRequest(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"the body unpacks to more than {UNPACKED_BYTES >> 20} MiB: export smaller batches",
            )
        if not unpacker.eof or unpacker.unused_data:
            raise RefusedRequest(HTTPStatus.BAD_REQUEST, "the gzip body is not whole, or goes on after its end")
        room.take(len(body))
        return body

    def _fail(self, encoding: otlp.Encoding, status: HTTPStatus, reason: str) -> None:
        if self._unread:
            self._discard()
        self._reply(status, encoding, otlp.failure(encoding, _RPC.get(status, 2), reason))

    def _discard(self) -> None:
        """Read the rest of a body that nobody wants: closing before that would reset the connection, and our reply with it."""
        self.close_connection = True
        self.timer.until = min(self.timer.until, time.monotonic() + 5.0)
        length = self.headers.get("Content-Length", "")
        left = int(length) - self._taken if length.isascii() and length.isdigit() and len(length) < 18 else BODY_BYTES
        chunked = "Transfer-Encoding" in self.headers
        with suppress(OSError):  # the other side may be gone already
            while left > 0 and (part := self.rfile.read1(min(left, BLOCK))):
                left -= len(part)
                if chunked and part.endswith(b"0\r\n\r\n"):
                    return

    def _reply(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            self.send_header("Retry-After", RETRY_S)
        if status == HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)


def _too_large() -> RefusedRequest:
    return RefusedRequest(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body has more than {BODY_BYTES >> 20} MiB: export smaller batches"
    )
