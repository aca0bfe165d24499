"""The parent side of the fork server: one warm zygote, shared by every sandbox of this process.

Promises that no process of a session outlives both its ends: the zygote kills all when this process is gone, a thread here
kills all when the zygote is gone, and the kernel kills a state when the zygote dies (PDEATHSIG). What is left: if both are
killed at once, within the seconds that a new child has to ask for its socket, a hostile one that does not ask outlives them: until
its CPU limit, or for as long as it sleeps. It is confined and has nobody to talk to.
"""

from __future__ import annotations

import atexit
import marshal
import os
import platform
import select
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Any, ClassVar

from sonde.errors import SandboxLost, SandboxUnavailable
from sonde.sandbox.policy import Profile

PROVED = ("x86_64", "aarch64")
"""Machines on which the escape corpus has been run."""
GVISOR = "#1 SMP Sun Jan 10 15:06:54 PST 2016"
"""What gVisor says as the version of its kernel, in all of its releases."""
START_SECONDS = 60.0
MOST_OF_ERRORS = 4000


class ForkServer:
    """A zygote process and the orders it takes. Safe to use from several threads."""

    BOOT: ClassVar = """
import sys
sys.path.insert(0, {folder!r})
from worker import kernel
kernel.fix_addresses()
from worker.zygote import main
sys.path.pop(0)
main(*{arguments!r})
"""
    ENVIRONMENT: ClassVar = {"PYTHONHASHSEED": "0"}

    def __init__(
        self,
        preload: frozenset[str] = frozenset(),
        *,
        held: frozenset[str] = frozenset(),
        extra: tuple[str, ...] = (),
        python: str = sys.executable,
        without: tuple[str, ...] = (),
        grace_s: float = 5.0,
    ) -> None:
        """`python` may be another CPython >= 3.11; `without` leaves layers off, to see what a machine without them does.

        `held` modules are kept in memory and run when code imports them; `extra` are packages of this Python that are
        loaded. `grace_s` is how long a state may take to come to rest, or a child to report: a benign one takes milliseconds.
        """
        check_machine()
        _check_pidfd()
        self.owner = os.getpid()
        self.without = without
        self.grace_s = grace_s
        self._lock = threading.RLock()  # a collected Sandbox may close itself while we hold it
        self._groups: set[int] = set()
        self._asked = 0
        self._control, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = [folder for folder in sys.path if folder.startswith("/")]
        installed = [folder for folder in path if Path(folder).name in ("site-packages", "dist-packages")]
        modules = {"preload": sorted(preload), "held": sorted(held), "extra": list(extra), "path": installed}
        with far, os.fdopen(os.memfd_create("sonde-forkserver-errors"), "r+b") as errors:
            boot = self.BOOT.format(
                folder=str(Path(__file__).resolve().parent),
                path=path,
                arguments=(far.fileno(), os.getpid(), modules),
            )
            self._process = subprocess.Popen(
                [python, "-S", "-s", "-P", "-B", "-X", "utf8", "-c", boot],
                env=self.ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=(far.fileno(),),
                cwd="/",
                process_group=0,  # Ctrl-C is for the supervisor to judge
            )
            far.close()
            self._control.settimeout(START_SECONDS)
            self._watch = os.pidfd_open(self._process.pid)
            silence = ""
            try:
                said = self._control.recv(1 << 16)
            except OSError as error:
                said = b""
                if isinstance(error, TimeoutError):
                    silence = f"it did not answer within {START_SECONDS:g} s; if this machine is very busy, try again"
            word, reason, *_ = marshal.loads(said) if said else ("", "")  # noqa: S302 - the zygote runs no generated code
            if word != "ready":
                self._process.kill()
                status = self._process.wait()
                self._control.close()
                os.close(self._watch)
                if word == "failed":
                    raise SandboxUnavailable(reason)
                errors.seek(max(0, errors.seek(0, os.SEEK_END) - MOST_OF_ERRORS))
                told = errors.read().decode("utf-8", "replace").strip()
                why = silence or told.rpartition("\n")[2] or f"it ended with status {status} and said nothing"
                raise SandboxUnavailable(
                    f"the fork server did not start: {why}. It was started with {python}, and needs a CPython >= 3.11 with ctypes on "
                    "Linux >= 5.9. `sonde doctor` says what this machine lacks"
                )
        threading.Thread(target=self._kill_when_zygote_dies, name="sonde-forkserver", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self.owner == os.getpid() and self._process.poll() is None

    def spawn(self, wire: socket.socket, policy: dict[str, Any]) -> int:
        """A new worker at the other end of `wire`; returns its pid, which is also its process group."""
        group: int | str = self._ask(("spawn", policy), wire.fileno())
        if isinstance(group, str):
            raise SandboxUnavailable(group)
        self._groups.add(group)
        return group

    def reap(self, pid: int) -> tuple[int, float, int] | None:
        """(wait status, CPU seconds, peak KiB) of a process that is dead or has been killed."""
        return self._ask(("reap", pid))

    def retire(self, *pids: int) -> None:
        """Kill and reap, without waiting for it."""
        self._tell(("retire", pids))

    def end_strays(self, group: int, known: tuple[int, ...]) -> list[int]:
        """Kill whoever is in the group without our knowing; returns their pids."""
        return self._ask(("strays", (group, known)))

    def end(self, group: int) -> None:
        """Kill and reap a whole family, without waiting for it."""
        self._groups.discard(group)
        self._tell(("end", group))

    def close(self) -> None:
        """End every worker and the zygote."""
        if self.owner != os.getpid():
            return
        self._control.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ask(self, message: tuple[str, Any], descriptor: int | None = None) -> Any:
        if self.owner != os.getpid():
            raise SandboxLost("this sandbox belongs to the process that this one was forked from; open a new Sandbox")
        with self._lock:
            self._asked = number = self._asked + 1
            try:
                self._send((number, *message), descriptor)
                while answer := self._control.recv(1 << 20):
                    answered, value = marshal.loads(answer)  # noqa: S302 - the zygote runs no generated code
                    if answered == number:  # not one that an interrupt left unread
                        return value
            except OSError as error:
                raise SandboxLost(f"the fork server does not answer ({error}); open a new Sandbox") from None
        raise SandboxLost("the fork server is gone, and with it every state; open a new Sandbox")

    def _tell(self, message: tuple[str, Any]) -> None:
        if self.owner != os.getpid():
            return  # a copy of the sandbox in a forked process: not ours to end
        try:
            self._send((0, *message), None)  # a packet is sent whole, so this needs no lock
        except OSError:
            return  # it is gone, and so are those we wanted gone

    def _send(self, message: tuple[int, str, Any], descriptor: int | None) -> None:
        data = marshal.dumps(message)
        if descriptor is None:
            self._control.send(data)
        else:
            socket.send_fds(self._control, [data], [descriptor])

    def _kill_when_zygote_dies(self) -> None:
        poll = select.poll()
        poll.register(self._watch, select.POLLIN)
        poll.poll()
        for group in list(self._groups):
            try:
                os.killpg(group, signal.SIGKILL)
            except OSError:
                continue  # PDEATHSIG was faster
        os.close(self._watch)


def check_machine() -> None:
    """Refuse by name a machine, a kernel or a build of Python on which the boundary is not proved."""
    machine = platform.machine()
    if sys.platform != "linux":
        own = {"darwin": "macOS; use a Linux VM", "win32": "Windows; use WSL2"}.get(sys.platform, sys.platform)
        raise SandboxUnavailable(
            f"the kernel backend needs Linux (landlock, seccomp), and this is {own}, or --backend monty: an interpreter, "
            "a weaker boundary, less of Python (`sonde doctor` says what it promises)"
        )
    if machine not in PROVED:
        raise SandboxUnavailable(
            f"there is no system call table for {machine}; the sandbox runs on {' and '.join(PROVED)}"
        )
    if platform.version() == GVISOR:
        raise SandboxUnavailable(
            "this is gVisor (runsc), whose kernel has no landlock and no seccomp notifications: use the runtime runc or crun for this "
            "container, or --backend monty inside of gVisor"
        )
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise SandboxUnavailable(
            f"this is a free-threaded build of Python {platform.python_version()}; the boundary is proved only with the lock of the "
            f"ordinary build (python{sys.version_info.major}.{sys.version_info.minor}, without the t)"
        )
    if "musl" in f"{sysconfig.get_config_var('HOST_GNU_TYPE')} {sysconfig.get_config_var('SOABI')}":
        raise SandboxUnavailable(
            "this Python is built for musl (Alpine, say), and the list of permitted system calls is proved only with glibc: use an "
            "image with glibc (python:3.13-slim), or --backend monty"
        )


def _check_pidfd() -> None:
    """Refuse a place where processes cannot be watched and ended by descriptor: some containers forbid just that."""
    try:
        itself = os.pidfd_open(os.getpid())
        try:
            signal.pidfd_send_signal(itself, 0)
        finally:
            os.close(itself)
    except OSError as error:
        raise SandboxUnavailable(
            f"pidfd_open or pidfd_send_signal is refused here ({error.strerror}), and without them no process is ended for sure: "
            "use Linux >= 5.9, and allow both in the container's seccomp profile"
        ) from None


_shared: dict[tuple[Collection[str], ...], ForkServer] = {}
_shared_lock = threading.Lock()


def shared_server(profile: Profile) -> ForkServer:
    """The warm server of this process for the modules of this profile; started on first use, and again if it died."""
    modules = profile.preload, profile.held, profile.extra
    with _shared_lock:
        server = _shared.get(modules)
        if server is None or not server.alive:
            server = _shared[modules] = ForkServer(profile.preload, held=profile.held, extra=profile.extra)
            atexit.register(server.close)
        return server
