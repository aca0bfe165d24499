"""One turn: the frames of one child, from its request to its report, the judgement when there is none, and the result.

Promises that whatever the worker sends or fails to send, the turn ends and the parent is unharmed. Only a `RunError` of the host
or of the watch leaves as an exception: the caller's own wish to stop.
"""

from __future__ import annotations

import mmap
import os
import re
import signal
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from sonde.errors import Fault, RunError
from sonde.sandbox.base import (
    Args,
    ExecFault,
    ExecResult,
    ExecUsage,
    FaultKind,
    Final,
    Host,
    Limits,
    OutOfTime,
    OverQuota,
    Variable,
    Watch,
    host_error,
)
from sonde.sandbox.frames import BadFrame, CallBody, Channel, DoneBody, HungUp, TurnReport, encode
from sonde.sandbox.output import NOTHING, Captured, OutputReader, cut_output
from sonde.sandbox.prepare import Prepared
from sonde.sandbox.snapshots import State
from sonde.sandbox.worker.report import MESSAGE_CHARS, SHOWN_VARIABLES, TOLD_NAMES, VIOLATION_EXIT

MEMORY_SLACK = 64 << 20
MEMORY_EXIT = 99
PAGE = mmap.PAGESIZE
CPU_CLOCK_OF_PROCESS = 2
MEMORY_LINES = re.compile(rb"^(RssAnon|VmPTE|VmSwap):\s+(\d+) kB", re.MULTILINE)
NAME_CHARS = 200
SHOWN_REBOUND = 20
TOLD: dict[str, FaultKind] = {"error": "error", "syntax": "syntax", "import": "import", "memory": "memory"}
"""Kinds that a worker may report about itself. That a turn was stopped or lost, or broke a rule, is for us to say."""


