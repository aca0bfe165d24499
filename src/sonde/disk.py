"""What may be read from a folder that somebody else may have filled, decided in one place.

A path that the user typed may be a link. What lies below it may be one too, as long as it ends below it: `below` says where a path
really leads, or why it is not read (it leads out of the root, its name says that it holds secrets). `open_exactly` then opens that
place and nothing else: the kernel follows no link on the way (openat2), so whoever swaps a folder for a link in between gets an error and
no file. Pipes, sockets and devices are refused at once, without waiting for them. What is needed whole is read by `read_whole` or
`read_plain`, which look at the size first. What is written in such a folder must not go through a link: `linked` finds one on the way to
a place, `open_to_write` opens no link, pipe or device.

Where another system lacks one of these means (macOS openat2, Windows also links that can be refused and folders that can be
held open), the next best is used, and somebody who swaps files at the right moment gets further. Locks of files are here too, and the
one way in which a database in a file is opened (`open_database`).

Names only; content is never judged. Source code and prose about secrets (`secrets.py`, `token.md`) are ordinary files.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import stat
import sys
import threading
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from sonde.errors import ConfigError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

if TYPE_CHECKING:
    import sqlite3

AnyPath = str | os.PathLike[str]

_SECRET_FOLDERS = frozenset({".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".secrets"})
_ALWAYS = re.compile(
    r"""(?xs)
      \.env(?:rc)? | \.env\.(?!example$|sample$|template$|dist$).* | .*\.env          # environments with values in them
    | .*\.(?:pem|key|p12|pfx|jks|keystore|kdbx|ppk|gpg|asc)                            # keys and key stores
    | id_(?:rsa|dsa|ecdsa|ed25519)(?!.*\.pub$).* | ssh_host_.*_key                      # private ssh keys
    | g?shadow-? | [._]netrc | \.pgpass | pgpass\.conf | \.?htpasswd | \.my(?:login)?\.cnf | \.npmrc | \.pypirc
    | \.git-credentials | \.dockercfg | \.dockerconfigjson | \.?vault[_-]pass(?:\.txt)?
    | .*\.tfstate | .*\.tfvars | .*\.tfvars\.json | service[_-]account.*\.json         # what clouds are opened with
    | \.s3cfg | \.boto | \.databrickscfg | rclone\.conf
    """
)
_UNLESS_PROSE = re.compile(r"(?s)(?:.*[._-])?(?:credentials?|secrets?|tokens?|passwords?|kubeconfig)(?:[._-].*)?")
_PROSE = re.compile(
    r"(?s).*\.(?:py|pyi|js|jsx|mjs|ts|tsx|go|rs|java|kt|c|cc|cpp|h|hpp|rb|php|cs|swift|scala|sh|md|rst|html?|css|sql|proto|pub|log|csv)"
)
COPIES = (
    *(".gz", ".bz2", ".xz", ".zst", ".lz4", ".br", ".z", ".zip", ".7z", ".tar", ".tgz"),
    *("~", ".bak", ".backup", ".old", ".orig", ".save", ".copy", ".tmp", ".swp", ".swo", ".rej"),
)

LONGEST_PATH, DEEPEST = 4_096, 100
"""Characters and folders of a path that is looked at. A folder of packages within packages has about 30."""
PRIVATE = sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NOFOLLOW", "O_BINARY", "O_NOINHERIT"))
"""How our own files are opened: not through a link, and not for the programs that we start. The last two are Windows' names."""
_READ = os.O_RDONLY | PRIVATE | getattr(os, "O_NONBLOCK", 0)  # a pipe is not waited for
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_FAR = 1 << 40  # where Windows locks a byte: it keeps everybody from reading what is locked
_seeking = threading.Lock()
_JOURNAL_MARK = bytes.fromhex(
    "d9d505f920a163d7"
)  # at the end of an SQLite journal: the name of another one stands before it
_OPENAT2 = 437  # the same number on every architecture
_NO_MAGICLINKS, _NO_SYMLINKS = 0x02, 0x04
_AT_FDCWD = -100
TOO_LONG = f"its path has more than {LONGEST_PATH:,} characters or {DEEPEST} folders"
_NO_FILE = "it is a pipe, socket or device, not a file"


