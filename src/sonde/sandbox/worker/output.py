"""stdout and stderr of a turn: head, tail and the true length, in bounded memory whatever the code prints.

A turn that is killed cannot report, so what it prints also goes to a pipe, in records that are written whole or not at all:

    kind (1) · characters so far (8) · length (2) · text as UTF-8
"""

from __future__ import annotations

import io
import os
import struct
from time import monotonic  # the real one, whatever clock the code is given

RECORDER = 1
"""Descriptor 1 is the pipe; the supervisor never lets the worker wait for it."""
RECORD = struct.Struct("<BQH")
HEAD, TAIL = 0, 1
"""Kinds of record: the next piece of the beginning, or the end so far. The number of the stream is added, doubled."""
RECORD_BYTES = 4000
"""Most text in a record: with its header less than PIPE_BUF, so that a write is whole or not at all."""
EVERY_S = 0.005
BURST_S = 8 * EVERY_S
LONG_CHARS = 512
"""The lines of the beginning are recorded at once; pieces of a line, and the end of a long output, as a rule too, but not each
line of a flood."""


class Capture(io.TextIOBase):
    """A text stream that keeps the first and the last `keep` characters and counts all of them, and the line ends."""

    def __init__(self, keep: int, number: int = 0) -> None:
        super().__init__()
        self._keep = keep
        self._kind = 2 * number
        self.clear()

    def clear(self) -> None:
        self.total = self.lines = 0
        self._head: list[str] = []
        self._tail: list[str] = []
        self._tail_size = 0
        self._unsent = ""
        self._recorded_tail = 0
        self._due = 0.0

    def write(self, text: str) -> int:
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - generated code passes anything
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        room = self._keep - self.total
        self.total += len(text)
        self.lines += text.count("\n")
        if room > 0:
            self._head.append(text[:room])
            self._unsent += text[:room]
        if len(text) > room:
            last = text[max(room, 0) :][-self._keep :]
            self._tail.append(last)
            self._tail_size += len(last)
            if self._tail_size > 4 * self._keep:
                self._tail = [self.tail()]
                self._tail_size = len(self._tail[0])
        if room > 0 and "\n" in text:
            self.flush()
        elif text and (room > 0 or "\n" in text or len(text) > LONG_CHARS):  # print(…, end="") writes "" too
            now = monotonic()
            if now >= self._due:
                self._due = max(self._due, now - BURST_S) + EVERY_S
                self.flush()
        return len(text)

    def _record(self, kind: int, data: bytes) -> bool:
        try:
            os.write(RECORDER, RECORD.pack(self._kind + kind, self.total, len(data)) + data)
        except OSError:
            return False  # the pipe is full. Only the record of a killed turn: the capture itself is whole
        return True

    def head(self) -> str:
        return "".join(self._head)

    def tail(self) -> str:
        return "".join(self._tail)[-self._keep :]

    def flush(self) -> None:
        unsent, self._unsent = self._unsent, ""
        step = RECORD_BYTES // 4  # no character has more bytes
        for start in range(0, len(unsent), step):
            self._record(HEAD, unsent[start : start + step].encode("utf-8", "replace"))
        if self._tail and self._recorded_tail < self.total:
            tail = self.tail()[-RECORD_BYTES:].encode("utf-8", "replace")[-RECORD_BYTES:]
            if self._record(TAIL, tail):
                self._recorded_tail = self.total

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride] - a plain attribute in typeshed
        return "utf-8"
