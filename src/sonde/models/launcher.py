"""Runs one program and ends everything that it started, also what has left its group: when the program is told to end, and when the
process that wanted it is gone, however that went. A process of its own, which stays outside of the program's confinement.

On Linux the orphans of the program become children of this process. It looks for its parent instead of asking for a signal at its
death, because that signal comes when the *thread* that started us ends. What this does not promise: to outlive a program that kills
it. A confined one cannot, from the sixth version of landlock on. Standard library only; it imports nothing of Sonde by name.
"""

from __future__ import annotations

import ctypes
import importlib
import marshal
import os
import signal
import sys
import time
from contextlib import suppress
from typing import Any, NoReturn

PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
GRACE_S = 0.3  # for a program that was told to end
TICK_S = 0.1
if sys.platform != "win32":  # where programs as models are refused before this is started
    HEARD = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def main() -> NoReturn:
    """End as the program ended. The first argument is the order, in marshal and hex; the others are the program's."""
    order: dict[str, Any] = marshal.loads(bytes.fromhex(sys.argv[1]))  # noqa: S302 - only our parent writes it
    signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    listed = _list_of_children()
    program = os.fork()
    if program == 0:
        start(order, sys.argv[2:])
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):  # whoever reads the program's output waits for its end, not for ours
        os.dup2(nothing, standard)
    os.close(order["report"])
    status = None
    while status is None:
        heard = _hear()
        status = _reaped().get(program)
        if status is None and (heard not in (None, signal.SIGCHLD) or os.getppid() != order["parent"]):
            _signal_group(program, signal.SIGTERM)
            _await(program)
            end_children(listed)
            status = signal.SIGTERM
    _signal_group(program, signal.SIGKILL)
    if order["alone"]:  # else a daemon may stay
        end_children(listed)
    if os.getppid() != order["parent"] and order["temporary"]:
        import shutil  # noqa: PLC0415 - slow to load, and hardly ever needed

        shutil.rmtree(order["temporary"], ignore_errors=True)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        _prctl(PR_SET_DUMPABLE, 0)  # one core is enough
        with suppress(OSError):  # nobody can catch SIGKILL
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)
        os.kill(os.getpid(), -code)
    os._exit(code)


def start(order: dict[str, Any], argv: list[str]) -> NoReturn:
    """Become the program, in a session of its own; what prevents that goes into the report."""
    report: int = order["report"]
    try:
        os.set_inheritable(report, False)
        os.setsid()
        for number in IGNORED_BY_PYTHON:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)
        for name in order["unset"]:
            os.environ.pop(name, None)
        if order["confined"]:
            sys.path.insert(0, order["code"])
            importlib.import_module("worker.confine").confine_command(order["read"], order["write"])
        os.execvp(argv[0], argv)  # noqa: S606 - there is no shell on purpose
    except OSError as error:
        os.write(report, f"{error.errno or 0} {error.strerror}".encode())
    finally:
        os._exit(126)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _hear() -> int | None:
    """The next signal, or None after a moment."""
    if hasattr(signal, "sigtimedwait"):
        info = signal.sigtimedwait(HEARD, TICK_S)
        return info.si_signo if info else None
    time.sleep(TICK_S)
    pending = signal.sigpending() & set(HEARD)
    return signal.sigwait(pending) if pending else None


def _reaped() -> dict[int, int]:
    """How children ended that have ended since."""
    ended: dict[int, int] = {}
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended[pid] = status
    return ended


def _await(program: int) -> None:
    """Let the program end by itself, for a moment."""
    until = time.monotonic() + GRACE_S
    while time.monotonic() < until and program not in _reaped():
        time.sleep(0.01)


def end_children(listed: int | None) -> None:
    """Kill every child with its group, then those that became ours by that, until there is none, or none that we may kill."""
    killed = True
    while killed:
        killed = False
        for pid in _children(listed):
            with suppress(ProcessLookupError):
                _signal_group(os.getpgid(pid), signal.SIGKILL)  # the whole group at once: nobody forks away from that
            with suppress(ProcessLookupError, PermissionError):  # the latter: it has changed its user
                os.kill(pid, signal.SIGKILL)
                killed = True
        with suppress(ChildProcessError):
            os.waitpid(-1, 0 if killed else os.WNOHANG)


def _list_of_children() -> int | None:
    """Where Linux lists our children. Opened before the program starts, which could leave no descriptors on the machine."""
    try:
        return os.open(f"/proc/self/task/{os.getpid()}/children", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _children(listed: int | None) -> list[int]:
    if listed is None:
        return []
    text = b""
    os.lseek(listed, 0, os.SEEK_SET)  # the kernel lists them anew
    while part := os.read(listed, 65536):
        text += part
    return [int(pid) for pid in text.split()]


def _signal_group(group: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