class NotPlain(OSError):
    """A folder, pipe, socket or device where a file should be, or a file that may not be read from its root; `strerror` says which."""


@lru_cache(maxsize=20_000)
def plain_name(name: str) -> str:
    """A name as others spell it: in small letters, without what nobody sees, without blanks and dots at its end, and without the
    suffixes of packed files and of copies: `Server.KEY.bak.gz ` is `server.key`.
    """
    if not name.isascii() or not name.isprintable():
        name = "".join(each for each in name if each != "\ufffd" and unicodedata.category(each)[0] != "C")
    name = name.casefold().lstrip(" #").rstrip(" .#")
    while name.endswith(COPIES):
        name = next(name.removesuffix(each) for each in COPIES if name.endswith(each)).rstrip(" .#")
    return name


def secret_reason(path: str) -> str | None:
    """Why a file or folder of this name is not read, or None when it may be."""
    *folders, name = path.replace("\\", "/").split("/")
    forms = {plain_name(name), plain_name(name.partition(":")[0])}  # `x.key:$DATA` is `x.key` to Windows
    if not _SECRET_FOLDERS.isdisjoint(forms):
        return "it is a folder of secrets"
    for plain in forms:
        if _ALWAYS.fullmatch(plain) or (_UNLESS_PROSE.fullmatch(plain) and not _PROSE.fullmatch(plain)):
            return "its name says that it holds secrets"
    return "it lies in a folder of secrets" if any(plain_name(each) in _SECRET_FOLDERS for each in folders) else None


def is_too_long(path: AnyPath) -> bool:
    """Whether a path has more characters or folders than any that is looked at: each part costs a look at the disk, and whoever wrote
    the path may have written a million.
    """
    text = os.fspath(path)
    return len(text) > LONGEST_PATH or text.replace(os.sep, "/").count("/") > DEEPEST


def followed(path: AnyPath) -> str:
    """Where a path leads, links followed; `NotPlain` if it is too long."""
    if is_too_long(path):
        raise NotPlain(errno.ENAMETOOLONG, TOO_LONG, f"{os.fspath(path)[:80]}…")
    return os.path.realpath(path)


def below(root: AnyPath, place: AnyPath) -> str:
    """Where a path below a root really leads; `NotPlain` says why it is not read from there.

    Only the part below the root is judged by its name: the user chose the root.
    """
    top, real = followed(root), followed(place)
    try:
        inside, written = (os.path.relpath(*each).replace(os.sep, "/") for each in ((real, top), (place, root)))
    except ValueError:  # Windows: another drive
        inside = written = ".."
    if inside == ".." or inside.startswith("../"):
        reason = "it is a link that leads out of the folder" if written.split("/")[0] != ".." else "it lies outside"
    elif real.startswith("/proc/") and not f"{top}/".startswith("/proc/"):
        reason = "it shows the inside of a running program"  # its environment, with keys, is one of these files
    else:
        reason = secret_reason(written) or secret_reason(inside)
    if reason:
        raise NotPlain(errno.EACCES, reason, os.fspath(place))
    return real


def root_of(place: AnyPath, roots: Sequence[AnyPath]) -> AnyPath:
    """The innermost of these folders around a path, else the first one."""
    around = [
        root for root in roots if any(Path(place).is_relative_to(each) for each in (root, os.path.realpath(root)))
    ]
    return max(around, key=lambda root: len(os.path.realpath(root)), default=roots[0])


def open_below(root: AnyPath, place: AnyPath) -> BinaryIO:
    """Open the file behind a path below a root, for reading."""
    return os.fdopen(open_exactly(below(root, place)), "rb")


def open_plain(path: AnyPath) -> BinaryIO:
    """Open one file for reading in a folder that is known: it may not be a link, a pipe or a device itself."""
    if sys.platform == "win32" and Path(path).is_symlink():
        raise OSError(errno.ELOOP, _said(errno.ELOOP), os.fspath(path))
    return os.fdopen(_checked(os.open(path, _READ), path), "rb")


