"""A small web server over run folders and the issues of a watch, for one person on this machine.

It listens on loopback only and answers only requests that address it by a loopback name, so that no foreign page can reach it by
tricking DNS. It serves only the page's own files, the runs on its shelf and one watch. The page may load nothing from elsewhere. There
are no passwords for reading: other users of this machine can read what it shows while it runs. Issues are changed only by POST requests
of our own page that carry the key, which is in the address that was printed for the user.
"""

from __future__ import annotations

import hmac
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property, partial
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from sonde.api.consent import is_trusted, readable_places
from sonde.disk import AnyPath
from sonde.errors import SondeError, UsageError
from sonde.runs.catalog import list_runs, summarise
from sonde.runs.compare import compare
from sonde.runs.rundir import TRACE, NoSuchRun, Places, RunDir, places_of, run_ids
from sonde.viewer.excerpts import shown_excerpts, shown_trace
from sonde.viewer.issues import MOST_BYTES, IssueBoard
from sonde.viewer.stream import RunStream
from sonde.watch.exchange import HttpExchange, HttpPort, HttpService
from sonde.watch.lifecycle import NoSuchIssue

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
OPEN_RUNS = 32
Query = Mapping[str, Sequence[str]]
Answered = tuple[int, str, bytes]
"""Status, content type, body."""
ReadablePlaces = Callable[[RunDir], Sequence[AnyPath]]


class Shelf:
    """The runs that a viewer may show: those in its folders, and any that were named; nothing else can be asked for.

    Ids are names of existing folders, compared as text, so that no path can be smuggled in.
    """

    def __init__(
        self,
        places: Places,
        named: Sequence[RunDir] = (),
        *,
        within: ReadablePlaces = readable_places,
        cache: Path | None = None,
    ) -> None:
        self._places = places_of(places)
        self._within = within
        self._cache = cache
        self._named = {run.run_id: run for run in named}
        self._streams: dict[str, RunStream] = {}
        self._lock = threading.Lock()

    def runs(self) -> list[dict[str, Any]]:
        """All runs, newest first."""
        listed = {run.run_id: run for run in list_runs(self._places)}
        for run_id, run in self._named.items():
            listed.setdefault(run_id, summarise(run.path))
        return [asdict(run) | {"path": str(run.path)} for run in listed.values()]

    def find(self, run_id: str) -> RunDir:
        """The run with exactly this id."""
        if run_id in self._named:
            return self._named[run_id]
        for place in self._places:
            if run_id in run_ids(place):
                return RunDir(place / run_id)
        raise NoSuchRun(f"no run {run_id!r} here")

    def stream(self, run_id: str) -> RunStream:
        """The run's journal, followed as it grows; the last few stay open."""
        path = self.find(run_id).path
        with self._lock:
            if len(self._streams) >= OPEN_RUNS and run_id not in self._streams:
                self._streams.pop(next(iter(self._streams)))
            return self._streams.setdefault(run_id, RunStream(path))

    def news(self, run_id: str, after: int = -1) -> dict[str, Any]:
        """The events of the run after a number, how it stands, and whether a stranger may have made it."""
        news = self.stream(run_id).news(after)
        return {**news, "stranger": not is_trusted(self._within(self.find(run_id)))}

    def excerpts(self, run_id: str) -> list[dict[str, Any]]:
        """The source texts that the run cites."""
        stream = self.stream(run_id)
        found = shown_excerpts(
            stream.light(),
            lambda number: stream.full([number])[0].get("result"),
            kept=self.find(run_id).text(TRACE),
            within=self._within(self.find(run_id)),
            folder=self.find(run_id).path,
            cache=self._cache,
        )
        return [each.as_dict() for each in found]

    def trace(self, run_id: str) -> dict[str, Any] | None:
        """The trace that the run investigated."""
        stream = self.stream(run_id)
        return shown_trace(
            stream.light(),
            lambda number: stream.full([number])[0].get("result"),
            kept=self.find(run_id).text(TRACE),
            within=self._within(self.find(run_id)),
            cache=self._cache,
        )

    def compare(self, left: str, right: str) -> dict[str, Any]:
        """Two runs side by side."""
        return compare(self.find(left).events(), self.find(right).events()).as_dict()


class ViewerServer(HttpService):
    """Serves until closed, at `url`. Port 0 picks a free one; `within` says of each run in which folders the sources that it cites may
    be read; `cache` keeps indexes of trace files; `board` has the issues of a watch.
    """

    def __init__(
        self,
        places: Places,
        *,
        within: ReadablePlaces = readable_places,
        port: int = 0,
        named: Sequence[RunDir] = (),
        cache: Path | None = None,
        board: IssueBoard | None = None,
    ) -> None:
        self.shelf = Shelf([*places_of(places), *([board.runs] if board else [])], named, within=within, cache=cache)
        self.board = board
        self._http = _ViewerListener(self.shelf, port, board)
        super().__init__(self._http, "sonde-view")

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://127.0.0.1:{self._http.server_port}/"

    def url_of(self, run_id: str) -> str:
        """Where the page of one run is."""
        return f"{self.url}#/run/{run_id}"

    @property
    def own_url(self) -> str:
        """Where the page is for whoever may change issues. It is for one person's eyes."""
        return f"{self.url}#/?key={self.board.key}" if self.board else self.url


