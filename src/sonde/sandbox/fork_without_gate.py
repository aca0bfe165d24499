"""A family without the fork gate, for `unsafe=True` on a kernel that has no seccomp user notifications.

The same turns, rollbacks and branches; but a state forks when its socket says so, and hostile code may do as it likes.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping

from sonde.sandbox.forkserver import ForkServer
from sonde.sandbox.snapshots import Family, ForkFailed, State


class UngatedFamily(Family):
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
