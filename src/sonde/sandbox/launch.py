"""A new session: one confined worker of the fork server and its listener; or an error that says what this machine lacks."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Sequence
from typing import Any

from sonde.errors import SandboxLost, SandboxUnavailable
from sonde.sandbox.base import DISPENSABLE, OutOfTime
from sonde.sandbox.fork_gate import GatedFamily, UngatedFamily
from sonde.sandbox.forkserver import ForkServer
from sonde.sandbox.frames import BadFrame, Channel, HungUp, ReadyBody, encode
from sonde.sandbox.notify import Listener
from sonde.sandbox.snapshots import State, StateFamily

LAUNCH_SECONDS = 30.0
REMEDIES = {
    "uid": "start it with CAP_SETUID, CAP_SETGID and CAP_KILL, or as an ordinary user (docker run --user 1000, unshare --map-current-user)",
    "rlimits": "raise the hard limits of this process (ulimit -H)",
    "pdeathsig": "allow prctl(PR_SET_PDEATHSIG)",
    "no_new_privs": "allow prctl(PR_SET_NO_NEW_PRIVS)",
    "landlock": "use a kernel >= 5.13 with landlock in the list of LSMs (boot with lsm=landlock,...); a container's seccomp profile "
    "must permit landlock_*",
    "fork-gate": "use a kernel >= 5.9 and allow seccomp user notifications (Docker: --security-opt seccomp=unconfined); a runtime that "
    "takes such notifications itself (LXD, sysbox) leaves none for others",
    "seccomp": "use a kernel with CONFIG_SECCOMP_FILTER",
}
"""What to do about each missing layer."""
STOPS = {
    "uid": "code acting as root: files of others, other users' processes, changes to the system",
    "rlimits": "code taking all memory, processor time or descriptors",
    "pdeathsig": "a worker that outlives Sonde when it is killed",
    "no_new_privs": "gaining rights by starting a setuid program",
    "landlock": "opening files and TCP connections through a hole in seccomp, which refuses them as well",
    "fork-gate": "new processes that nobody permitted, and with it kept states that code cannot touch",
    "seccomp": "every system call that is not on the list: files, sockets, processes, most doors of kernel exploits",
}
"""What each layer keeps code from."""


class LayersMissing(SandboxUnavailable):
    """The kernel refused layers; `on` are those that it accepted, `missing` the others."""

    def __init__(self, on: Sequence[str], missing: Sequence[str]) -> None:
        self.on, self.missing = tuple(on), tuple(missing)
        names = [layer.partition(" ")[0] for layer in missing]
        remedies = {layer: REMEDIES.get(name, "no remedy is known") for layer, name in zip(missing, names, strict=True)}
        flag = ""
        if names == [DISPENSABLE]:
            flag = f"If you cannot change the kernel: --without {DISPENSABLE} runs code behind the other layers, and the record says so.\n"
        super().__init__(
            "this machine lacks kernel layers that keep untrusted code in:\n"
            + "".join(f"  {layer}: {remedy}\n" for layer, remedy in remedies.items())
            + flag
            + "`sonde doctor` shows all layers. Without them there is --backend monty: an interpreter, a weaker boundary, "
            "less of Python."
        )


def launch(server: ForkServer, config: dict[str, Any], *, unsafe: bool, without: str = "") -> tuple[StateFamily, State]:
    """A parked state that has run no code yet, and its family."""
    near, far = socket.socketpair()
    with near, contextlib.ExitStack() as undo:
        with far:
            group = server.spawn(far, config["policy"])
        undo.callback(server.end, group)
        near.settimeout(LAUNCH_SECONDS)
        near.sendall(encode(config))
        listener = None
        try:
            if near.recv(1, socket.MSG_PEEK) == b"L":
                _, descriptors, _, _ = socket.recv_fds(near, 1, 1)
                listener = Listener(descriptors[0])
                undo.callback(listener.close)
            channel = Channel(near, 1 << 20)
            channel.sequence = -1
            channel.deadline = time.monotonic() + LAUNCH_SECONDS
            body = channel.receive()
        except (OSError, HungUp, OutOfTime, BadFrame) as error:
            raise SandboxLost(f"a new worker did not report ({type(error).__name__}); try again") from None
        assert isinstance(body, ReadyBody)
        ready = body.report
        if ready.error:
            raise SandboxUnavailable(f"a worker could not be set up:\n{ready.error}")
        missing = [layer for layer in ready.missing if layer != without]
        if missing and not unsafe:
            raise LayersMissing(ready.layers, missing)
        agreed = [f"without {without}"] if without else []
        layers = (*ready.layers, *(["UNSAFE"] if unsafe else []), *agreed, *(f"missing: {layer}" for layer in missing))
        if listener is not None:
            family: StateFamily = GatedFamily(server, group, layers, listener)
        else:
            family = UngatedFamily(server, group, layers, near)
        state = family.adopt(group)
        undo.pop_all()  # nothing went wrong
        return family, state
