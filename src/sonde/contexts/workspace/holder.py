"""Runs one command and ends everything that it started, also what has left its process group. A program of its own:

    python -I -S holder.py PARENT PROGRAM [ARGUMENT …]

On Linux the orphans of the command become children of this process. It kills them when the command has ended, when it is told to end, and
when PARENT, the process that started it, is gone. It is no boundary: the command runs as the user, who may kill this process first.
Standard library only; ends as the command ended.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
GRACE_S = 0.3  # for a command that was told to end; whoever tells it kills the group a little later
IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def main(parent: int, argv: list[str]) -> int:
    """The exit code of the command; a signal that ended it ends this process too."""
    signal.signal(signal.SIGTERM, told_to_end)
    if sys.platform == "linux":
        prctl = ctypes.CDLL(None).prctl
        prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        return 1
    try:
        command = os.posix_spawnp(argv[0], argv, os.environ, setsigdef=IGNORED_BY_PYTHON)
    except OSError as error:
        sys.stderr.write(f"{argv[0]}: {error.strerror}\n")
        return 126
    ended, status = 0, 0
    while ended != command:  # orphans may end before it
        ended, status = os.waitpid(-1, 0)
    end_children()
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        with suppress(OSError):  # nobody can catch SIGKILL
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def told_to_end(number: int, frame: FrameType | None) -> None:
    """Let the command end by itself for a moment; it was told too, being in the same group."""
    del frame
    until = time.monotonic() + GRACE_S
    with suppress(ChildProcessError):
        while time.monotonic() < until:
            os.waitpid(-1, os.WNOHANG)
            time.sleep(0.01)
    end_children()
    os._exit(128 + number)


def end_children() -> None:
    """Kill every child, then those that became ours by that, until there is none, or none that we may kill."""
    listed = Path(f"/proc/self/task/{os.getpid()}/children")
    while listed.exists():
        killed = False
        for pid in listed.read_text().split():
            with suppress(ProcessLookupError, PermissionError):  # the latter: it has changed its user
                os.kill(int(pid), signal.SIGKILL)
                killed = True
        if not killed:
            return
        os.waitpid(-1, 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
