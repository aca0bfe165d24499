"""Runs Python code as if on macOS or Windows: what Linux alone has is taken away before Sonde is imported.

    python elsewhere.py darwin CODE [ARGUMENT...]

The standard library and other packages are imported first, as Linux has them: only Sonde itself is on trial. It shows that Sonde asks for
nothing that is not there. It does not show what the other system's own calls do.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import importlib
import importlib.abc
import os
import select
import selectors
import signal
import socket
import sys
import sysconfig
import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NoReturn

EARLY = (
    *("asyncio", "concurrent.futures", "ctypes.util", "getpass", "http.server", "logging.handlers", "multiprocessing"),
    *("platform", "selectors", "shutil", "socketserver", "sqlite3", "subprocess", "tempfile", "urllib.request", "uuid"),
    *(
        "zoneinfo",
        "httpx2",
        "msgspec",
        "pydantic",
        "rich.console",
        "rich.live",
        "rich.markdown",
        "typer.testing",
        "yaml",
    ),
    *("genai_prices", "markdown_it", "pydantic_monty", "mcp", "mcp.server", "mcp.server.stdio", "acp", "duckdb"),
    *("pyarrow.parquet", "opentelemetry.sdk.trace", "tree_sitter", "pypdf", "mammoth"),
)
"""Imported before anything is taken away; those that are not installed are left out."""

LINUX_ONLY = {
    os: (
        "O_PATH O_TMPFILE O_DIRECT O_NOATIME pidfd_open memfd_create eventfd timerfd_create splice copy_file_range setns unshare "
        "sched_getaffinity sched_setaffinity getrandom getxattr setxattr listxattr posix_fadvise posix_fallocate setresuid setresgid "
        "getresuid pipe2 preadv2 fdatasync waitid"
    ),
    signal: "pidfd_send_signal sigtimedwait sigwaitinfo SIGPWR SIGSTKFLT SIGPOLL SIGRTMIN SIGRTMAX",
    select: "epoll EPOLLIN EPOLLOUT EPOLLHUP",
    socket: "SO_PEERCRED AF_ALG AF_VSOCK SO_DOMAIN MSG_CMSG_CLOEXEC SOCK_CLOEXEC SOCK_NONBLOCK AF_NETLINK",
    fcntl: "F_SEAL_SEAL F_SEAL_SHRINK F_SEAL_GROW F_SEAL_WRITE F_ADD_SEALS F_GET_SEALS F_OFD_SETLK F_OFD_SETLKW F_SETPIPE_SZ",
}
POSIX_ONLY = {
    os: ("O_NOFOLLOW O_NONBLOCK O_CLOEXEC O_DIRECTORY O_SYNC O_NOCTTY fork forkpty getuid geteuid getgid getegid setuid setgid getgroups "
         "setgroups initgroups killpg setsid setpgid getpgid getpgrp getsid openpty mkfifo mknod chown fchown fchmod lchown pread "
         "pwrite readv writev wait wait3 wait4 WNOHANG WIFEXITED WIFSIGNALED WEXITSTATUS WTERMSIG nice getpriority setpriority "
         "uname sysconf confstr ctermid statvfs fstatvfs sync chroot fchdir tcgetpgrp ttyname getloadavg posix_spawn register_at_fork"),
    signal: ("SIGKILL SIGHUP SIGALRM SIGUSR1 SIGUSR2 SIGCHLD SIGPIPE SIGQUIT SIGSTOP SIGCONT SIGTSTP SIGTTIN SIGTTOU SIGWINCH SIGXCPU "
             "SIGXFSZ pthread_sigmask pthread_kill setitimer getitimer alarm pause sigwait sigpending siginterrupt SIG_BLOCK "
             "SIG_UNBLOCK SIG_SETMASK ITIMER_REAL"),
    select: "poll POLLIN POLLOUT POLLHUP POLLERR",
    socket: "AF_UNIX send_fds recv_fds SCM_RIGHTS CMSG_LEN CMSG_SPACE MSG_DONTWAIT",
    time: "tzset clock_gettime clock_gettime_ns CLOCK_MONOTONIC CLOCK_REALTIME pthread_getcpuclockid",
}  # fmt: skip
NO_MODULES = ("fcntl", "resource", "termios", "tty", "pty", "pwd", "grp", "syslog", "readline", "curses", "posix")
NO_DESCRIPTORS = ("supports_dir_fd", "supports_follow_symlinks", "supports_fd")


class Missing(importlib.abc.MetaPathFinder):
    """These modules cannot be imported."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if fullname in NO_MODULES:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


def go_to(system: str) -> None:
    """Take away what `system` does not have."""
    sysconfig.get_config_vars()
    for name in EARLY:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    selectors.DefaultSelector = selectors.SelectSelector  # the one that every system has
    _take(LINUX_ONLY)
    real = ctypes.CDLL
    if system == "win32":
        _take(POSIX_ONLY)
        for name in NO_MODULES:
            sys.modules.pop(name, None)
        sys.meta_path.insert(0, Missing())
        sys.modules["msvcrt"] = _locks_of_windows()
        for name in NO_DESCRIPTORS:
            setattr(os, name, set())

    class OtherLibrary(real):
        """The C library there: no prctl, and no system call of Linux's."""

        def __init__(self, name: str | None, *more: object, **named: object) -> None:
            if name is None and system == "win32":
                raise TypeError("bad argument type for built-in operation")
            super().__init__(name, *more, **named)  # pyright: ignore[reportArgumentType]  # passed on as they came

        def __getattr__(self, name: str) -> Any:
            if name in ("prctl", "syscall"):
                _not_there(name)
            return super().__getattr__(name)

    ctypes.CDLL = ctypes.PyDLL = OtherLibrary
    sys.platform = system


def _locks_of_windows() -> ModuleType:
    """`msvcrt.locking`, with the locks that are here."""
    made = ModuleType("msvcrt")

    def locking(descriptor: int, how: int, size: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (fcntl.LOCK_NB if how == 2 else 0))
        except BlockingIOError:
            raise PermissionError(errno.EACCES, "Permission denied") from None

    vars(made).update(locking=locking, LK_LOCK=1, LK_NBLCK=2)
    return made


def _take(found: dict[ModuleType, str]) -> None:
    for module, names in found.items():
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)


def _not_there(name: str) -> NoReturn:
    raise AttributeError(f"symbol {name} not found")


if __name__ == "__main__":
    _, wanted, code, *sys.argv[1:] = sys.argv
    go_to(wanted)
    exec(compile(code, "<elsewhere>", "exec"), {"__name__": "__elsewhere__"})