def linked(root: AnyPath, place: AnyPath) -> Path | None:
    """The first link on the way to a place, itself included, that lies in a root: whoever filled the root made it. Links around the
    root are the user's own.
    """
    top, place = Path(os.path.realpath(root)), Path(place).absolute()
    return next(
        (
            each
            for each in (*reversed(place.parents), place)
            if each.is_symlink() and Path(os.path.realpath(each.parent)).is_relative_to(top)
        ),
        None,
    )


def open_to_write(path: AnyPath, *, append: bool = False, mode: int = 0o600) -> int:
    """A descriptor of one file in a folder that is known, made if need be and emptied unless we `append`: it may not be a link, a pipe
    or a device (`NotPlain`), and nobody waits for a pipe's reader.
    """
    flags = os.O_WRONLY | os.O_CREAT | PRIVATE | getattr(os, "O_NONBLOCK", 0) | (os.O_APPEND if append else 0)
    if sys.platform == "win32" and Path(path).is_symlink():
        raise NotPlain(errno.ELOOP, _said(errno.ELOOP), os.fspath(path))
    try:
        fd = os.open(path, flags, mode)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
        reason = _said(errno.ELOOP) if error.errno == errno.ELOOP else _NO_FILE  # ENXIO: nobody reads the pipe
        raise NotPlain(error.errno, reason, os.fspath(path)) from None
    _checked(fd, path)
    if not append:
        os.ftruncate(fd, 0)
    return fd


def read_whole(file: BinaryIO, most: int) -> bytes:
    """All of an open file; `NotPlain` if that is more than `most` bytes. A hole of terabytes takes no room until somebody reads it."""
    size = os.fstat(file.fileno()).st_size
    data = file.read(most + 1) if size <= most else b""
    if size > most or len(data) > most:
        raise NotPlain(errno.EFBIG, f"it has more than {most:,} bytes", str(file.name))
    return data


def read_plain(path: AnyPath, most: int) -> bytes:
    """All of one file in a folder that is known: not through a link, not from a pipe or a device, and never more than `most` bytes."""
    with open_plain(path) as file:
        return read_whole(file, most)


def read_named(path: AnyPath, most: int) -> bytes:
    """All of a file that the user named, which may be a link or a pipe, as in <(git ls-files): a pipe that nobody writes to is empty.
    `NotPlain` if it has more than `most` bytes.
    """
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0))
    os.set_blocking(fd, True)
    with os.fdopen(fd, "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise NotPlain(errno.EFBIG, f"it has more than {most:,} bytes", os.fspath(path))
    return data


def open_database(
    path: AnyPath,
    mode: Literal["ro", "rw", "rwc", "immutable"] = "ro",
    *,
    trusted: bool = False,
    longest: int = 256 << 20,
    timeout: float = 5.0,
) -> sqlite3.Connection:
    """An SQLite file, which a stranger may have made, to be used by any thread and without implicit transactions.

    SQLite would follow a link and wait for a pipe in the place of the file or one of those beside it, and a journal may name another
    file, which SQLite removes when it has rolled back: ConfigError for all of these. No value is longer than `longest` bytes. Only a
    `trusted` schema may use functions that could do harm; extensions are never loaded.
    """
    import sqlite3  # noqa: PLC0415 - only whoever opens one pays for it

    for name in (f"{os.fspath(path)}{end}" for end in ("", "-wal", "-shm", "-journal")):
        if os.path.lexists(name) and not stat.S_ISREG(os.lstat(name).st_mode):  # a path as it was given
            raise ConfigError(
                f"{name} is a link, pipe or device: a database is only opened if all of it is plain files"
            )
    beside = f"{os.fspath(path)}-journal"
    with suppress(FileNotFoundError), open_plain(beside) as journal:
        journal.seek(max(0, os.fstat(journal.fileno()).st_size - len(_JOURNAL_MARK)))
        if journal.read(len(_JOURNAL_MARK)) == _JOURNAL_MARK:
            raise ConfigError(f"{beside} names another file, which would be removed: this database is not opened")
    if mode == "rwc":
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | PRIVATE, 0o600))
    address = f"{Path(path).absolute().as_uri()}?{'immutable=1' if mode == 'immutable' else f'mode={mode}'}"
    connection = sqlite3.connect(address, uri=True, timeout=timeout, isolation_level=None, check_same_thread=False)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, longest)
    connection.execute(f"PRAGMA trusted_schema = {'ON' if trusted else 'OFF'}")
    connection.execute("PRAGMA cell_size_check = ON")
    return connection


