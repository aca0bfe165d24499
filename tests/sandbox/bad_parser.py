"""A parser that was taken over by its document: the document's text says what it does."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

HEADER_OF_A_GIGABYTE = b"\x02\x00\x00\x00\x40"


def read(document: BinaryIO, *, act: str = "read") -> Iterator[Any]:
    match act:
        case "read":
            yield document.read().decode()
        case "open":
            yield Path("/etc/hostname").read_text()
        case "connect":
            socket.create_connection(("127.0.0.1", 9))
        case "fork":
            os.fork()
        case "exec":
            os.execv("/bin/true", ["true"])
        case "subprocess":
            subprocess.run(["/bin/true"], check=False)
        case "thread":
            threading.Thread(target=print).start()
        case "kill":
            os.kill(os.getppid(), 9)
        case "loop":
            while True:
                pass
        case "sleep":
            threading.Event().wait()
        case "memory":
            yield len(b"x" * (1 << 31))
        case "babble":
            while True:
                yield "x" * 100_000
        case "forge":
            os.write(3, HEADER_OF_A_GIGABYTE)
        case "die":
            os.abort()
        case _:
            raise ValueError(f"page 7 is broken: {act}")
