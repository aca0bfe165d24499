"""How a state waits to be forked, and how the child comes to its socket."""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import socket
import struct
import sys

from . import kernel, tables
from .channel import SOCKET

MOST_DESCRIPTORS = 120
_all_signals = ctypes.create_string_buffer(b"\xff" * 8, 8)


def settle(*, unfreeze: bool) -> None:
    """Come to rest: collected and frozen, so that later collections neither walk nor copy the pages of this state."""
    kernel.raw(kernel.number("rt_sigprocmask"), 2, ctypes.addressof(_all_signals), 0, 8)
    sys.settrace(None)
    sys.setprofile(None)
    gc.callbacks.clear()
    if unfreeze:
        gc.unfreeze()
    gc.collect()
    gc.freeze()


def park() -> None:
    """Wait inside the fork; returns in the child only, with the supervisor's socket in place."""
    while made := kernel.raw(kernel.number("clone"), tables.FORK_FLAGS):
        if made < 0 and ctypes.get_errno() == errno.ENOSYS:
            os._exit(0)  # the listener is closed: nobody will ever ask again, and to ask on would be to spin
        # A child was made, or could not be: wait for the next one.
    # The supervisor installs our socket while it holds this call, then lets it run: no socket without PDEATHSIG.
    kernel.raw(kernel.number("prctl"), tables.PR_SET_PDEATHSIG, tables.SIGKILL)


def park_without_gate() -> None:
    """For an unsafe sandbox on a kernel without user notifications: wait for descriptors on the socket, then fork."""
    while True:
        wire = socket.socket(fileno=SOCKET)
        message, descriptors, _, _ = socket.recv_fds(wire, 4 * MOST_DESCRIPTORS, MOST_DESCRIPTORS)
        wire.detach()
        if not message:
            os._exit(0)
        if not kernel.raw(kernel.number("clone"), tables.FORK_FLAGS):
            break
        for descriptor in descriptors:
            os.close(descriptor)
    kernel.raw(kernel.number("prctl"), tables.PR_SET_PDEATHSIG, tables.SIGKILL)
    for descriptor, (target,) in zip(descriptors, struct.iter_unpack("<I", message), strict=True):
        os.dup2(descriptor, target, inheritable=False)
        os.close(descriptor)
    os.write(SOCKET, struct.pack("<I", os.getpid()))