class OverMemory(Exception):
    """The process holds more memory than the turn may use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnd:
    """A finished turn has a report; a turn that was ended from outside has a fault."""

    report: TurnReport | None = None
    final: tuple[Any] | None = None
    fault: ExecFault | None = None
    usage: ExecUsage = field(default_factory=ExecUsage)


class Turn:
    """The conversation with one child process."""

    def __init__(
        self,
        child: State,
        channel: Channel,
        limits: Limits,
        *,
        host: Host | None,
        functions: Collection[str] | None,
        wall_s: float,
        printed: OutputReader,
        watch: Watch | None = None,
    ) -> None:
        self._child = child
        self._channel = channel
        self._limits = limits
        self._host = host
        self._functions = functions
        self._wall_s = wall_s
        self._calls = 0
        self._host_s = 0.0
        self._started = time.monotonic()
        self._memory = 0
        self._printed = printed
        self._watch = watch
        channel.on_tick = self._tick

    def run(self, request: bytes, rest: Callable[[State], bool]) -> TurnEnd:
        """Send the request and serve the child until it has reported and come to rest."""
        try:
            self._channel.deadline = self._started + self._wall_s
            self._channel.send(request)
            while not isinstance(body := self._channel.receive(), DoneBody):
                if not isinstance(body, CallBody):
                    raise BadFrame("a frame of the wrong kind")  # noqa: TRY301 - judged with those of the channel, below
                self._serve(body)
            self._check_memory()  # a turn shorter than a tick, or one that talked all the time
            rested = self._channel.drained() and rest(self._child)
            self._check_memory()  # finalizers run while it comes to rest
        except OutOfTime:
            return self._ended("timeout", f"the code ran longer than {self._wall_s:g} s and was stopped")
        except OverMemory:
            return self._ended("memory", f"the code used more than {self._limits.memory} of memory and was stopped")
        except OverQuota:
            return self._ended("quota", f"the code made more than {self._limits.host_calls} host calls and was stopped")
        except BadFrame as error:
            return self._ended("violation", f"the worker broke the protocol: {error}")
        except HungUp:
            if self._child.dead(within_s=1.0):
                return self._ended("crash", "the worker's process ended")
            return self._ended("violation", "the worker closed its channel and ran on")
        if not self._channel.drained():
            return self._ended("violation", "the worker broke the protocol: it spoke after its report")
        if not rested:
            return self._ended("timeout", "the code reported its end but its process did not come to rest")
        return TurnEnd(report=body.report, final=body.final, usage=self._usage())

    def _serve(self, body: CallBody) -> None:
        """One host call, if the code may make it."""
        self._printed.drain()  # what was printed before a call is known, also if the code is killed after a flood
        self._calls += 1
        if self._calls > self._limits.host_calls:
            raise OverQuota
        if self._host is None:
            raise BadFrame("a host call where there is no host")
        if self._functions is not None and body.call[0] not in self._functions:
            raise BadFrame(f"a call of {body.call[0][:80]!r}, which the host does not offer")
        before = time.monotonic()
        answer = self._answer(self._host, body)
        waited = time.monotonic() - before
        self._host_s += waited
        self._channel.deadline += waited  # the code's time, not the host's
        self._channel.send(answer)

    def _answer(self, host: Host, body: CallBody) -> bytes:
        """What the host returns or raises, as a message for the worker."""
        name, args, keywords = body.call
        try:
            value = host(name, Args.of(args, keywords))
        except RunError:
            raise
        except Fault as fault:
            return encode((False, ("ToolError", fault.message)))
        except Exception as error:  # noqa: BLE001 - the top of a host call: whatever it raises belongs to the code
            return encode((False, host_error(error)))
        try:
            answer = encode((True, value))
        except (ValueError, TypeError):
            message = f"{name}() returned a {type(value).__name__}, which is not JSON-like"
            return encode((False, ("TypeError", message)))
        if len(answer) <= self._limits.frame_bytes:
            return answer
        message = f"{name}() returned {len(answer)} bytes; at most {self._limits.frame_bytes} fit. Ask for less."
        return encode((False, ("ValueError", message)))

    def _tick(self) -> None:
        if self._watch is not None:
            self._watch()
        self._printed.drain()
        self._check_memory()

    def _check_memory(self) -> None:
        self._memory = max(self._memory, held_bytes(self._child.pid))
        if self._memory > self._limits.memory_bytes + MEMORY_SLACK:
            raise OverMemory

    def _ended(self, kind: FaultKind, message: str) -> TurnEnd:
        return TurnEnd(fault=ExecFault(kind=kind, message=message), usage=self._usage())

    def _usage(self) -> ExecUsage:
        wall = time.monotonic() - self._started
        memory = max(self._memory, held_bytes(self._child.pid))
        return ExecUsage(
            wall_s=wall,
            host_s=self._host_s,
            cpu_s=cpu_seconds(self._child.pid),
            memory_bytes=memory,
            host_calls=self._calls,
        )


def finished(
    end: TurnEnd, prepared: Prepared, *, turn: int, layers: tuple[str, ...], limit: int, counts: bool
) -> ExecResult:
    """The result of a turn that reported. Lengths and kinds are the worker's word, so they are bounded here."""
    report = end.report
    assert report is not None
    out, err = (
        Captured(each.head, each.tail, max(each.total, 0), lines=each.lines if counts else -1)
        for each in (report.out, report.err)
    )
    stdout, stderr = cut_output(out, err, limit)
    fault = None
    if (told := report.fault) is not None:
        message = told.message[:MESSAGE_CHARS]
        fault = ExecFault(
            kind=TOLD.get(told.kind, "error"),
            message=message,
            line=told.line if told.line is None or told.line > 0 else None,
            hint=told.hint and told.hint[:MESSAGE_CHARS],
            traceback=told.traceback[-2 * MESSAGE_CHARS :] or message,  # a memory fault without one means a lost turn
        )
    rebound = tuple(
        f"the code assigned to {name[:NAME_CHARS]!r}, which is a function of the host; it was restored"
        for name in report.rebound[:SHOWN_REBOUND]
    )
    return ExecResult(
        ok=fault is None,
        turn=turn,
        stdout=stdout,
        stderr=stderr,
        fault=fault,
        final=Final(end.final[0]) if end.final is not None else None,
        variables=tuple(
            Variable(name[:NAME_CHARS], kind[:NAME_CHARS], size if size >= 0 else None)
            for name, kind, size in report.variables[:SHOWN_VARIABLES]
        ),
        usage=end.usage,
        layers=layers,
        output_chars=out.total + err.total,
        warnings=prepared.warnings + rebound,
    )


