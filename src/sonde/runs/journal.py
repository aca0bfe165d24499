"""The journal: one file of events per run, each line chained to the one before, on disk before anyone uses what it says.

A line is the encoded event with `"sum"` as its last field: the first 16 hex digits of sha256(previous sum + the event without it). A torn
last line (power loss, kill) is dropped when the file is read or continued; any other line that does not fit its sum is reported. A paid
reply is synced to the disk. The journal is exact: only known key values are removed, and the caller gets back what was written, so that
the live run and its replay see the same. It does not keep anything else secret, and it cannot detect a rewrite of the whole file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from sonde.core.canonical import MAX_JSON_ITEMS, decoded_bytes, has_too_many_items
from sonde.core.events import (
    SCHEMA_VERSION,
    AnyEvent,
    Event,
    ModelReplied,
    RunEnded,
    RunStarted,
    WroteBack,
    decode,
    encode,
)
from sonde.core.redaction import clean_value, encodable, rewrite_text, secret_forms
from sonde.disk import PRIVATE, lock, open_plain, read_at, sync
from sonde.errors import ConfigError, RecursionLimitReached, UnexpectedRuntimeError

Buffer = bytes | memoryview
AnyBytes = TypeVar("AnyBytes", bytes, bytearray)
Place = tuple[int, int]
"""Where a line is in the file: its first byte and its size."""

LOCK_ATTEMPTS = 20
MAX_LINE = 256 * 1024 * 1024  # no event comes near it; without it a file of zeros would be read into memory
MAX_RECORD = 64 * 1024 * 1024
MAX_ITEMS = MAX_JSON_ITEMS + 100_000
"""Values in a line or file. A block of code may return a value of two million parts, and the line that holds it says a little more."""
MAX_HELD = 2 << 30
"""Bytes of memory that all events of a journal may take. Whoever reads a run holds them all."""
SMALL = 64 * 1024
"""An event of so many bytes is written to a full journal too; then the run ends."""
_SUM_DIGITS = 16
_TAIL = len(b',"sum":"') + _SUM_DIGITS + len(b'"}')


class JournalUnreadable(ConfigError):
    """The file cannot be used as a journal; the message says why and what to do."""


class JournalBusy(ConfigError):
    """Another process writes this journal right now."""


class JournalFailed(UnexpectedRuntimeError):
    """An event could not be written, and without it the run cannot safely continue. What was written before is sound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalContents:
    """What a journal holds: the events of its sound lines, in order."""

    events: list[AnyEvent] = field(default_factory=list[AnyEvent])
    torn: bool = False
    tampered_line: int | None = None
    sum: str = ""
    sound_bytes: int = 0
    held_bytes: int = 0
    """About how much memory the events take."""


class Journal:
    """An append-only file of events, held by one process at a time. Opening an existing file continues it after its last sound line.

    It takes no large event beyond `most` bytes, nor one that would make the file too large to be read again, except those that say how
    the run began and ended: then RecursionLimitReached ends the run.
    """

    def __init__(self, path: str | Path, secrets: Sequence[str] = (), most: int | None = None) -> None:
        self.path = Path(path)
        self._most = most
        self._held = 0
        self._forms = secret_forms(secrets)
        self._failed = ""
        self._sum = ""
        self.next_seq = 0
        self.last: Place = (0, 0)
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | PRIVATE, 0o600)
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(os.close, self._fd)
            for attempt in range(LOCK_ATTEMPTS):
                try:
                    lock(self._fd)
                    break
                except BlockingIOError:
                    if attempt == LOCK_ATTEMPTS - 1:
                        text = f"{self.path} is being written by another process: this run is still going on"
                        raise JournalBusy(text) from None
                time.sleep(0.01)  # a reader that asks whether the run goes on holds the lock for an instant
            if os.fstat(self._fd).st_size:
                held = read_journal(self.path)
                if held.tampered_line is not None:
                    raise JournalUnreadable(
                        f"line {held.tampered_line} of {self.path} does not fit its checksum: it was changed after it was "
                        "written, and the run cannot be continued from it"
                    )
                os.ftruncate(self._fd, held.sound_bytes)
                self.last = (held.sound_bytes, 0)
                self.next_seq = max((event.seq for event in held.events), default=-1) + 1
                self._sum = held.sum
                self._held = held.held_bytes
            on_failure.pop_all()

    def append(self, event: Event) -> Event:
        """Write one event, and sync it if it was paid for; gives it back as written, without key values."""
        written = self.write(event)
        if isinstance(event, ModelReplied):
            self.sync()
        return written

    def write(self, event: Event) -> Event:
        """Write one event without waiting for the disk: all of its line or nothing."""
        event, encoded = encodable(event)
        if any(form in encoded for form in self._forms.encoded):
            event = rewrite_text(event, self._forms.remove)
            encoded = encode(event)
        if self._failed:
            raise JournalFailed(self._failed)  # a smaller event may still fit, but it must not follow a hole
        body = memoryview(encoded)[:-1]
        sum_now = chain(self._sum, body)
        parts = [body, ending(sum_now)]
        size = sum(map(len, parts))
        before = os.fstat(self._fd).st_size
        held = decoded_bytes(encoded)
        if size > SMALL and not isinstance(event, RunStarted | WroteBack | RunEnded):
            self.check_room(size, held)
        try:
            # In one call: joining a megabyte costs more than writing it. Windows has only the other way.
            written = os.writev(self._fd, parts) if hasattr(os, "writev") else 0
            rest = memoryview(b"".join(parts))[written:] if written < size else b""
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, before)  # half a line would make every later one look tampered with
            self._failed = f"{self.path} cannot be written: {error.strerror}; make room and resume"
            raise JournalFailed(self._failed) from None
        self.last = (before, size)
        self._sum = sum_now
        self._held += held
        return event

    def check_room(self, size: int = 0, held: int = 0) -> None:
        """RecursionLimitReached if the journal has no room for an event of this size, which takes `held` bytes of memory."""
        if self._most is not None and sum(self.last) + size > self._most:
            reached = f"its limit of {self._most >> 20} MB (--max-journal-mb)"
        elif self._held + held > MAX_HELD * 3 // 4:  # the rest is for the end of the run
            reached = "the size up to which it can be read again"
        else:
            return
        raise RecursionLimitReached(f"the journal of the run has reached {reached}", limit="max_journal_mb")

    def at(self, place: Place) -> AnyEvent | None:
        """The event that was written there, read from the file; None when the file now holds something else."""
        start, size = place
        try:
            return decode(read_at(self._fd, size, start))
        except (OSError, msgspec.ValidationError, msgspec.DecodeError):
            return None

    def cleaned(self, value: Any) -> Any:
        """Plain data as `write` will put it into the file."""
        return clean_value(value, self._forms)

    def sync(self) -> None:
        """Wait until all that was written is on the disk."""
        sync(self._fd)

    def close(self) -> None:
        """Sync and let go of the file; closing twice is fine."""
        if self._fd >= 0:
            self.sync()
            os.close(self._fd)
            self._fd = -1


