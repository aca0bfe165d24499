"""How a state is forked. `GatedFamily`: the seccomp listener of the family is the only door to a new process.

A state that is not in a turn is parked: held inside the fork it asked for. `fork` lets that call happen once, meets the child at
its PDEATHSIG call, and gives it its descriptors there. A child that skips that call never gets a socket, and is found and killed
as a stray.

`UngatedFamily` is for `unsafe=True` on a kernel without seccomp user notifications: the same turns, rollbacks and branches, but a
state forks when its socket says so, and hostile code may do as it likes.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections.abc import Mapping

from sonde.sandbox.forkserver import ForkServer
from sonde.sandbox.notify import Listener, Notice
from sonde.sandbox.snapshots import ForkFailed, ForkRefused, State, StateFamily
from sonde.sandbox.worker.tables import NUMBERS

LATE_S = 0.2
"""How long a child may report after the state that made it has died."""
SLICE_S = 0.005
"""Another thread may have received our notice; look again this often."""
CLONES = frozenset(numbers["clone"] for numbers in NUMBERS.values())


class GatedFamily(StateFamily):
    """States whose every fork the supervisor permits."""

    def __init__(self, server: ForkServer, group: int, layers: tuple[str, ...], listener: Listener) -> None:
        super().__init__(server, group, layers)
        self._listener = listener
        self._parked: dict[int, Notice] = {}
        self._greetings: dict[int, Notice] = {}
        self._forking = threading.Lock()

    def fork(self, state: State, descriptors: Mapping[int, int], near: socket.socket) -> State:
        del near  # the kernel itself says who the child is
        with self._forking:  # one at a time: a greeting does not say whose child it is
            if not self.await_parked(state):
                raise ForkFailed("the state is not parked")
            if self._greetings:  # nobody was expected
                self._end_strays()
            if not self._listener.proceed(self._parked.pop(state.pid)):
                raise ForkFailed("the state is gone")
            try:
                return self._welcome(state, descriptors)
            except BaseException:
                self._end_strays()  # an interrupt must not leave a child that the next fork takes for its own
                raise

    def _welcome(self, parent: State, descriptors: Mapping[int, int]) -> State:
        """Wait for the child that the parent was just allowed to make, and give it its descriptors."""
        limit = time.monotonic() + self.server.grace_s
        while time.monotonic() < limit:
            with self._table:
                notice = self._greetings.popitem()[1] if self._greetings else None
            if notice is not None:
                try:
                    child = self.adopt(notice.pid)
                except ProcessLookupError:
                    break
                # Valid after the pidfd was opened: the pid still meant the process that is held.
                installed = self._listener.valid(notice) and all(
                    self._listener.install(notice, ours, number) for number, ours in descriptors.items()
                )
                if installed and self._listener.proceed(notice):
                    return child
                self.discard(child)
                break
            if parent.dead():  # a child it has made before will still report
                limit = min(limit, time.monotonic() + LATE_S)
            self._pump(parent)
        if not self._end_strays() and self.await_parked(parent):
            raise ForkRefused("the kernel made no new process")
        raise ForkFailed("its child did not report")

    def await_parked(self, state: State) -> bool:
        limit = time.monotonic() + self.server.grace_s
        while (notice := self._parked.get(state.pid)) is None or not self._listener.valid(notice):
            if state.dead() or time.monotonic() > limit:
                return False
            self._pump(state)
        return True

    def _pump(self, state: State) -> None:
        """Receive what is held now, or wait a moment for something to be; the state's death ends the wait too."""
        poll = select.poll()
        poll.register(self._listener.descriptor, select.POLLIN)
        poll.register(state.pidfd, select.POLLIN)
        poll.poll(SLICE_S * 1000)
        with self._table:
            while self._listener.wait(0):
                notice = self._listener.receive()
                if notice is None:
                    continue
                if notice.number in CLONES:
                    self._parked[notice.pid] = notice
                elif (known := self._states.get(notice.pid)) is not None:
                    known.kill()  # a second greeting: nobody honest asks twice
                else:
                    self._greetings[notice.pid] = notice

    def _end_strays(self) -> list[int]:
        """Kill members of the group that never reported. Only while no other fork is under way."""
        self._greetings.clear()
        return self.server.end_strays(self.group, tuple(self._states))

    def _forget(self, state: State) -> None:
        self._parked.pop(state.pid, None)
        super()._forget(state)

    def _close(self) -> None:
        self._listener.close()


class UngatedFamily(StateFamily):
    """States that wait on their sockets instead of in a held call."""

    def __init__(self, server: ForkServer, group: int, layers: tuple[str, ...], wire: socket.socket) -> None:
        super().__init__(server, group, layers)
        self._wires: dict[int, socket.socket] = {}
        self._keep(group, wire)

    def fork(self, state: State, descriptors: Mapping[int, int], near: socket.socket) -> State:
        numbers = b"".join(struct.pack("<I", number) for number in descriptors)
        near.settimeout(self.server.grace_s)
        try:
            socket.send_fds(self._wires[state.pid], [numbers], list(descriptors.values()))
            (pid,) = struct.unpack("<I", near.recv(4, socket.MSG_WAITALL))
            child = self.adopt(pid)
        except (OSError, struct.error, KeyError):
            raise ForkFailed("its child did not report") from None
        self._keep(pid, near)
        return child

    def await_parked(self, state: State) -> bool:
        return not state.dead()

    def _keep(self, pid: int, wire: socket.socket) -> None:
        """This socket is how to reach the state when it rests."""
        self._wires[pid] = wire.dup()
        self._wires[pid].settimeout(self.server.grace_s)

    def _close(self) -> None:
        for wire in self._wires.values():
            wire.close()

    def _forget(self, state: State) -> None:
        super()._forget(state)
        wire = self._wires.pop(state.pid, None)
        if wire is not None:
            wire.close()