def names_told(end: TurnEnd) -> frozenset[str]:
    """The names that the turn bound, as the worker says: a bounded part of its word."""
    assert end.report is not None
    return frozenset(name[:NAME_CHARS] for name in end.report.names[:TOLD_NAMES])


def stopped(
    fault: ExecFault,
    end: TurnEnd,
    printed: tuple[Captured, Captured],
    prepared: Prepared,
    *,
    turn: int,
    layers: tuple[str, ...],
    limit: int,
) -> ExecResult:
    """The result of a turn that was ended from outside, with what is known of its output. A violation shows no output."""
    out, err = (NOTHING, NOTHING) if fault.kind == "violation" else printed
    stdout, stderr = cut_output(out, err, limit)
    return ExecResult(
        ok=False,
        turn=turn,
        stdout=stdout,
        stderr=stderr,
        fault=fault,
        usage=end.usage,
        layers=layers,
        output_chars=out.total + err.total,
        warnings=prepared.warnings,
    )


def judge_death(fault: ExecFault, death: tuple[int, float, int] | None, cpu_limit: float) -> ExecFault:
    """What the wait status says about a worker that ended by itself."""
    if fault.kind != "crash" or death is None:
        return fault
    status, cpu, _ = death
    if os.WIFEXITED(status):
        code = os.WEXITSTATUS(status)
        if code == MEMORY_EXIT:
            return ExecFault(kind="memory", message="the code used up its memory and the turn was lost")
        if code == VIOLATION_EXIT:
            return ExecFault(kind="violation", message="the code reached for a file, a socket or a process")
        return ExecFault(kind="crash", message=f"the code ended its own process (exit status {code})")
    number = os.WTERMSIG(status)
    if number == signal.SIGSYS:
        return ExecFault(kind="violation", message="the code made a system call that the sandbox forbids (SIGSYS)")
    if number == signal.SIGKILL and cpu >= cpu_limit - 1:
        return ExecFault(kind="timeout", message=f"the code used more than {cpu_limit:g} s of processor time")
    if number == signal.SIGKILL:
        return ExecFault(
            kind="crash", message="the process was killed from outside (SIGKILL), perhaps for lack of memory"
        )
    return ExecFault(kind="crash", message=f"the process died of {signal.Signals(number).name}")


def held_bytes(pid: int) -> int:
    """Memory that a process holds for itself: pages that are not a file's, and page tables; 0 when the process is gone.

    Page tables are not in the resident set: one page in every gigabyte, written and dropped, leaves 8 KiB of them each time.
    """
    return sum(_memory_of(pid))


def private_bytes(pid: int) -> int:
    """An upper bound on the memory a process does not share with the state it was forked from: pages it has touched, and page tables."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - read every turn; open() is a third of Path's cost
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0
    pages, tables = _memory_of(pid)
    return min(pages, int(fields[7]) * PAGE) + tables


def _memory_of(pid: int) -> tuple[int, int]:
    """Bytes in pages that are no file's, in memory or swapped out, and in page tables."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:  # noqa: PTH123 - as above
            found = {name: int(size) << 10 for name, size in MEMORY_LINES.findall(file.read())}
    except OSError:
        found = {}
    return found.get(b"RssAnon", 0) + found.get(b"VmSwap", 0), found.get(b"VmPTE", 0)


def cpu_seconds(pid: int) -> float:
    """Processor time of another process, by its CPU clock."""
    try:
        return time.clock_gettime((~pid << 3) | CPU_CLOCK_OF_PROCESS)
    except OSError:
        return 0.0
