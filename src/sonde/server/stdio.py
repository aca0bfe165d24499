"""The protocol over standard input and output.

File descriptor 1 belongs to the protocol from the first moment: it is duplicated, and 1 itself then points at standard error, so a
stray print or a chatty library cannot break the stream. Descriptor 0 likewise gives way to /dev/null, so no child process can eat a
line. The process ends when its input ends, when nobody reads its output, and when its parent is gone.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

from sonde.server.connection import Connection
from sonde.server.messages import MAX_LINE_BYTES, Hello
from sonde.server.runner import TaskRunner

GRACE_S = 3.0


@dataclass(frozen=True, slots=True)
class Pipes:
    """The protocol's own ends of standard input and output."""

    lines: BinaryIO
    out: int

    def write(self, data: bytes) -> None:
        """All of it, in one go where the pipe takes it; the end of the process when nobody reads."""
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self.out, view) :]
            except BrokenPipeError:
                os._exit(0)


def claim() -> Pipes:
    """Take descriptors 0 and 1 for the protocol; whatever else reads or prints gets /dev/null and standard error."""
    sys.stdout.flush()
    lines, out = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    sys.stdout = sys.stderr
    return Pipes(os.fdopen(lines, "rb"), out)


def serve_stdio(runner: TaskRunner, hello: Hello) -> int:
    """Serve until the input ends; the exit code."""
    pipes = claim()
    watch_parent(os.getppid(), lambda: os._exit(1))
    connection = Connection(runner, pipes.write, hello=hello)
    pump(pipes.lines, connection)
    ended = connection.close(GRACE_S)
    sys.stderr.flush()
    os._exit(0 if ended else 1)  # threads of a runner that does not stop must not keep the process


def pump(lines: BinaryIO, connection: Connection, limit: int = MAX_LINE_BYTES) -> None:
    """Feed every line; one that is too long is passed over and answered by an error."""
    while line := lines.readline(limit + 1):
        if len(line) > limit and not line.endswith(b"\n"):
            _skip(lines)
            connection.refuse(f"the line is longer than {limit:,} bytes", code="LINE_TOO_LONG")
        elif line.strip():
            connection.feed(line)


def _skip(lines: BinaryIO) -> None:
    while (rest := lines.readline(1 << 20)) and not rest.endswith(b"\n"):
        pass


def watch_parent(parent: int, gone: Callable[[], object], every_s: float = 1.0) -> None:
    """Call `gone` once the parent is another process; a pipe held open by someone else would hide that."""

    def watch() -> None:
        pause = threading.Event()
        while os.getppid() == parent:
            pause.wait(every_s)
        gone()

    threading.Thread(target=watch, name="parent watch", daemon=True).start()
