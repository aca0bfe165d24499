"""A small web server over run folders, for one person on this machine.

It listens on loopback only, answers only requests that name it by a loopback name (so that no foreign page can reach it by tricking DNS),
only GET, and only with the page's own files and the runs of its shelf. The page may load nothing from elsewhere. It has no passwords:
other users of this machine can read what it shows while it runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from sonde.errors import SondeError, UsageError
from sonde.runs.rundir import NoSuchRun, RunDir
from sonde.viewer.shelf import Shelf

STATIC = files("sonde.viewer") / "static"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
MOST_EVENTS = 500
Query = Mapping[str, Sequence[str]]


class ViewerServer:
    """Serves until closed. `url` is where; port 0 takes a free one; `cache` keeps indexes of trace files."""

    def __init__(
        self, runs_dir: str | Path, *, port: int = 0, named: Sequence[RunDir] = (), cache: Path | None = None
    ) -> None:
        self.shelf = Shelf(runs_dir, named, cache=cache)
        self._http = _Listener(self.shelf, port)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://127.0.0.1:{self._http.server_port}/"

    def url_of(self, run_id: str) -> str:
        """Where the page of one run is."""
        return f"{self.url}#/run/{run_id}"

    def start(self) -> Self:
        """Serve in the background."""
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop; closing twice is fine."""
        if self._thread.is_alive():
            self._http.shutdown()
            self._thread.join()
        self._http.server_close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Listener(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, shelf: Shelf, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Exchange)
        self.shelf = shelf

    @cached_property
    def names(self) -> frozenset[str]:
        """What a request may call us."""
        return frozenset(f"{host}:{self.server_port}" for host in ("127.0.0.1", "localhost", "[::1]"))

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that hangs up is no news."""


class _Exchange(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Listener  # pyright: ignore[reportIncompatibleVariableOverride]  # no other server makes these
    server_version = "sonde"
    sys_version = ""

    def do_GET(self) -> None:
        try:
            status, kind, body = self._answer()
        except NoSuchRun as error:
            status, kind, body = HTTPStatus.NOT_FOUND, "application/json", _problem(error)
        except SondeError as error:
            status, kind, body = HTTPStatus.CONFLICT, "application/json", _problem(error)
        except Exception as error:  # noqa: BLE001  # the top of a request: the next one must still be served
            status, kind, body = HTTPStatus.INTERNAL_SERVER_ERROR, "application/json", _problem(error)
        self._send(status, kind, body)

    def _answer(self) -> tuple[HTTPStatus, str, bytes]:
        if self.headers.get("Host", "") not in self.server.names:
            return HTTPStatus.FORBIDDEN, "text/plain", b"this viewer answers to 127.0.0.1 and localhost only\n"
        address = urlsplit(self.path)
        if address.path.startswith("/api/"):
            parts = tuple(unquote(part) for part in address.path.split("/")[2:])
            answer = route(self.server.shelf, parts, parse_qs(address.query))
            return HTTPStatus.OK, "application/json", msgspec.json.encode(answer)
        return static_file(address.path)

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the overridden method's name for it
        """Silent: the terminal belongs to the command that started us."""


def _problem(error: Exception) -> bytes:
    return msgspec.json.encode({"error": str(error) or type(error).__name__})


def static_file(path: str) -> tuple[HTTPStatus, str, bytes]:
    """One of the page's own files, by its plain name."""
    name = path.lstrip("/") or "index.html"
    if name not in {each.name for each in STATIC.iterdir()}:
        return HTTPStatus.NOT_FOUND, "text/plain", b"no such page\n"
    return HTTPStatus.OK, TYPES[Path(name).suffix], (STATIC / name).read_bytes()


def route(shelf: Shelf, parts: Sequence[str], query: Query) -> Any:
    """The data behind an address below /api/."""
    match parts:
        case ("runs",):
            return shelf.runs()
        case ("runs", run_id, "events"):
            return shelf.stream(run_id).news(_number(query, "after", -1))
        case ("runs", run_id, "full"):
            return shelf.stream(run_id).full(_numbers(query))
        case ("runs", run_id, "excerpts"):
            return shelf.excerpts(run_id)
        case ("compare", left, right):
            return shelf.compare(left, right)
        case _:
            raise NoSuchRun("there is no such address")


def _number(query: Query, name: str, default: int) -> int:
    return _parsed(query[name][0], int) if name in query else default


def _numbers(query: Query) -> list[int]:
    return [_parsed(part, int) for part in query.get("n", [""])[0].split(",")[:MOST_EVENTS] if part]


def _parsed(text: str, kind: Callable[[str], int]) -> int:
    try:
        return kind(text)
    except ValueError:
        raise UsageError(f"{text[:40]!r} is not a number") from None
