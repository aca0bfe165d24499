"""Untrusted documents are read in a process of their own: confined, killed when it takes too long, never trusted with more than one door.

`Parsers.read` sends a descriptor to a warm child of the parsers' fork server and yields the records that come back, as bytes of msgpack.
Promises that a document costs at most its limits of time, memory and output, and that nothing a parser does reaches this process except
frames of bounded size. Does not promise that the records are true: a parser that was taken over may say anything.
"""

from __future__ import annotations

import atexit
import contextlib
import marshal
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from sonde.core.deadline import GRACE_S, deadline_in_force
from sonde.errors import SandboxLost, SandboxUnavailable
from sonde.sandbox.base import DISPENSABLE
from sonde.sandbox.forkserver import ForkServer
from sonde.sandbox.frames import encode
from sonde.sandbox.turn import MEMORY_EXIT, cpu_seconds, held_bytes
from sonde.sandbox.worker.parser import (
    END,
    HEADER,
    LONGEST_REFUSAL,
    LONGEST_REQUEST,
    OUT_OF_MEMORY,
    READY,
    RECORD,
    REFUSED,
)

FIRST_WORDS = 1 << 16
START_SECONDS = 60.0
LOOK_S = 0.05
WALL_FOR_CPU = 6
"""A parser that gets no processor, or waits, is given this many times its limit before it is killed."""
MEMORY_SLACK = 64 << 20
KEPT_WARM = 2
ANY_LAYER = "any layer"
"""What a parser may lack where the user has said that code may run unconfined."""


class Unparsed(Exception):
    """A document that was not read; the message goes on from its name: `took longer than 10 s to read`."""


class Refused(Unparsed):
    """The parser says that the document is broken; the message is the parser's own, or the class of what its library raised."""


class ParserUnavailable(Unparsed):
    """No parser is started for it: its package is not installed, this machine cannot confine it, or the run is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParserLimits:
    """What one document may take. If `per_record`, the time counts anew for each record: for files of any size."""

    cpu_s: float = 10.0
    memory: int = 512 << 20
    record_bytes: int = 64 << 20
    output_bytes: int = 256 << 20
    per_record: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ParserKind:
    """A module with `read(document, **options)` that yields plain records, and how many documents one process may see.

    One process per document keeps a hostile document from lying about the next. A batch is for many small ones of one origin.
    """

    module: str
    batch: int = 1


class ParserServer(ForkServer):
    """A zygote that imports parsers. It sees the packages of this Python, and its addresses are random."""

    BOOT: ClassVar = """
