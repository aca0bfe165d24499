"""A person who meets a stranger's files, and a listener that nobody may call."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from cli.cli_program import call
from journeys.journey import SONDE, Person, Shown

REPLY = "```python\nFINAL('done')\n```"


def one_in_make_test(cases: Mapping[str, object]) -> list[Any]:
    """Cases that differ in one word: the first runs in `make test`, all of them in `make test-hostile`."""
    long = (pytest.mark.hostile_long,)
    return [
        pytest.param(case, id=name, marks=long if number else ()) for number, (name, case) in enumerate(cases.items())
    ]


class Victim(Person):
    """Somebody who works among a stranger's files. `own` is their folder; `folder`, where they stand, is the stranger's. They wait
    `cpu_seconds` of processor time for a command.
    """

    cpu_seconds = 30

    def sonde(self, *words: str | Path, stdin: str | None = None) -> Shown:
        """Type one command. It is killed when it has used up its processor time, however busy the machine is."""
        return self.run("sh", "-c", f'ulimit -t {self.cpu_seconds}; exec "$@"', "sh", SONDE, *words, stdin=stdin)

    def call(self, *words: str | Path, stdin: str = "") -> Shown:
        """Type one command, run in this process: quicker, where nothing is expected to hang or to end it."""
        return call(*words, cwd=self.folder, env=self.environment(), stdin=stdin)

    def wait_for(self, path: Path) -> None:
        """Until a file is there."""
        pause = threading.Event()
        for _ in range(int(self.seconds * 20)):
            if path.exists():
                return
            pause.wait(0.05)
        raise AssertionError(f"{path} never came")

    def wait_for_end(self, pid: int) -> None:
        """Until a process is gone."""
        pause = threading.Event()
        for _ in range(int(self.seconds * 20)):
            if not Path(f"/proc/{pid}").exists():
                return
            pause.wait(0.05)
        raise AssertionError(f"process {pid} lives on")

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
                self.send_response(404 if self.path.startswith("/nothing") else 200)
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

    def hides_history_of(self, repository: str, victim: Victim) -> None:
        """Take a part of a repository's history away, and have git look for it here."""
        git = ("git", "-C", repository)
        tree = victim.run(*git, "rev-parse", "HEAD^{tree}").stdout.strip()
        (victim.folder / repository / ".git/objects" / tree[:2] / tree[2:]).unlink()
        for name, value in (
            ("core.repositoryFormatVersion", "1"),
            ("extensions.partialClone", "origin"),
            ("remote.origin.promisor", "true"),
            ("remote.origin.url", f"{self.url}/nothing"),
            ("protocol.http.allow", "always"),
        ):
            victim.run(*git, "config", name, value)
        victim.run(*git, "log", "--name-only")
        assert self.heard, "the attack works against plain git"
        self.heard.clear()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
