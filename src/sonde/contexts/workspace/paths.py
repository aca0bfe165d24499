"""Keeps every path inside the root, also while someone else changes the folder.

`clean` judges the words of a path; `Root` holds its folder open from the start and walks from there one directory at a time, each opened
without following links, so that a directory swapped for a link between check and use, the root included, is an error and not a way
out. Reading through a link is allowed when its end is inside the root; writing through one never is. Needs a POSIX system.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import unicodedata
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from sonde.contexts.workspace.base import PathRefused
from sonde.contexts.workspace.text import MAX_BYTES
from sonde.core.canonical import clip
from sonde.disk import TOO_LONG, is_too_long, open_exactly

RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
FOLDER = getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
EXAMPLE = "use a path inside the workspace, such as 'src/app.py'"


def clean(path: str) -> str:
    """The path in its one spelling, relative to the root; PathRefused where its words alone show that it is not safe."""
    if not path.strip():
        raise PathRefused(f"the path is empty; {EXAMPLE}")
    if is_too_long(path):
        raise PathRefused(f"{clip(path, 80)!r} is not used: {TOO_LONG}; {EXAMPLE}")
    if any(unicodedata.category(c) in ("Cc", "Cf", "Cs") for c in path):
        raise PathRefused(f"{path!r} has invisible characters; {EXAMPLE}")
    if path.startswith(("/", "~")) or re.match(r"[A-Za-z]:", path):
        raise PathRefused(f"{path!r} is absolute; {EXAMPLE}")
    if "\\" in path:
        raise PathRefused(f"{path!r} has a backslash; {EXAMPLE}")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise PathRefused(f"{path!r} leads upwards; {EXAMPLE}")
    if any(len(part.encode()) > 255 for part in parts):
        raise PathRefused(f"{clip(path, 80)!r} has a name that is longer than a name can be; {EXAMPLE}")
    if not parts or path.endswith("/"):
        raise PathRefused(f"{path!r} names a folder, not a file; {EXAMPLE}")
    return "/".join(parts)


def clean_folder(path: str) -> str:
    """Like `clean` for a folder; the root is the empty text."""
    return "" if path.strip() in ("", ".", "./") else clean(path.rstrip("/"))


def portable(path: str) -> None:
    """Refuse names for new files that are devices or cannot exist on other systems."""
    for part in path.split("/"):
        if RESERVED.fullmatch(part) or part.endswith((".", " ")) or any(c in part for c in '<>:"|?*'):
            raise PathRefused(f"{path!r} is not a file name that every system can hold; choose another")


class Root:
    """A folder whose files are reached without leaving it."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = Path(folder).resolve()
        if not self.path.is_dir():
            raise PathRefused(f"{folder} is not a folder")
        if sys.platform != "win32":  # no folder can be held open there
            self._held = os.open(self.path, FOLDER)
            weakref.finalize(self, os.close, self._held)

    def check_place(self) -> None:
        """Refuse to go on if another folder, or a link, has taken the root's place since the start."""
        with suppress(OSError):
            if os.path.samestat(os.fstat(self._held), os.lstat(self.path)):
                return
        raise PathRefused(
            f"{self.path} is not the folder that it was when this began: it was moved or replaced. Nothing is read or written in its "
            "place; look at what is there, and start again"
        )

    def real(self, path: str) -> str:
        """Where a path really leads, relative to the root; PathRefused when that is outside."""
        if is_too_long(path):
            raise PathRefused(f"{clip(path, 80)!r} is not read: {TOO_LONG}; {EXAMPLE}")
        if "\0" in path:
            raise PathRefused(f"{path!r} holds a zero byte, and no name does; {EXAMPLE}")
        try:
            real = (self.path / path).resolve() if path else self.path
        except (OSError, RuntimeError) as error:
            raise PathRefused(f"{path} is a link that leads nowhere; {EXAMPLE}") from error
        if not real.is_relative_to(self.path):
            raise PathRefused(f"{path} is a link that leads out of the workspace; {EXAMPLE}")
        return "" if real == self.path else real.relative_to(self.path).as_posix()

    def read(self, path: str, check: Callable[[str], None] | None = None) -> tuple[bytes, int] | None:
        """Bytes and mode of a regular file, None where there is none. Links inside the root are followed, and `check` may refuse
        where they lead.
        """
        try:
            real = self.real(path)
            if check is not None and real:
                check(real)
            self.check_place()
            with os.fdopen(open_exactly(real or ".", folder=self._held), "rb") as file:
                status = os.fstat(file.fileno())
                if status.st_size > MAX_BYTES:
                    raise PathRefused(
                        f"{real} has {status.st_size:,} bytes; the most that is read here is {MAX_BYTES:,}"
                    )
                data = file.read(MAX_BYTES + 1)
        except FileNotFoundError:
            return None
        except (NotADirectoryError, IsADirectoryError) as error:
            raise PathRefused(f"{path} is not a file; list_files() shows what there is") from error
        except OSError as error:
            raise PathRefused(f"{path} cannot be read: {error.strerror}") from error
        if len(data) > MAX_BYTES:
            raise PathRefused(f"{real} grows while it is read; the most that is read here is {MAX_BYTES:,} bytes")
        return data, stat.S_IMODE(status.st_mode)

    @contextmanager
    def parent(self, path: str, *, create: list[str] | None = None) -> Generator[tuple[int, str]]:
        """The open directory of a path and its last name; missing directories are made, and named in `create`, if given."""
        *folders, name = path.split("/")
        self.check_place()
        here = os.open(".", FOLDER, dir_fd=self._held)
        try:
            for depth, folder in enumerate(folders, 1):
                if create is not None:
                    with suppress(FileExistsError):
                        os.mkdir(folder, dir_fd=here)
                        create.append("/".join(folders[:depth]))
                inner = os.open(folder, FOLDER, dir_fd=here)
                os.close(here)
                here = inner
            yield here, name
        finally:
            os.close(here)

    @contextmanager
    def folder(self, path: str) -> Generator[int]:
        """A folder without links on the way, open; the root is the empty text."""
        with self.parent(f"{path}/." if path else ".") as (here, _):
            yield here

    def check_writable(self, path: str) -> None:
        """Refuse links, devices, folders and names that differ from an existing one in case only."""
        parts = path.split("/")
        try:
            for depth, part in enumerate(parts):
                so_far = "/".join(parts[: depth + 1])
                with self.folder("/".join(parts[:depth])) as here:
                    names = os.listdir(here)  # noqa: PTH208  # pathlib knows no descriptors
                    twin = next((other for other in names if other != part and folded(other) == folded(part)), None)
                    if twin and part not in names:
                        raise PathRefused(
                            f"{path}: there is {twin!r} already, which is the same name as {part!r} on many machines; use {twin!r}"
                        )
                    if part not in names:
                        return
                    mode = os.stat(part, dir_fd=here, follow_symlinks=False).st_mode
                    if stat.S_ISLNK(mode):
                        shown = os.readlink(part, dir_fd=here)
                        raise PathRefused(f"{so_far} is a link to {shown!r}; links are not written through")
                if so_far == path and not stat.S_ISREG(mode):
                    raise PathRefused(f"{path} is a folder, device or pipe, not a file")
                if so_far != path and not stat.S_ISDIR(mode):
                    raise PathRefused(f"{path}: {so_far} is a file, not a folder")
        except OSError as error:
            raise PathRefused(f"{path} cannot be written: {error.strerror}") from error


def folded(name: str) -> str:
    """Equal for two names that are one on a file system that ignores case and the spelling of accents."""
    return unicodedata.normalize("NFC", name).casefold()