import sys
sys.path[:] = [{folder!r}, *{path!r}]
from worker.parser import main
sys.path.pop(0)
main(*{arguments!r})
"""
    ENVIRONMENT: ClassVar = {"OPENBLAS_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}


UNCONFINED_BOOT = """
import os, sys
os.dup2({wire}, 3)
sys.path[:] = [{folder!r}, *{path!r}]
from worker.parser import serve_unconfined
sys.path.pop(0)
serve_unconfined({module!r})
"""


class ParserProcess:
    """One child and its socket. Used by one thread at a time; after an error it is of no more use."""

    def __init__(self, server: ForkServer | None, module: str, memory: int, *, without: str) -> None:
        """`without` is the layer that it may lack. Without a server it is a plain process: limited, can be killed, not confined."""
        self.served = 0
        self._server = server
        self._memory = memory
        self._pid = 0
        self._plain: subprocess.Popen[bytes] | None = None
        if not hasattr(socket, "send_fds"):
            raise ParserUnavailable("is not read here: its parser needs Linux or macOS; use WSL2")
        self._socket, far = socket.socketpair()
        with contextlib.ExitStack() as undo:
            undo.callback(self.end)
            with far:
                if server is None:
                    folder = str(Path(__file__).resolve().parent)
                    boot = UNCONFINED_BOOT.format(wire=far.fileno(), folder=folder, path=sys.path, module=module)
                    command = [sys.executable, "-S", "-s", "-P", "-B", "-X", "utf8", "-c", boot]
                    self._plain = subprocess.Popen(command, env=ParserServer.ENVIRONMENT, pass_fds=(far.fileno(),))
                    self._pid = self._plain.pid
                else:
                    self._pid = server.spawn(far, {"module": module})
            if server is not None:
                left_off = [*server.without, *([without] if without == DISPENSABLE else [])]
                config = {"memory": memory, "shared": 0, "cpu": 1 << 30, "without": left_off}
                self._socket.sendall(encode(config))
            kind, data = self._receive(_Clock(self._pid, START_SECONDS, memory), FIRST_WORDS)
            if kind != READY:
                raise ParserUnavailable("is not read here: its parser did not start")
            _, missing = msgspec.msgpack.decode(data, type=tuple[list[str], list[str]])
            missing = [layer for layer in missing if without not in (ANY_LAYER, layer)]
            if missing:
                lacks = ", ".join(missing)
                raise ParserUnavailable(f"is not read here: parsers must be confined, and this machine lacks {lacks}")
            undo.pop_all()

    def records(
        self, descriptor: int, size: int, options: Mapping[str, Any], limits: ParserLimits
    ) -> Generator[bytearray]:
        """What the parser makes of a document, record by record."""
        request = marshal.dumps((dict(options), size))
        assert len(request) <= LONGEST_REQUEST
        clock = _Clock(self._pid, limits.cpu_s, self._memory)
        said = 0
        try:
            socket.send_fds(self._socket, [request], [descriptor])
        except OSError:
            raise self._died() from None
        while True:
            kind, data = self._receive(clock, limits.record_bytes)
            clock.count()
            if kind == RECORD:
                said += len(data)
                if said > limits.output_bytes:
                    raise Unparsed(f"expands to more than {limits.output_bytes >> 20} MiB")
                yield data
                clock.go_on(anew=limits.per_record)
            elif kind == OUT_OF_MEMORY:
                raise Unparsed(f"needs more than {self._memory >> 20} MiB of memory to read")
            elif kind in (END, REFUSED):
                self.served += 1
                if kind == REFUSED:
                    raise Refused(data[:LONGEST_REFUSAL].decode("utf-8", "replace"))
                return
            else:
                raise Unparsed("was not read: its parser spoke out of turn")

    def has_room(self) -> bool:
        """Whether earlier documents have left enough memory for the next one."""
        return held_bytes(self._pid) < self._memory // 4

    def is_silent(self) -> bool:
        """Whether it is alive and has said nothing since its last document: what it said would pass for the next one's text."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def end(self) -> None:
        """Kill it."""
        self._socket.close()
        if self._plain is not None:
            self._plain.kill()
            self._plain.wait()
        elif self._server is not None and self._pid:
            self._server.end(self._pid)

    def _receive(self, clock: _Clock, most: int) -> tuple[int, bytearray]:
        """The next frame; Unparsed if the parser died, takes too long or says too much."""
        kind, length = HEADER.unpack(self._receive_bytes(HEADER.size, clock))
        if length > most:
            raise Unparsed(f"has a part of more than {most >> 20} MiB")
        return kind, self._receive_bytes(length, clock)

    def _receive_bytes(self, length: int, clock: _Clock) -> bytearray:
        data = bytearray(length)
        view = memoryview(data)
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        while view:
            ready = poll.poll(LOOK_S * 1000)
            clock.check()
            if not ready:
                continue
            try:
                got = self._socket.recv_into(view)
            except OSError:
                got = 0
            if not got:
                raise self._died()
            view = view[got:]
        return data

    def _died(self) -> Unparsed:
        """What the parser's end says about the document."""
        status = None
        if self._plain is not None:
            self._plain.kill()
            self._plain.wait()
        elif self._server is not None:
            with contextlib.suppress(SandboxLost):
                status, _, _ = self._server.reap(self._pid) or (None, 0, 0)
        if status is not None and os.WIFEXITED(status) and os.WEXITSTATUS(status) == MEMORY_EXIT:
            return Unparsed(f"needs more than {self._memory >> 20} MiB of memory to read")
        if status is not None and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
            return Unparsed("used up the processor time that a process may have here (ulimit -t)")
        if status is not None and os.WIFSIGNALED(status):
            return Unparsed(f"was not read: its parser died ({signal.Signals(os.WTERMSIG(status)).name})")
        return Unparsed("was not read: its parser died")


