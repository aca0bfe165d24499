"""The fork server's process: loads what code may import, then forks one worker per session and reaps what dies.

Runs no generated code and reads nothing that workers write. It lives as long as the supervisor: when the control socket closes, or
the supervisor's process is gone, it kills every worker group and exits.
"""

from __future__ import annotations

import gc
import marshal
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any

from . import channel, kernel, seccomp, tables
from .channel import Encoded
from .confine import Origin, address_space, confine
from .language import make_builtins, preload
from .session import CodeSession
from .views import teach_modules

MEMORY_EXIT = 99
"""A worker that could not even report for lack of memory."""
MOST_DESCRIPTORS = 4096
"""More than a zygote ever has: it opens few, each under the lowest free number."""
WALL = 0x40000000
"""__WALL: children of every kind, whatever signal they end with."""


def main(control_fd: int, supervisor: int, modules: dict[str, list[str]]) -> None:
    os.environ.clear()  # CPython itself may have added LC_CTYPE
    os.environ["PYTHONHASHSEED"] = "0"
    preload(modules["preload"])
    if modules["held"] or modules["extra"]:
        from .library import hold, load_packages

        own_path = sys.path[:]
        try:
            packages = load_packages(modules["extra"], modules["path"]) if modules["extra"] else []
        except (ImportError, RuntimeError) as error:
            os.write(control_fd, marshal.dumps(("failed", f"{', '.join(modules['extra'])} cannot be loaded: {error}")))
            os._exit(1)
        hold([*modules["held"], *packages], modules["path"])
        sys.path[:] = own_path
        os.environ.clear()
        os.environ["PYTHONHASHSEED"] = "0"
    teach_modules()
    serve(control_fd, supervisor, Zygote)


def serve(control_fd: int, supervisor: int, make: Callable[[socket.socket], Zygote]) -> None:
    """Report to the supervisor, and obey it for as long as it lives."""
    watch = os.pidfd_open(supervisor)
    seccomp.assemble()
    gc.collect()
    gc.freeze()
    # The lowest free number: the one it came under is the supervisor's, and may be above all that a worker closes.
    control = socket.socket(fileno=os.dup(control_fd))
    os.close(control_fd)
    control.send(marshal.dumps(("ready", os.getpid(), sys.version)))
    make(control).serve(watch)


class Zygote:
    """Obeys the supervisor: spawn, reap, retire, end."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._groups: set[int] = set()
        self._builtins: dict[bytes, dict[str, Any]] = {}

    def serve(self, watch: int) -> None:
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(watch, select.POLLIN)
        while not any(fd == watch for fd, _ in poll.poll()):
            message, descriptors, _, _ = socket.recv_fds(self._control, 1 << 16, 1)
            if not message:
                break
            number, *order = marshal.loads(message)  # written by the supervisor only
            answer = self.obey((order[0], order[1]), descriptors)
            if number:
                self._control.send(marshal.dumps((number, answer)))
        for group in self._groups:
            try:
                os.killpg(group, signal.SIGKILL)
            except OSError:
                continue  # nobody is left in it
        os._exit(0)

    def obey(self, message: tuple[str, Any], descriptors: list[int]) -> Any:
        match message:
            case ("spawn", policy):
                key = marshal.dumps(policy)
                if key not in self._builtins:  # made once per policy; a worker's copy is its own, as its memory is
                    self._builtins[key] = make_builtins(policy)
                    gc.freeze()
                names = self._builtins[key]
                # A fork without Python's hooks: there is one thread, and nothing to reset.
                return self.spawn(lambda: kernel.call("clone", tables.SIGCHLD), descriptors[0], start_worker, names)
            case ("reap", pid):
                return _reap(pid)
            case ("retire", pids):
                for pid in pids:
                    _kill(pid)
                    _reap(pid)
            case ("strays", (group, known)):
                killed: list[int] = []
                while strays := [pid for pid in _children(group) if pid not in known]:
                    for pid in strays:
                        _kill(pid)
                    killed += [pid for pid in strays if _reap(pid) is not None]
                return killed
            case ("end", group):
                self._groups.discard(group)
                while _has_child(group):  # the kernel says who they are: a look through /proc takes milliseconds
                    # A child that we have not reaped is in it: the number is still theirs.
                    os.killpg(group, signal.SIGKILL)
                    os.waitpid(-group, WALL)
            case _:
                raise AssertionError(message)
        return None

    def spawn(self, fork: Callable[[], int], descriptor: int, start: Callable[..., None], *given: Any) -> int:
        """A child that runs `start(descriptor, origin, *given)` and never returns; its pid."""
        origin = Origin(os.getpid(), address_space())
        pid = fork()
        if pid == 0:
            try:
                start(descriptor, origin, *given)
            except MemoryError:
                os._exit(MEMORY_EXIT)
            finally:
                os._exit(1)
        os.close(descriptor)
        try:
            os.setpgid(pid, pid)
        except OSError:
            pass  # it has done so itself, and is further on already
        self._groups.add(pid)
        return pid


def start_worker(descriptor: int, origin: Origin, names: dict[str, Any]) -> None:
    """From a fresh fork to a confined, parked state. Nothing of the zygote's descriptors is kept.

    Whatever can be done before the fork is: a page that a worker is the first to touch costs more than the work on it.
    """
    keep_only(descriptor)
    config: dict[str, Any] = channel.receive()
    try:
        session = CodeSession(config, names)
        on, missing = confine(config, origin, _send_listener)
        ready = {"layers": on, "missing": missing}
    except BaseException:
        channel.send(channel.READY, 0, {"report": Encoded({"error": traceback.format_exc()})}, 1 << 20)
        raise
    channel.send(channel.READY, 0, {"report": Encoded(ready)}, 1 << 20)
    session.start(gated="fork-gate" in on)


def keep_only(descriptor: int) -> None:
    """A group of its own, and no descriptor but this one, as channel.SOCKET, and /dev/null."""
    os.setpgid(0, 0)
    null = os.open("/dev/null", os.O_RDWR)
    for target, source in ((0, null), (1, null), (2, null), (channel.SOCKET, descriptor)):
        os.dup2(source, target, inheritable=False)
    os.closerange(channel.SOCKET + 1, MOST_DESCRIPTORS)


def _send_listener(listener: int) -> None:
    wire = socket.socket(fileno=channel.SOCKET)
    socket.send_fds(wire, [b"L"], [listener])
    wire.detach()


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)  # our own child, not yet reaped: the pid cannot have been given away
    except OSError:
        pass  # already reaped


def _reap(pid: int) -> tuple[int, float, int] | None:
    """(wait status, CPU seconds, peak KiB) of a child that is dead or dying; None if it is not our child."""
    try:
        _, status, usage = os.wait4(pid, 0)
    except ChildProcessError:
        return None
    return status, usage.ru_utime + usage.ru_stime, usage.ru_maxrss


def _has_child(group: int) -> bool:
    """Does this process group have a child of ours, alive or not yet reaped?"""
    try:
        os.waitid(os.P_PGID, group, os.WEXITED | os.WNOHANG | os.WNOWAIT | WALL)
    except ChildProcessError:
        return False
    return True


def _children(group: int) -> list[int]:
    """Our children in this process group, zombies included, by /proc: a child that never said hello is known only there."""
    me = os.getpid()
    found: list[int] = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue  # it ended while we looked
        if int(fields[1]) == me and int(fields[2]) == group:
            found.append(int(name))
    return found