class _ViewerListener(HttpPort):
    def __init__(self, shelf: Shelf, port: int, board: IssueBoard | None) -> None:
        super().__init__("127.0.0.1", port, _ViewerExchange)
        self.shelf = shelf
        self.board = board

    @cached_property
    def names(self) -> frozenset[str]:
        """What a request may call us."""
        return frozenset(f"{host}:{self.server_port}" for host in ("127.0.0.1", "localhost", "[::1]"))


class _ViewerExchange(HttpExchange):
    server: _ViewerListener  # pyright: ignore[reportIncompatibleVariableOverride]  # no other server makes these

    def get(self) -> None:
        self._answer(self._read)

    def post(self) -> None:
        if self.server.board is None:
            self.refuse(HTTPStatus.METHOD_NOT_ALLOWED, "nothing can be changed here: this page only shows runs")
        else:
            self._answer(partial(self._change, self.server.board))

    def _read(self) -> Answered:
        address = urlsplit(self.path)
        board = self.server.board
        if address.path.startswith("/api/"):
            parts = tuple(unquote(part) for part in address.path.split("/")[2:])
            answer = route(self.server.shelf, parts, parse_qs(address.query), board)
            return HTTPStatus.OK, "application/json", msgspec.json.encode(answer)
        if board is not None and (vital := board.vitals.answer(address.path)) is not None:
            return vital
        name = address.path.lstrip("/") or "index.html"
        if name in {each.name for each in STATIC.iterdir()}:
            return HTTPStatus.OK, TYPES[Path(name).suffix], (STATIC / name).read_bytes()
        return HTTPStatus.NOT_FOUND, "text/plain", b"no such page\n"

    def _change(self, board: IssueBoard) -> Answered:
        """Something that a person does about an issue: from our own page, with the key, in a form that no foreign page can send."""
        host, kind = self.headers.get("Host", ""), self.headers.get("Content-Type", "")
        if (
            self.headers.get("Origin") != f"http://{host}"
            or self.headers.get("Sec-Fetch-Site", "same-origin") != "same-origin"
            or kind.partition(";")[0].strip().lower() != "application/json"
        ):
            return HTTPStatus.FORBIDDEN, "application/json", _problem(UsageError("only this page itself may do that"))
        given = self.headers.get("X-Sonde-Key", "").encode("utf-8", "replace")
        if not hmac.compare_digest(given, board.key.encode()):
            words = "open the page with the address that `sonde view` printed: only that may change issues"
            return HTTPStatus.FORBIDDEN, "application/json", _problem(UsageError(words))
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit() and len(length) < 10 and int(length) <= MOST_BYTES):
            return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "application/json", _problem(UsageError("that is too long"))
        try:
            body = msgspec.json.decode(self.rfile.read(int(length)), type=dict[str, Any])
        except (msgspec.MsgspecError, RecursionError, UnicodeError):
            raise UsageError("the request is not a JSON object") from None
        self._taken = True
        match urlsplit(self.path).path.split("/")[1:]:
            case ["api", "issues", number, action]:
                return HTTPStatus.OK, "application/json", msgspec.json.encode(board.act(_number(number), action, body))
            case _:
                raise NoSuchRun("no such address")

    def _answer(self, reply: Callable[[], Answered]) -> None:
        self._taken = not self.has_body
        try:
            if self.headers.get("Host", "") not in self.server.names:
                words = b"this viewer answers to 127.0.0.1 and localhost only\n"
                status, kind, body = HTTPStatus.FORBIDDEN, "text/plain", words
            else:
                status, kind, body = reply()
        except (NoSuchRun, NoSuchIssue) as error:
            status, kind, body = HTTPStatus.NOT_FOUND, "application/json", _problem(error)
        except SondeError as error:
            status, kind, body = HTTPStatus.CONFLICT, "application/json", _problem(error)
        except Exception as error:  # noqa: BLE001  # the top of a request: the next one must still be served
            status, kind, body = HTTPStatus.INTERNAL_SERVER_ERROR, "application/json", _problem(error)
        self.close_connection = self.close_connection or not self._taken  # the body of a refused request is not read
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)


def _problem(error: Exception) -> bytes:
    return msgspec.json.encode({"error": str(error) or type(error).__name__})


def route(shelf: Shelf, parts: Sequence[str], query: Query, board: IssueBoard | None = None) -> Any:
    """The data behind an address below /api/."""
    match parts:
        case ("issues",):
            return board.listed() if board else None
        case ("issues", number) if board is not None:
            return board.issue(_number(number))
        case ("issues", number, "look") if board is not None:
            return board.looked(_number(number))
        case ("runs",):
            return shelf.runs()
        case ("runs", run_id, "events"):
            return shelf.news(run_id, _number(query["after"][0]) if "after" in query else -1)
        case ("runs", run_id, "full"):
            wanted = query.get("n", [""])[0].split(",")[:MOST_EVENTS]
            return shelf.stream(run_id).full([_number(part) for part in wanted if part])
        case ("runs", run_id, "excerpts"):
            return shelf.excerpts(run_id)
        case ("runs", run_id, "trace"):
            return shelf.trace(run_id)
        case ("compare", left, right):
            return shelf.compare(left, right)
        case _:
            raise NoSuchRun("no such address")


def _number(text: str) -> int:
    try:
        return int(text[:18])
    except ValueError:
        raise UsageError(f"{text[:40]!r} is not a number") from None
