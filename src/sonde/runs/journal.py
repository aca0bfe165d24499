"""The journal: one file of events a run, each line chained to the one before, on disk before anyone uses what it says.

A line is the encoded event with `"sum"` as its last field: the first 16 hex digits of sha256(previous sum + the event without it). A torn
last line (power loss, kill) is dropped when the file is read or continued; any other line that does not fit its sum is named. A paid reply
is synced to the disk. The journal is exact: only known values of keys are taken out, and what was written is handed back to be used, so
that the live run and its replay see the same. It does not promise secrecy of anything else, nor proof against a rewrite of the whole file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from sonde.core.events import SCHEMA_VERSION, AnyEvent, Event, ModelReplied, RunStarted, decode, encode
from sonde.core.redaction import clean_value, encodable, rewrite_text, secret_forms
from sonde.errors import ConfigError, UnexpectedRuntimeError

Buffer = bytes | memoryview
Place = tuple[int, int]
"""Where a line stands in the file: its first byte and its size."""

LOCK_ATTEMPTS = 20
MAX_LINE = 256 * 1024 * 1024  # no event comes near it; without it a file of zeros would be read into memory
MAX_RECORD = 64 * 1024 * 1024
PLAIN_FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe is not waited for
_SUM_DIGITS = 16
_TAIL = len(b',"sum":"') + _SUM_DIGITS + len(b'"}')


class JournalUnreadable(ConfigError):
    """The file cannot be used as a journal; the message says why and what to do."""


class JournalBusy(ConfigError):
    """Another process writes this journal right now."""


class JournalFailed(UnexpectedRuntimeError):
    """The disk did not take an event; without it the run cannot be trusted to go on. What was written before is sound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalContents:
    """What a journal holds: the events of its sound lines, in order."""

    events: list[AnyEvent] = field(default_factory=list[AnyEvent])
    torn: bool = False
    tampered_line: int | None = None
    sum: str = ""
    sound_bytes: int = 0


class Journal:
    """An append-only file of events, held by one process at a time. An existing file is continued after its last sound line."""

    def __init__(self, path: str | Path, secrets: Sequence[str] = ()) -> None:
        self.path = Path(path)
        self._forms = secret_forms(secrets)
        self._failed = ""
        self.last: Place = (0, 0)
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            _lock(self._fd, self.path)
            self._sum = self._continue()
        except BaseException:
            os.close(self._fd)
            raise

    def _continue(self) -> str:
        self.next_seq = 0
        if os.fstat(self._fd).st_size == 0:
            return ""
        held = read_journal(self.path)
        if held.tampered_line is not None:
            raise JournalUnreadable(
                f"line {held.tampered_line} of {self.path} does not fit its checksum: it was changed after it was "
                "written, and the run cannot be continued from it"
            )
        os.ftruncate(self._fd, held.sound_bytes)
        self.next_seq = max((event.seq for event in held.events), default=-1) + 1
        return held.sum

    def append(self, event: Event) -> Event:
        """Write one event, and sync it if it was paid for; gives it back as written, without key values."""
        written = self.write(event)
        if isinstance(event, ModelReplied):
            self.sync()
        return written

    def write(self, event: Event) -> Event:
        """Write one event without waiting for the disk."""
        event, line = self._clean(event)
        body = memoryview(line)[:-1]
        now = chain(self._sum, body)
        self._put([body, ending(now)])
        self._sum = now
        return event

    def _put(self, parts: Sequence[Buffer]) -> None:
        """All of it or nothing; in one call, because joining a megabyte costs more than writing it."""
        if self._failed:
            raise JournalFailed(self._failed)  # a smaller event may fit still, but it must not follow a hole
        before = os.fstat(self._fd).st_size
        try:
            written = os.writev(self._fd, parts)
            rest = memoryview(b"".join(parts))[written:] if written < sum(map(len, parts)) else b""
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, before)  # half a line would make every later one look tampered with
            self._failed = f"{self.path} cannot be written: {error.strerror}; make room and resume"
            raise JournalFailed(self._failed) from None
        self.last = (before, sum(map(len, parts)))

    def at(self, place: Place) -> AnyEvent | None:
        """The event that was written there, read from the file; None when the file holds something else by now."""
        start, size = place
        try:
            return decode(os.pread(self._fd, size, start))
        except (OSError, msgspec.ValidationError, msgspec.DecodeError):
            return None

    def cleaned(self, value: Any) -> Any:
        """Plain data as `write` will put it into the file."""
        return clean_value(value, self._forms)

    def sync(self) -> None:
        """Wait until all that was written is on the disk."""
        os.fdatasync(self._fd)

    def close(self) -> None:
        """Sync and let go of the file; closing twice is fine."""
        if self._fd >= 0:
            self.sync()
            os.close(self._fd)
            self._fd = -1

    def _clean(self, event: Event) -> tuple[Event, bytes]:
        """The event as it may be written, and its line."""
        event, line = encodable(event)
        if not any(form in line for form in self._forms.encoded):
            return event, line
        event = rewrite_text(event, self._forms.remove)
        return event, encode(event)


