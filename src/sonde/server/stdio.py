"""The protocol over standard input and output.

File descriptor 1 belongs to the protocol from the first moment: it is duplicated, and 1 itself then points at standard error, so a
stray print or a chatty library cannot break the stream. Likewise descriptor 0 becomes /dev/null, so no child process can eat a line.
The process ends when its input ends, on SIGTERM, when nobody reads its output, and when its parent is gone.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import BinaryIO, NoReturn

from sonde.models.process import end_all_groups
from sonde.server.connection import EditorConnection, TaskRunner
from sonde.server.messages import MAX_LINE_BYTES, Hello

GRACE_S = 3.0
HEAD_BYTES = 4096  # of a line that is too long: enough to see whose it is


@dataclass(frozen=True, slots=True)
class Pipes:
    """The protocol's own ends of standard input and output."""

    lines: BinaryIO
    out: int

    def write(self, data: bytes) -> None:
        """Write all of it, in one go if the pipe takes it. If nobody reads any more, the process ends."""
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self.out, view) :]
            except BrokenPipeError:
                leave(0)


def claim() -> Pipes:
    """Take descriptors 0 and 1 for the protocol; everything else reads from /dev/null and prints to standard error."""
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
    watch_parent(os.getppid(), lambda: leave(1))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    connection = EditorConnection(runner, pipes.write, hello=hello)
    with suppress(KeyboardInterrupt):
        pump(pipes.lines, connection)
    leave(0 if connection.close(GRACE_S) else 1)


def leave(code: int) -> NoReturn:
    """End the process now, with the programs it started as models or commands. Threads that do not stop cannot keep it alive."""
    end_all_groups()
    sys.stderr.flush()
    os._exit(code)


def leave_on_sigterm() -> None:
    """End the process on SIGTERM, in servers that run the loop of an SDK."""

    def ended(number: int, frame: FrameType | None) -> None:
        del number, frame
        leave(1)

    signal.signal(signal.SIGTERM, ended)


def pump(lines: BinaryIO, connection: EditorConnection, limit: int = MAX_LINE_BYTES) -> None:
    """Feed every line; one that is too long is skipped and answered with an error."""
    while line := lines.readline(limit + 1):
        if len(line) > limit and not line.endswith(b"\n"):
            while (rest := lines.readline(1 << 20)) and not rest.endswith(b"\n"):
                pass
            connection.refuse_long(line[:HEAD_BYTES], limit)
        elif line.strip():
            connection.feed(line)


def watch_parent(parent: int, gone: Callable[[], object], every_s: float = 1.0) -> None:
    """Call `gone` once the parent has died; the end of input would not show that if someone else holds the pipe open."""

    def watch() -> None:
        pause = threading.Event()
        while os.getppid() == parent:
            pause.wait(every_s)
        gone()

    threading.Thread(target=watch, name="parent watch", daemon=True).start()