def read_at(fd: int, size: int, offset: int) -> bytes:
    """Up to `size` bytes from `offset`, wherever the file stands."""
    if hasattr(os, "pread"):
        return os.pread(fd, size, offset)
    with _seeking:  # Windows
        os.lseek(fd, offset, os.SEEK_SET)
        return os.read(fd, size)


def lock(fd: int, *, shared: bool = False, wait: bool = False) -> None:
    """Hold an open file until it is closed; BlockingIOError if another process holds it and we do not `wait`.

    Windows knows no shared lock of this kind: there every holder is alone.
    """
    if sys.platform != "win32":
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        return
    os.lseek(fd, _FAR, os.SEEK_SET)
    while True:
        try:
            msvcrt.locking(fd, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)  # LK_LOCK gives up after ten seconds
        except OSError as error:
            if wait and error.errno == errno.EDEADLK:
                continue
            raise BlockingIOError(errno.EAGAIN, "another process holds it") from None
        return


sync = getattr(os, "fdatasync", os.fsync)
"""Wait until what was written to a descriptor is on the disk; macOS and Windows have no fdatasync."""


def is_mine(state: os.stat_result) -> bool:
    """Whether this user owns the file. Windows does not say; there a home folder is private by its own rules."""
    return not hasattr(os, "geteuid") or state.st_uid == os.geteuid()


def open_exactly(path: AnyPath, *, folder: int | None = None, stepwise: bool = False) -> int:
    """A descriptor of the regular file at a path from `below` or `realpath`: none of its parts may be a link now.

    A relative path starts from the open `folder`, if given. `stepwise` opens one folder after the other, which is what kernels before 5.6
    get.
    """
    name = os.fsencode(path)
    if b"\0" in name:
        raise NotPlain(errno.EINVAL, "a name holds a zero byte", repr(path))
    fd = None if stepwise else _openat2(name, _AT_FDCWD if folder is None else folder)
    return _checked(_stepwise(name, folder) if fd is None else fd, path)


def _checked(fd: int, path: AnyPath) -> int:
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return fd
    os.close(fd)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder, not a file", os.fspath(path))
    raise NotPlain(errno.EINVAL, _NO_FILE, os.fspath(path))


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


@cache
def _kernel() -> Any:
    return ctypes.CDLL(None, use_errno=True).syscall


def _openat2(name: bytes, folder: int) -> int | None:
    """A descriptor, or None where the kernel (or a filter around us) has no openat2."""
    if sys.platform != "linux":
        return None
    how = _How(_READ, 0, _NO_MAGICLINKS | _NO_SYMLINKS)
    fd: int = _kernel()(_OPENAT2, folder, name, ctypes.byref(how), ctypes.sizeof(how))
    if fd >= 0:
        return fd
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EPERM):
        return None
    raise OSError(code, _said(code), os.fsdecode(name))


def _stepwise(name: bytes, folder: int | None) -> int:
    if sys.platform == "win32":  # no folder can be held open there
        if os.path.realpath(name) != os.path.normpath(name):
            raise OSError(errno.ELOOP, _said(errno.ELOOP), os.fsdecode(name))
        return os.open(name, _READ)
    *folders, last = [part for part in name.split(b"/") if part not in (b"", b".")] or [b"."]
    here = os.open(b"/" if name.startswith(b"/") else b".", _FOLDER, dir_fd=folder)
    try:
        for each in folders:
            inner = os.open(each, _FOLDER | os.O_NOFOLLOW, dir_fd=here)
            os.close(here)
            here = inner
        return os.open(last, _READ, dir_fd=here)
    except OSError as error:
        raise OSError(error.errno, _said(error.errno or 0), os.fsdecode(name)) from None
    finally:
        os.close(here)


def _said(code: int) -> str:
    return "a link is in its place" if code == errno.ELOOP else os.strerror(code)
