"""A receiver of notices on loopback that answers as it is told to."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """What it answers to one request."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict[str, str])
    body: bytes = b"ok"


class Receiver:
    """Keeps every request; `replies` are used up one after the other, then it says ok."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)
        self.bodies: list[Json] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        receiver = self

        class Ears(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                receiver.bodies.append(json.loads(body))
                receiver.headers.append({name.lower(): value for name, value in self.headers.items()})
                receiver.paths.append(self.path)
                reply = receiver.replies.pop(0) if receiver.replies else Reply()
                self.send_response(reply.status)
                for name, value in {**reply.headers, "Content-Length": str(len(reply.body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(reply.body)

            def log_message(self, *args: object) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  # says nothing
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Ears)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/hook/T0P-s3cret-path"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