def chain(previous: str, body: Buffer) -> str:
    """The sum of a line, given that of the line before."""
    digest = hashlib.sha256(previous.encode())
    digest.update(body)
    return digest.hexdigest()[:_SUM_DIGITS]


def ending(sum_now: str) -> bytes:
    """What closes a line: its sum."""
    return b',"sum":"' + sum_now.encode() + b'"}\n'


def is_being_written(path: str | Path) -> bool:
    """True while a process holds the journal: the run is going on. False once it ended or was killed."""
    try:
        with open_plain(path) as file:
            lock(file.fileno(), shared=True)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def read_journal(path: str | Path) -> JournalContents:
    """Everything up to the first line that does not hold. A torn last line is not an error; a newer schema is refused."""
    events: list[AnyEvent] = []
    sum_so_far, sound, held = "", 0, 0
    try:
        with open_plain(path) as file:
            size = os.fstat(file.fileno()).st_size
            for number, ended in enumerate(iter(lambda: file.readline(MAX_LINE), b""), start=1):
                line = ended.removesuffix(b"\n")
                body = checked(sum_so_far, line) if ended.endswith(b"\n") else None
                if body is None:
                    torn = not ended.endswith(b"\n") or (sound + len(ended) == size and not _is_json(line))
                    tampered = None if torn else number
                    return JournalContents(
                        events=events,
                        torn=torn,
                        tampered_line=tampered,
                        sum=sum_so_far,
                        sound_bytes=sound,
                        held_bytes=held,
                    )
                if has_too_many_items(body, MAX_ITEMS):
                    raise JournalUnreadable(
                        f"line {number} of {path} holds more than {MAX_ITEMS:,} values; no run is so large"
                    )
                held += decoded_bytes(body)
                refuse_large(held, number, path)
                try:
                    event = decode(body + b"}")
                except (msgspec.ValidationError, msgspec.DecodeError) as error:
                    raise JournalUnreadable(
                        f"line {number} of {path} is sound but this Sonde does not know it ({error}); "
                        "it was written by a newer one: update Sonde to read this run"
                    ) from None
                if isinstance(event, RunStarted):
                    refuse_newer(event.schema_version, path)
                events.append(event)
                sum_so_far, sound = sum_of(line), sound + len(ended)
    except OSError as error:
        raise JournalUnreadable(f"{path} cannot be read: {error.strerror}") from None
    return JournalContents(events=events, sum=sum_so_far, sound_bytes=sound, held_bytes=held)


def checked(previous: str, line: bytes) -> bytes | None:
    """The body of a line that fits its sum, None otherwise."""
    body, tail = line[:-_TAIL], line[-_TAIL:]
    fits = tail == b',"sum":"' + chain(previous, body).encode() + b'"}'
    return body if fits else None


def sum_of(line: bytes) -> str:
    """The sum that a sound line carries."""
    return line[-_SUM_DIGITS - 2 : -2].decode("ascii", "replace")


def bounded(document: AnyBytes) -> AnyBytes:
    """A JSON text of a run folder before it is decoded; DecodeError if it holds so many values that they would fill the memory."""
    if has_too_many_items(document, MAX_ITEMS):
        raise msgspec.DecodeError(f"it holds more than {MAX_ITEMS:,} values")
    return document


def _is_json(line: bytes) -> bool:
    try:
        msgspec.json.decode(bounded(line))
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def refuse_large(held: int, lines: int, path: str | Path) -> None:
    """Raise when the lines of a journal up to here take more memory than a run may."""
    if held > MAX_HELD:
        raise JournalUnreadable(
            f"{path} would take more than {MAX_HELD >> 20:,} MiB of memory up to line {lines:,}; no run is so large"
        )


def refuse_newer(version: str, path: str | Path) -> None:
    """Raise when a file's schema has another major version than ours."""
    theirs, ours = version.partition(".")[0], SCHEMA_VERSION.partition(".")[0]
    if theirs != ours:
        raise JournalUnreadable(
            f"{path} has schema {version} and this Sonde reads {ours}.x; use a Sonde that reads {theirs}.x, or run it again"
        )
