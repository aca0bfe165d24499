"""A person who meets a stranger's files, and a listener that must not be called. Every test here is marked `hostile`.

The assertion of a probe is what did not happen, seen from outside: a marker file that a planted program would have made, a request on
loopback, a file that changed, a secret in an output, a program that never ends.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from journey import SONDE, Person, Shown

HERE = Path(__file__).parent
CPU_SECONDS = 30


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.hostile)
            item.add_marker(pytest.mark.timeout(280))  # the limit of processor time speaks first, on a busy machine too


class Victim(Person):
    """Somebody who works among a stranger's files. `own` is their folder; `folder`, where they stand, is the stranger's."""

    def sonde(self, *words: str | Path, stdin: str | None = None) -> Shown:
        """Type one command. It is killed after thirty seconds of its own processor time, however busy the machine is."""
        return self.run("sh", "-c", f'ulimit -t {CPU_SECONDS}; exec "$@"', "sh", SONDE, *words, stdin=stdin)

    @property
    def own(self) -> Path:
        """A folder that no stranger has written to."""
        place = self.home / "own"
        place.mkdir(exist_ok=True)
        return place

    @property
    def marker(self) -> Path:
        """What a planted program makes when it runs."""
        return self.home / "it-ran"


@pytest.fixture
def victim(tmp_path: Path) -> Victim:
    for name in ("home", "strange"):
        (tmp_path / name).mkdir()
    return Victim(home=tmp_path / "home", folder=tmp_path / "strange", seconds=250)


class Listener:
    """A server on loopback that keeps every request and answers like a model server, so that whoever calls it goes on."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        listener = self

        class Ears(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                listener.heard.append(f"{self.requestline}\n{self.headers}\n{body.decode(errors='replace')}")
                choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": REPLY}}
                answer = json.dumps({"id": "1", "model": "m", "choices": [choice], "data": []}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def do_GET(self) -> None:
                self.do_POST()

            def log_message(self, *args: object) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  # says nothing
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Ears)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


REPLY = "```python\nFINAL('done')\n```"


@pytest.fixture
def listener() -> Iterator[Listener]:
    ears = Listener()
    yield ears
    ears.close()
