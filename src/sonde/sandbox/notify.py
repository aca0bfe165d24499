"""The supervisor's side of seccomp user notifications: which call is being held, and what to answer."""

from __future__ import annotations

import errno
import os
import select
import struct
import sys
from dataclasses import dataclass

if sys.platform != "win32":
    import fcntl

RECEIVE = 0xC0502100
SEND = 0xC0182101
ID_VALID = 0x40082102
ADD_FD = 0x40182103
CONTINUE_FLAG = 1
SET_FD_FLAG = 1
NOTICE = struct.Struct("<QIIiIQ6Q")
RESPONSE = struct.Struct("<QqiI")
ADDITION = struct.Struct("<QIIII")


@dataclass(frozen=True, slots=True)
class Notice:
    """A call that a process is held in until it is answered."""

    id: int
    pid: int
    number: int


class Listener:
    """The descriptor on which the kernel reports held calls of one family of states."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    def wait(self, seconds: float) -> bool:
        """Is there something to receive?"""
        return any(event & select.POLLIN for _, event in self._poll.poll(max(0.0, seconds * 1000)))

    def receive(self) -> Notice | None:
        """The next held call; None when its process died in between. Call only after `wait` said yes: it blocks."""
        buffer = bytearray(NOTICE.size)
        try:
            fcntl.ioctl(self.descriptor, RECEIVE, buffer)
        except OSError as error:
            if error.errno in {errno.ENOENT, errno.EINTR}:
                return None
            raise
        fields = NOTICE.unpack(buffer)
        return Notice(fields[0], fields[1], fields[3])

    def valid(self, notice: Notice) -> bool:
        """Is that very call still held, so that its pid still means the same process?"""
        try:
            self._ask(ID_VALID, struct.pack("<Q", notice.id))
        except OSError:
            return False
        return True

    def proceed(self, notice: Notice) -> bool:
        """Let the call happen; False when its process is gone."""
        return self._ioctl(SEND, RESPONSE.pack(notice.id, 0, 0, CONTINUE_FLAG))

    def install(self, notice: Notice, descriptor: int, number: int) -> bool:
        """Put a copy of our descriptor into the held process as `number`."""
        return self._ioctl(ADD_FD, ADDITION.pack(notice.id, SET_FD_FLAG, descriptor, number, os.O_CLOEXEC))

    def _ioctl(self, request: int, data: bytes) -> bool:
        try:
            self._ask(request, data)
        except OSError as error:
            if error.errno in {errno.ENOENT, errno.EINPROGRESS, errno.ESRCH}:
                return False
            raise
        return True

    def _ask(self, request: int, data: bytes) -> None:
        """One ioctl, again if a signal of the caller's own (a timer, a resized terminal) interrupts it: then nothing was done."""
        while True:
            try:
                fcntl.ioctl(self.descriptor, request, bytearray(data))
            except InterruptedError:
                continue
            return

    def close(self) -> None:
        os.close(self.descriptor)
