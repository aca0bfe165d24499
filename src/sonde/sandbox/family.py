"""The states of one session and its branches, and the only door by which a new one comes to be.

All states of a family share one seccomp listener. A state that is not in a turn is parked: held inside the fork it asked for.
`fork` lets that call happen once, meets the child at its PDEATHSIG call, and gives it its descriptors there. A child that skips
that call never gets a socket and is found and killed as a stray.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from sonde.errors import SandboxLost
from sonde.sandbox.forkserver import ForkServer
from sonde.sandbox.notify import Listener, Notice
from sonde.sandbox.worker.tables import NUMBERS

GRACE_S = 5.0
"""How long a state may take to park, or a child to report: a benign one takes milliseconds."""
LATE_S = 0.2
SLICE_S = 0.005
"""Another thread may have received our notice; look again this often."""
CLONES = frozenset(numbers["clone"] for numbers in NUMBERS.values())


class ForkFailed(Exception):
    """The state did not give a child that reported: it is dead, or hostile."""


class ForkRefused(ForkFailed):
    """The kernel made no child (out of processes or memory); the state itself is well."""


@dataclass(slots=True, eq=False)
class State:
    """One process: parked after a turn, or running one."""

    pid: int
    pidfd: int
    holders: int = 1
    """Boxes and histories that still want it; at zero it is retired."""
    private_bytes: int = 0
    shares: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    """Variables that code has bound up to here."""

    def dead(self, within_s: float = 0.0) -> bool:
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(within_s * 1000))

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # it is dead already
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)


@dataclass(slots=True, eq=False)
class Family:
    """Every state that descends from one confined worker."""

    server: ForkServer
    group: int
    listener: Listener
    layers: tuple[str, ...]
    boxes: int = 1
    _parked: dict[int, Notice] = field(default_factory=dict[int, Notice])
    _greetings: dict[int, Notice] = field(default_factory=dict[int, Notice])
    _states: dict[int, State] = field(default_factory=dict[int, State])
    _table: threading.RLock = field(default_factory=threading.RLock)
    _forking: threading.Lock = field(default_factory=threading.Lock)

    def adopt(self, pid: int) -> State:
        state = State(pid, os.pidfd_open(pid))
        self._states[pid] = state
        return state

    def fork(self, state: State, descriptors: Mapping[int, int]) -> State:
        """A child of the state, past its greeting, with our descriptors installed under the given numbers."""
        with self._forking:  # one at a time: a greeting does not say whose child it is
            if not self.await_parked(state, GRACE_S):
                raise ForkFailed("the state is not parked")
            if self._greetings:  # nobody was expected
                self._end_strays()
            if not self.listener.proceed(self._parked.pop(state.pid)):
                raise ForkFailed("the state is gone")
            return self._welcome(state, descriptors)

    def _welcome(self, parent: State, descriptors: Mapping[int, int]) -> State:
        limit = time.monotonic() + GRACE_S
        while time.monotonic() < limit:
            notice = self._next_greeting()
            if notice is None:
                if parent.dead():  # a child it has made before will still report
                    limit = min(limit, time.monotonic() + LATE_S)
                self._pump(parent)
                continue
            child = self._meet(notice, descriptors)
            if child is not None:
                return child
            break
        if not self._end_strays() and self.await_parked(parent, 0):
            raise ForkRefused("the kernel made no new process")
        raise ForkFailed("its child did not report")

    def _next_greeting(self) -> Notice | None:
        with self._table:
            return self._greetings.popitem()[1] if self._greetings else None

    def _meet(self, notice: Notice, descriptors: Mapping[int, int]) -> State | None:
        try:
            child = self.adopt(notice.pid)
        except ProcessLookupError:
            return None
        installed = all(self.listener.install(notice, ours, number) for number, ours in descriptors.items())
        if installed and self.listener.valid(notice) and self.listener.proceed(notice):
            return child
        self.discard(child)
        return None

    def await_parked(self, state: State, seconds: float) -> bool:
        """Wait until the state is held in its fork; False when it died or spins."""
        limit = time.monotonic() + seconds
        while True:
            notice = self._parked.get(state.pid)
            if notice is not None and self.listener.valid(notice):
                return True
            if state.dead() or time.monotonic() > limit:
                return False
            self._pump(state)

    def _pump(self, state: State) -> None:
        """Receive what is held now, or wait a moment for something to be; the state's death ends the wait too."""
        poll = select.poll()
        poll.register(self.listener.descriptor, select.POLLIN)
        poll.register(state.pidfd, select.POLLIN)
        poll.poll(SLICE_S * 1000)
        with self._table:
            while self.listener.wait(0):
                notice = self.listener.receive()
                if notice is not None:
                    self._file(notice)

    def _file(self, notice: Notice) -> None:
        if notice.number in CLONES:
            self._parked[notice.pid] = notice
        elif (known := self._states.get(notice.pid)) is not None:
            known.kill()  # a second greeting: nobody honest asks twice
        else:
            self._greetings[notice.pid] = notice

    def join(self, state: State) -> None:
        """One box more, and one holder more of this state."""
        with self._table:
            self.boxes += 1
            state.holders += 1

    def release(self, state: State) -> None:
        """One holder fewer; the last one retires the process."""
        with self._table:
            state.holders -= 1
            last = state.holders == 0
        if last:
            self._forget(state)
            self.server.retire(state.pid)

    def discard(self, state: State) -> tuple[int, float, int] | None:
        """Kill a process now and tell how it died: (wait status, CPU seconds, peak KiB)."""
        state.kill()
        self._forget(state)
        with contextlib.suppress(SandboxLost):
            return self.server.reap(state.pid)
        return None

    def _end_strays(self) -> list[int]:
        """Kill members of the group that never reported. Only while no other fork is under way."""
        self._greetings.clear()
        return self.server.end_strays(self.group, tuple(self._states))

    def _forget(self, state: State) -> None:
        self._parked.pop(state.pid, None)
        if self._states.pop(state.pid, None) is not None:
            os.close(state.pidfd)

    def leave(self) -> None:
        """One box fewer; the last one ends every process of the family."""
        with self._table:
            self.boxes -= 1
            last = self.boxes == 0
        if last:
            self.server.end(self.group)
            for state in list(self._states.values()):
                self._forget(state)
            self.listener.close()
