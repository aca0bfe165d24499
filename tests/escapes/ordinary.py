"""An ordinary user for the proof: a uid that nobody has, no groups, no capabilities.

Where the interpreter or this repository lies under a folder that such a user may not enter (/root, say), a private mount namespace puts
the same paths within reach; nothing outside this process sees that.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

REPOSITORY = Path(__file__).resolve().parents[2]
_NEW_MOUNTS, _PRIVATE, _BIND = 0x20000, 0x44000, 0x5000  # CLONE_NEWNS, MS_REC|MS_PRIVATE, MS_REC|MS_BIND


def free_uid() -> int:
    """A uid that is in no user database and owns no process."""
    used = {entry.pw_uid for entry in pwd.getpwall()}
    used |= {path.stat().st_uid for path in Path("/proc").iterdir() if path.name.isdigit() and path.exists()}
    return next(uid for uid in range(61_000, 65_000) if uid not in used)


def become_ordinary(uid: int, command: list[str]) -> NoReturn:
    """Replace this process by `command`, run by `uid`."""
    needed = [REPOSITORY, Path(sys.prefix), Path(sys.base_prefix)]
    _make_reachable([path for path in needed if not _reachable(path)])
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    os.execv(command[0], command)


def _reachable(path: Path) -> bool:
    return all(folder.stat().st_mode & 0o001 for folder in [path, *path.parents])


def _make_reachable(paths: list[Path]) -> None:
    if not paths:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.unshare(_NEW_MOUNTS))
    _check(libc.mount(None, b"/", None, _PRIVATE, None))
    handles = {path: os.open(path, os.O_PATH) for path in paths}
    for closed in {_closed_folder(path) for path in paths}:
        _check(libc.mount(b"tmpfs", bytes(closed), b"tmpfs", 0, b"mode=755"))
    for path, handle in handles.items():
        path.mkdir(parents=True, exist_ok=True)
        _check(libc.mount(f"/proc/self/fd/{handle}".encode(), bytes(path), None, _BIND, None))
        os.close(handle)


def _closed_folder(path: Path) -> Path:
    """The first folder on the way to `path` that others may not enter."""
    return next(folder for folder in [*reversed(path.parents), path] if not folder.stat().st_mode & 0o001)


def _check(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), "this machine does not let the suite make an ordinary user")


def can_be_ordinary() -> bool:
    """Can this machine show the proof for an ordinary user at all?"""
    if os.geteuid() != 0:
        return True
    probe = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); from ordinary import *; "
    probe += "become_ordinary(free_uid(), [sys.executable, '-c', 'import sonde.sandbox'])"
    return subprocess.run([sys.executable, "-c", probe], capture_output=True, check=False).returncode == 0
