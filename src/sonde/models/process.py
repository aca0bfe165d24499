"""Runs one program to its end, to its limit or to a stop, feeding it and draining it at the same time.

One thread serves all three pipes, so a program that writes before it reads cannot block it. The output that is kept is
bounded. The whole process group is gone when `run_process` returns or raises. A launcher between us and the program ends all that the
program has started when time is up, at a stop, and when this process dies, even by SIGKILL.
"""

from __future__ import annotations

import atexit
import codecs
import marshal
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from sonde.core.cancellation import Stop
from sonde.models.base import OnText

MAX_STDOUT_BYTES = 8 * 1024 * 1024
STDERR_TAIL_BYTES = 64_000  # several times what is shown of it: a value that is cut here does not come into sight
CHUNK = 64 * 1024
TICK_S = 0.1  # how often to check for a stop, and for a program that died and left its pipes to another process
_groups: set[int] = set()
GRACE_S = (
    10.0  # between asking the launcher to end everything, which it does in less than a second, and ending the launcher
)
LAUNCHER = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from launcher import main
sys.path.pop(0)
main()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """What a program may read (and execute), and write; everything else is closed to it."""

    read: tuple[str, ...]
    write: tuple[str, ...]
    code: str
    """The folder with the package `worker`, whose `confine` the launcher calls: the sandbox is a stranger to this module."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program, what it reads, and how long it may take. `alone`: also what left its group ends with it."""

    argv: Sequence[str]
    stdin: bytes
    cwd: str | None
    environment: Mapping[str, str]
    seconds: float
    stop: Stop = field(default_factory=Stop)
    alone: bool = False
    confinement: Confinement | None = None
    temporary: str = ""
    """A folder that whoever starts the program removes; the launcher does, if they cannot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramEnd:
    """How it ended. `stopped`: the stop came first; `overflowed`: it was ended because it printed more than is kept."""

    text: str
    stderr_tail: str
    returncode: int
    seconds: float
    timed_out: bool
    stopped: bool
    overflowed: bool


@dataclass(slots=True)
class _Drain:
    """What has come out so far: the beginning of stdout, the end of stderr."""

    on_text: OnText | None
    pieces: list[str] = field(default_factory=list[str])
    size: int = 0
    tail: bytes = b""
    decoder: codecs.IncrementalDecoder = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))

    @property
    def overflowed(self) -> bool:
        return self.size > MAX_STDOUT_BYTES

    def stdout(self, data: bytes, *, last: bool = False) -> None:
        room = max(0, MAX_STDOUT_BYTES - self.size)
        self.size += len(data)
        piece = self.decoder.decode(data[:room], final=last)
        self.pieces.append(piece)
        if piece and self.on_text is not None:
            self.on_text(piece)

    def stderr(self, data: bytes) -> None:
        self.tail = (self.tail + data)[-STDERR_TAIL_BYTES:]

    def last_lines(self) -> bytes:
        """The end of stderr without a line that may be torn."""
        return self.tail if len(self.tail) < STDERR_TAIL_BYTES else self.tail[self.tail.find(b"\n") + 1 :]


def run_process(program: Program, on_text: OnText | None = None) -> ProgramEnd:
    """Raises OSError when the program cannot be started."""
    started = time.monotonic()
    drain = _Drain(on_text)
    told, report = os.pipe()
    try:
        process = subprocess.Popen(
            launched(
                program.argv,
                program.environment,
                report,
                alone=program.alone,
                confinement=program.confinement,
                temporary=program.temporary,
            ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=program.cwd,
            env=dict(program.environment),
            start_new_session=True,  # a signal to our group, as from Ctrl-C, is not for it
            pass_fds=(report,),
        )
    except BaseException:
        os.close(told)
        raise
    finally:
        os.close(report)
    # Threads of an abandoned batch end with this process and cannot end their programs.
    atexit.unregister(end_all_groups)
    atexit.register(end_all_groups)
    _groups.add(process.pid)
    try:
        in_time = _Pump(process, program, drain, started + program.seconds).run()
    finally:
        _groups.discard(process.pid)
        if process.poll() is None:  # ask the launcher to end everything, then kill whatever is left of its group
            _signal(process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
        _signal(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        problem = b""
        os.set_blocking(told, False)
        with suppress(BlockingIOError):
            problem = os.read(told, 1000)
        os.close(told)
    if problem:
        number, _, words = problem.decode().partition(" ")
        raise OSError(int(number), words, program.argv[0])
    drain.stdout(b"", last=True)
    return ProgramEnd(
        text="".join(drain.pieces),
        stderr_tail=drain.last_lines().decode("utf-8", "replace").strip(),
        returncode=process.returncode,
        seconds=time.monotonic() - started,
        timed_out=not in_time and not program.stop.is_set(),
        stopped=not in_time and program.stop.is_set(),
        overflowed=drain.overflowed,
    )


def launched(
    argv: Sequence[str],
    environment: Mapping[str, str],
    report: int,
    *,
    alone: bool = False,
    confinement: Confinement | None = None,
    temporary: str = "",
) -> list[str]:
    """The words that start a program behind its launcher, which writes to `report` why it could not be started."""
    order = {
        "parent": os.getpid(),
        "report": report,
        "alone": alone,
        "temporary": temporary,
        "confined": confinement is not None,
        "code": confinement.code if confinement else "",
        "read": list(confinement.read) if confinement else [],
        "write": list(confinement.write) if confinement else [],
        "unset": [] if "LC_CTYPE" in environment else ["LC_CTYPE"],  # CPython sets it
    }
    return [sys.executable, "-I", "-S", "-c", LAUNCHER, marshal.dumps(order).hex(), *argv]


class _Pump:
    """Moves bytes between the three pipes and memory, whichever is ready."""

    def __init__(self, process: subprocess.Popen[bytes], program: Program, drain: _Drain, until: float) -> None:
        self._process = process
        self._unsent = memoryview(program.stdin)
        self._stop = program.stop
        self._drain = drain
        self._until = until
        self._selector = selectors.DefaultSelector()

    def run(self) -> bool:
        """Until the program closed its output, died, or printed too much. False when time ran out or a stop came first."""
        process = self._process
        with self._selector:
            self._register(process.stdin, selectors.EVENT_WRITE, self._feed)
            self._register(process.stdout, selectors.EVENT_READ, self._drain.stdout)
            self._register(process.stderr, selectors.EVENT_READ, self._drain.stderr)
            while not self._drain.overflowed:
                if all(key.events != selectors.EVENT_READ for key in self._selector.get_map().values()):
                    break  # it closed its output
                left = self._left()
                if left <= 0:
                    return False
                ready = self._selector.select(min(TICK_S, left))
                if not ready and process.poll() is not None:
                    return True  # dead with nothing left to read: a grandchild holds the pipes
                for key, _events in ready:
                    if key.events == selectors.EVENT_WRITE:
                        key.data()
                    elif data := os.read(key.fd, CHUNK):
                        key.data(data)
                    else:
                        self._selector.unregister(key.fileobj)
        while not self._drain.overflowed and process.poll() is None:
            left = self._left()
            if left <= 0:
                return False
            with suppress(subprocess.TimeoutExpired):
                process.wait(min(TICK_S, left))
        return True

    def _left(self) -> float:
        return 0.0 if self._stop.is_set() else self._until - time.monotonic()

    def _register(
        self, pipe: IO[bytes] | None, events: int, action: Callable[[bytes], None] | Callable[[], None]
    ) -> None:
        assert pipe is not None
        os.set_blocking(pipe.fileno(), False)
        self._selector.register(pipe, events, action)

    def _feed(self) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        with suppress(BrokenPipeError):  # programs may answer without reading everything
            sent = os.write(pipe.fileno(), self._unsent[:CHUNK])
            self._unsent = self._unsent[sent:]
            if self._unsent:
                return
        self._selector.unregister(pipe)
        pipe.close()


def end_all_groups() -> None:
    """Have every running program and what it started ended; for a process that is about to end."""
    for group in tuple(_groups):
        _signal(group, signal.SIGTERM)


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # nobody left, or a child that changed its user
        os.killpg(group, number)