def chain(previous: str, body: Buffer) -> str:
    """The sum of a line, given that of the line before."""
    digest = hashlib.sha256(previous.encode())
    digest.update(body)
    return digest.hexdigest()[:_SUM_DIGITS]


def chained(previous: str, encoded: bytes) -> tuple[str, bytes]:
    """The sum of an encoded event and its line with that sum."""
    now = chain(previous, encoded[:-1])
    return now, encoded[:-1] + ending(now)


def ending(sum_now: str) -> bytes:
    """What closes a line: its sum."""
    return b',"sum":"' + sum_now.encode() + b'"}\n'


def _lock(fd: int, path: Path) -> None:
    for _ in range(LOCK_ATTEMPTS):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(0.01)  # a reader that asks whether the run goes on holds the lock for an instant
    raise JournalBusy(f"{path} is being written by another process: this run is still going on")


def is_being_written(path: str | Path) -> bool:
    """True while a process holds the journal: the run goes on. False once it ended or was killed."""
    try:
        fd = os.open(path, PLAIN_FILE)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(fd)


def open_plain(path: str | Path) -> BinaryIO:
    """A file of a run's folder, to be read. The folder may be a stranger's: a link, a pipe or a device there is an OSError at once."""
    fd = os.open(path, PLAIN_FILE)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a plain file", str(path))
    return os.fdopen(fd, "rb")


def read_journal(path: str | Path) -> JournalContents:
    """Everything up to the first line that does not hold; a torn last line is no fault, a newer schema is refused."""
    try:
        with open_plain(path) as file:
            lines = iter(lambda: file.readline(MAX_LINE), b"")
            return _read(lines, path, os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise JournalUnreadable(f"{path} cannot be read: {error.strerror}") from None


def _read(lines: Iterable[bytes], path: str | Path, size: int) -> JournalContents:
    events: list[AnyEvent] = []
    sum_so_far, sound = "", 0
    for number, ended in enumerate(lines, start=1):
        line = ended.removesuffix(b"\n")
        body = checked(sum_so_far, line) if ended.endswith(b"\n") else None
        if body is None:
            torn = not ended.endswith(b"\n") or (sound + len(ended) == size and not _is_json(line))
            return JournalContents(
                events=events, torn=torn, tampered_line=None if torn else number, sum=sum_so_far, sound_bytes=sound
            )
        events.append(_decoded(body, number, path))
        sum_so_far, sound = sum_of(line), sound + len(ended)
    return JournalContents(events=events, sum=sum_so_far, sound_bytes=sound)


def checked(previous: str, line: bytes) -> bytes | None:
    """The body of a line that fits its sum, None otherwise."""
    body, tail = line[:-_TAIL], line[-_TAIL:]
    fits = tail == b',"sum":"' + chain(previous, body).encode() + b'"}'
    return body if fits else None


def sum_of(line: bytes) -> str:
    """The sum that a sound line carries."""
    return line[-_SUM_DIGITS - 2 : -2].decode("ascii", "replace")


def _is_json(line: bytes) -> bool:
    try:
        msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _decoded(body: bytes, number: int, path: str | Path) -> AnyEvent:
    try:
        event = decode(body + b"}")
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise JournalUnreadable(
            f"line {number} of {path} is sound but this Sonde does not know it ({error}); "
            "it was written by a newer one: update Sonde to read this run"
        ) from None
    if isinstance(event, RunStarted):
        refuse_newer(event.schema_version, path)
    return event


def refuse_newer(version: str, path: str | Path) -> None:
    """Raise when a file's schema has another major version than ours."""
    theirs, ours = version.partition(".")[0], SCHEMA_VERSION.partition(".")[0]
    if theirs != ours:
        raise JournalUnreadable(
            f"{path} has schema {version} and this Sonde reads {ours}.x; use a Sonde that reads {theirs}.x, or run it again"
        )
