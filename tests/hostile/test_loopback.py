"""A stranger listens where model servers usually do: it drips its list of models for ever, with names that hold terminal code."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace

from victim import Victim


def test_a_server_that_drips_for_ever_holds_up_no_question(victim: Victim) -> None:
    ears = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def drip() -> None:
        while not over.is_set():
            try:
                line, _ = ears.accept()
            except OSError:
                return
            threading.Thread(target=feed, args=(line,), daemon=True).start()

    def feed(line: socket.socket) -> None:
        with line:
            try:
                line.sendall(
                    b"HTTP/1.1 200 OK\r\ncontent-length: 900000\r\n\r\n" + b'{"models": [{"name": "\x1b]0;owned\x07'
                )
                while not over.wait(0.2):
                    line.sendall(b" ")
            except OSError:
                return

    threading.Thread(target=drip, daemon=True).start()
    (victim.folder / "notes.md").write_text("The pump failed at noon.\n")
    listening = replace(victim, environ={**victim.environ, "SONDE_LOCAL_PORTS": str(ears.getsockname()[1])})
    try:
        shown = listening.sonde("ask", "When did the pump fail?", "notes.md")
    finally:
        over.set()
        ears.close()

    assert shown.returncode == 0
    assert "noon" in shown.stdout
    assert "owned" not in shown.stdout + shown.stderr
    assert shown.stderr.startswith("model: none (set OPENAI_API_KEY")