class _Clock:
    """The time that a parser has taken for a document. What this process does between two records does not count."""

    def __init__(self, pid: int, cpu_s: float, memory: int) -> None:
        self._pid = pid
        self._cpu_s = cpu_s
        self._memory = memory
        self._cpu_before = cpu_seconds(pid)
        self._run = deadline_in_force()
        self._waited = 0.0
        self._since = self._looked = time.monotonic()

    def go_on(self, *, anew: bool) -> None:
        """A record was taken: wait for the next one."""
        now = time.monotonic()
        if anew:
            self._waited, self._cpu_before = 0.0, cpu_seconds(self._pid)
        self._since = self._looked = now

    def count(self) -> None:
        """Add the time since the last look; after the end of the run it is taken from the grace of all documents."""
        now = time.monotonic()
        self._waited += now - self._since
        if self._run is not None and self._run.is_over():
            self._run.overtime += now - self._since
        self._since = now

    def check(self) -> None:
        """Unparsed if it is over a limit; looks at the process only now and then."""
        now = time.monotonic()
        if now - self._looked < LOOK_S:
            return
        self._looked = now
        self.count()
        cpu = cpu_seconds(self._pid) - self._cpu_before
        if cpu > self._cpu_s or self._waited > self._cpu_s * WALL_FOR_CPU:
            raise Unparsed(f"took longer than {self._cpu_s:g} s to read")
        if self._run is not None and self._run.is_over() and max(self._waited, self._run.overtime) > GRACE_S:
            raise Unparsed("was still being read when the run had to end")
        if held_bytes(self._pid) > self._memory + MEMORY_SLACK:
            raise Unparsed(f"needs more than {self._memory >> 20} MiB of memory to read")


class Parsers:
    """The parser processes of this program: started when a document needs one, kept warm, killed with this program."""

    def __init__(self, server: ParserServer | None = None) -> None:
        self._lock = threading.Lock()
        self._server = server
        self._warm: dict[tuple[str, str], list[ParserProcess]] = {}

    def read(
        self,
        kind: ParserKind,
        source: int | bytes,
        options: Mapping[str, Any],
        limits: ParserLimits,
        *,
        without: str,
    ) -> Generator[bytearray]:
        """The records of a document, given as an open descriptor or as bytes; Unparsed says why there are none, or no more."""
        run = deadline_in_force()
        if run is not None and run.is_over() and run.overtime > GRACE_S:
            raise ParserUnavailable("was not read: the run had to end")
        with contextlib.ExitStack() as stack:
            if isinstance(source, bytes):
                if hasattr(os, "memfd_create"):
                    descriptor = os.memfd_create("document")
                    stack.callback(os.close, descriptor)
                else:  # macOS
                    descriptor = stack.enter_context(tempfile.TemporaryFile(buffering=0)).fileno()
                size = len(source)
                while source:
                    source = source[os.write(descriptor, source) :]
            else:
                descriptor, size = source, os.fstat(source).st_size
            process = self._take(kind, limits.memory, without=without)
            try:
                yield from process.records(descriptor, size, options, limits)
            except Refused:
                self._put_back(kind, process, without)
                raise
            except BaseException:  # over a limit, or the caller wants no more
                process.end()
                raise
            self._put_back(kind, process, without)

    def _take(self, kind: ParserKind, memory: int, *, without: str) -> ParserProcess:
        with self._lock:
            warm = self._warm.get((kind.module, without))
            if self._server is not None and not self._server.alive:
                self._warm.clear()
                warm = None
            while warm:
                process = warm.pop()
                if process.is_silent():
                    return process
                process.end()
        try:
            return ParserProcess(self._running_server(), kind.module, memory, without=without)
        except SandboxLost:  # its server died just now: once more with a new one
            return ParserProcess(self._running_server(), kind.module, memory, without=without)
        except SandboxUnavailable as error:
            if without != ANY_LAYER:
                raise ParserUnavailable(f"is not read here: {error.message}") from None
            return ParserProcess(None, kind.module, memory, without=without)

    def _running_server(self) -> ParserServer:
        with self._lock:
            if self._server is None or not self._server.alive:
                self._server = ParserServer()
                atexit.register(self._server.close)
            return self._server

    def _put_back(self, kind: ParserKind, process: ParserProcess, without: str) -> None:
        with self._lock:
            warm = self._warm.setdefault((kind.module, without), [])
            if process.served < kind.batch and len(warm) < KEPT_WARM and process.has_room():
                warm.append(process)
                return
        process.end()


PARSERS = Parsers()
