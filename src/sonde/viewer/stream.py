"""One run as the page reads it: a slim event for every line of the journal, the whole one on demand, and what is new since.

A slim event has its long texts cut and its data as a preview, so that ten thousand are a few megabytes. The file is read on from where
reading stopped; when it became shorter or was replaced, it is read again from the start. Lines are checked as they are read.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec

from sonde.core.canonical import clip
from sonde.core.trajectory import preview
from sonde.runs.journal import checked, is_being_written, open_plain, refuse_newer, sum_of
from sonde.runs.rundir import JOURNAL, NoSuchRun

TEXT = 300
LONG = {"objective": 20_000, "context": 2_000, "error": 2_000, "reason": 1_000, "summary": 1_000, "reasoning": 600}
SHOWN = frozenset({"args", "result"})
COUNTED = frozenset({"messages", "excerpts", "variables", "evidence_refs"})
WHOLE = frozenset({"run_started", "run_ended", "cited", "wrote_back", "status_changed"})


@dataclass(slots=True)
class _Read:
    """How far the file has been read."""

    inode: int = 0
    offset: int = 0
    sum: str = ""
    torn: bool = False
    tampered_line: int | None = None


class _Light(msgspec.Struct):
    """The decoder skips all other fields without building them: a result may be a megabyte."""

    type: str
    input_ref: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    citation: dict[str, Any] = {}
    output: Any = None
    excerpts: list[dict[str, Any]] = []


_light = msgspec.json.Decoder(_Light)


class RunStream:
    """The journal of one run, followed as it grows. Safe to use from threads."""

    def __init__(self, path: Path) -> None:
        self.path = path / JOURNAL
        self._lock = threading.Lock()
        self._clear()

    def _clear(self) -> None:
        self._read = _Read()
        self._slim: list[dict[str, Any]] = []
        self._places: list[tuple[int, int]] = []

    def news(self, after: int = -1) -> dict[str, Any]:
        """The slim events after a number, and how the run stands."""
        running = is_being_written(self.path)  # asked before reading: the last events are then in what is read
        with self._lock:
            self._refresh()
            return {
                "events": self._slim[after + 1 :],
                "total": len(self._slim),
                "running": running,
                "torn": self._read.torn and not running,
                "tampered_line": self._read.tampered_line,
            }

    def full(self, numbers: Iterable[int]) -> list[dict[str, Any]]:
        """Whole events by number, as they are in the file; unknown numbers are left out."""
        with self._lock:
            self._refresh()
            known = [number for number in numbers if 0 <= number < len(self._places)]
            with open_plain(self.path) as file:
                return [{**self._at(file.fileno(), number), "n": number} for number in known]

    def light(self) -> list[dict[str, Any]]:
        """What evidence needs of every event: where the run looked, what it cited, and which call showed it."""
        with self._lock:
            self._refresh()
            wanted = [each["n"] for each in self._slim if each["type"] in WHOLE or each.get("excerpts")]
            with open_plain(self.path) as file:
                return [{**self._skim(file.fileno(), number), "n": number} for number in wanted]

    def slim(self) -> list[dict[str, Any]]:
        """All slim events."""
        return self.news()["events"]

    def everything(self) -> list[dict[str, Any]]:
        """All whole events."""
        return self.full(range(len(self.slim())))

    def _at(self, fd: int, number: int) -> dict[str, Any]:
        start, size = self._places[number]
        return msgspec.json.decode(os.pread(fd, size, start), type=dict[str, Any])

    def _skim(self, fd: int, number: int) -> dict[str, Any]:
        start, size = self._places[number]
        return msgspec.structs.asdict(_light.decode(os.pread(fd, size, start)))

    def _refresh(self) -> None:
        try:
            with open_plain(self.path) as file:
                self._continue(file.fileno())
        except OSError as error:
            raise NoSuchRun(f"{self.path} cannot be read: {error.strerror}") from None

    def _continue(self, fd: int) -> None:
        stat = os.fstat(fd)
        if stat.st_ino != self._read.inode or stat.st_size < self._read.offset:
            self._clear()
            self._read.inode = stat.st_ino
        if self._read.tampered_line is not None or stat.st_size == self._read.offset:
            return
        data = os.pread(fd, stat.st_size - self._read.offset, self._read.offset)
        *lines, rest = data.split(b"\n")
        self._read.torn = bool(rest)
        for line in lines:
            if not self._take(line):
                break

    def _take(self, line: bytes) -> bool:
        if checked(self._read.sum, line) is None:
            self._read.tampered_line = len(self._slim) + 1
            return False
        event = msgspec.json.decode(line, type=dict[str, Any])
        if event.get("type") == "run_started":
            refuse_newer(str(event.get("schema_version")), self.path)
        self._places.append((self._read.offset, len(line)))
        self._slim.append(slim(event, len(self._slim)))
        self._read.sum = sum_of(line)
        self._read.offset += len(line) + 1
        return True


def slim(event: dict[str, Any], number: int) -> dict[str, Any]:
    """An event with its long parts cut; `n` is its number in the journal."""
    cut = {**event, "n": number}
    cut.pop("sum", None)
    if event.get("type") in WHOLE:
        return cut
    for name, value in event.items():
        if isinstance(value, str):
            if len(value) > TEXT:
                cut[name] = clip(value, LONG.get(name, TEXT))
        elif name in SHOWN:
            cut[name] = clip(preview(value), TEXT)
        elif name in COUNTED and isinstance(value, list):
            cut[name] = len(cast("list[Any]", value))
    return cut
