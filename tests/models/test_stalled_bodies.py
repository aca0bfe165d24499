"""A body that stops coming costs no more than the time that was left, however late it began."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from sonde.core.deadline import Deadline, SystemClock
from sonde.errors import ModelCallFailed
from sonde.models import Message, ModelRequest, ModelSettings, open_model

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{"


def test_a_body_of_known_length_that_stalls_ends_with_the_deadline() -> None:
    over = threading.Event()

    def serve() -> None:
        client, _ = listener.accept()
        with client:
            client.recv(65536)
            over.wait(4.5)
            client.sendall(HEAD)
            over.wait(60)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve, daemon=True)
        server.start()
        model = open_model("openai:x", ModelSettings(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}/v1"))
        started = time.monotonic()
        with pytest.raises(ModelCallFailed, match="in time"):
            model.complete(ModelRequest(messages=[Message("user", "?")]), deadline=Deadline(SystemClock(), 5.0))
        took = time.monotonic() - started
        over.set()
        server.join()

    assert took < 9.0  # with five seconds for each part it would take 9.5
