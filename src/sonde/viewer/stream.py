"""One run as the page reads it: a slim event for every line of the journal, the whole one on demand, and what is new since.

A slim event has its long texts cut and its data as a preview, so that ten thousand take a few megabytes. Reading continues where it
stopped; if the file became shorter or was replaced, it starts again. Lines are checked as they are read.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec

from sonde.core.canonical import clip, decoded_bytes
from sonde.core.trajectory import preview
from sonde.disk import open_plain, read_at
from sonde.runs.journal import MAX_LINE, bounded, checked, is_being_written, refuse_large, refuse_newer, sum_of
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
    held: int = 0
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
        running = is_being_written(self.path)  # asked before reading, so that the last events are read too
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
            known = [number for number in dict.fromkeys(numbers) if 0 <= number < len(self._places)]
            return [
                {**msgspec.json.decode(line, type=dict[str, Any]), "n": number} for number, line in self._lines(known)
            ]

    def light(self) -> list[dict[str, Any]]:
        """The parts of events that evidence needs: where the run looked, what it cited, and which call showed it."""
        with self._lock:
            self._refresh()
            wanted = [each["n"] for each in self._slim if each["type"] in WHOLE or each.get("excerpts")]
            return [
                {**msgspec.structs.asdict(_light.decode(line)), "n": number} for number, line in self._lines(wanted)
            ]

    def _lines(self, numbers: Iterable[int]) -> Iterator[tuple[int, bytes]]:
        with open_plain(self.path) as file:
            for number in numbers:
                start, size = self._places[number]
                yield number, read_at(file.fileno(), size, start)

    def _refresh(self) -> None:
        """Read on from where reading stopped."""
        try:
            with open_plain(self.path) as file:
                stat = os.fstat(file.fileno())
                if stat.st_ino != self._read.inode or stat.st_size < self._read.offset:
                    self._clear()
                    self._read.inode = stat.st_ino
                if self._read.tampered_line is not None or stat.st_size == self._read.offset:
                    return
                file.seek(self._read.offset)
                for ended in iter(lambda: file.readline(MAX_LINE), b""):
                    self._read.torn = not ended.endswith(b"\n")
                    if self._read.torn or not self._take(ended.removesuffix(b"\n")):
                        return
        except OSError as error:
            raise NoSuchRun(f"{self.path} cannot be read: {error.strerror}") from None

    def _take(self, line: bytes) -> bool:
        """Keep the next line; False, with its number, if it was changed after it was written or makes no sense."""
        event: dict[str, Any] | None = None
        with suppress(msgspec.DecodeError, RecursionError):
            if checked(self._read.sum, line) is not None:
                self._read.held += decoded_bytes(line)
                refuse_large(self._read.held, len(self._slim) + 1, self.path)
                event = msgspec.json.decode(bounded(line), type=dict[str, Any])
        if event is None:
            self._read.tampered_line = len(self._slim) + 1
            return False
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
