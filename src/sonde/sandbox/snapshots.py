"""The states of one session and its branches: which are kept, who holds them, and how they end.

`fork_gate` has the two kinds of family, which differ in how a state is forked.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sonde.errors import ConfigError, SandboxLost
from sonde.sandbox.forkserver import ForkServer

FEWEST = 2
"""The newest state has not proved that it can fork: the one before it stays until then."""


class ForkFailed(Exception):
    """No child of the state reported: the state is dead, or hostile."""


class ForkRefused(ForkFailed):
    """The kernel made no child (out of processes or memory); the state itself is well."""


class State:
    """One process: parked after a turn, or running one."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.holders = 1
        """Boxes that still want it; at zero it is retired."""
        self.private_bytes = 0
        self.shares: frozenset[str] = frozenset()
        self.names: frozenset[str] = frozenset()
        """Variables that code has bound up to here."""
        self._pidfd = os.pidfd_open(pid)
        self._closing = threading.Lock()
        """Another thread may close the box: the number must not mean a stranger when we kill."""

    @property
    def pidfd(self) -> int:
        return self._pidfd

    def dead(self, within_s: float = 0.0) -> bool:
        watch = select.poll()  # a new one each time: threads may ask the same state, and a poll object serves one
        if (pidfd := self._pidfd) < 0:
            return True
        watch.register(pidfd, select.POLLIN)
        return bool(watch.poll(within_s * 1000))

    def kill(self) -> None:
        with self._closing, contextlib.suppress(ProcessLookupError):  # it is dead already
            if self._pidfd >= 0:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def close(self) -> None:
        with self._closing:
            os.close(self._pidfd)
            self._pidfd = -1


class StateFamily(ABC):
    """Every state that descends from one confined worker."""

    def __init__(self, server: ForkServer, group: int, layers: tuple[str, ...]) -> None:
        self.server = server
        self.group = group
        self.layers = layers
        self._boxes = 1
        self._states: dict[int, State] = {}
        self._table = threading.RLock()  # a collected Sandbox may close itself while we hold it

    @abstractmethod
    def fork(self, state: State, descriptors: Mapping[int, int], near: socket.socket) -> State:
        """A child of the state with our descriptors under the given numbers; `near` is our end of its socket."""

    @abstractmethod
    def await_parked(self, state: State) -> bool:
        """Wait until the state has come to rest; False when it died or spins."""

    def adopt(self, pid: int) -> State:
        state = self._states[pid] = State(pid)
        return state

    def join(self, state: State) -> None:
        """One box more, and one holder more of this state."""
        with self._table:
            self._boxes += 1
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

    def leave(self, states: Iterable[State]) -> None:
        """One box fewer, which held these states; the last one ends every process of the family at once."""
        with self._table:
            self._boxes -= 1
            last = self._boxes == 0
        if not last:
            for state in states:
                self.release(state)
            return
        self.server.end(self.group)
        for state in list(self._states.values()):
            self._forget(state)
        self._close()

    def _forget(self, state: State) -> None:
        with self._table:
            if self._states.pop(state.pid, None) is not None:
                state.close()

    @abstractmethod
    def _close(self) -> None:
        """Give back what belongs to the family as a whole."""


@dataclass(slots=True, eq=False)
class History:
    """The kept states of one box by the turn that left them, oldest first. The last one is where the next turn starts."""

    family: StateFamily
    keep: int
    memory: int
    entries: list[tuple[int, State]]

    @property
    def state(self) -> State:
        if not self.entries:
            raise SandboxLost("no state of this sandbox is left; open a new Sandbox")
        return self.entries[-1][1]

    def commit(self, turn: int, state: State) -> None:
        """The turn left this state; forget the oldest beyond what may be kept."""
        self.entries.append((turn, state))
        while len(self.entries) > FEWEST and (
            len(self.entries) > self.keep or sum(each.private_bytes for _, each in self.entries) > self.memory
        ):
            self.family.release(self.entries.pop(0)[1])

    def rollback(self, turn: int, now: int) -> None:
        """Forget the states of the turns after `turn`; `now` is the turn where the box stands."""
        kept = [left for left, _ in self.entries]
        if not kept or turn < kept[0] or turn > now:
            raise ConfigError(f"there is no kept state after turn {turn}; kept are the states after turns {kept}")
        while self.entries[-1][0] > turn:
            self.family.release(self.entries.pop()[1])

    def clear(self) -> list[State]:
        """Forget all states; the caller gives them back."""
        states = [state for _, state in self.entries]
        self.entries.clear()
        return states
