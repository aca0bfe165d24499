"""The output of a turn: cut to what fits, with head, tail and the true length; and what is known of it when the turn was killed."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

from sonde.sandbox.worker.output import HEAD, RECORD, RECORD_BYTES

MARKER = "\n[... output cut: {total} characters in all; {missing} are left out: print only those to see them ...]\n"
UNCOUNTED = "\n[... output cut: {total} characters in all, {head} first and {tail} last are shown ...]\n"
MOST_CHARS = 1 << 53
READ_BYTES = 65536
MOST_READS = 4
"""As much as the pipe of a turn holds, and what came while that was read; a flood must not keep us."""


@dataclass(frozen=True, slots=True)
class Captured:
    """One stream as far as it is known: the whole text if head and tail are as long as `total`, which is `least` so much."""

    head: str
    tail: str
    total: int
    least: bool = False
    lines: int = -1
    """Line ends in all of it; -1 if they were not counted."""


NOTHING = Captured("", "", 0)


class OutputReader:
    """Reads what the worker records while it prints: all that is known of the output when a turn has to be killed.

    The records are the worker's word: they are bounded, and whatever is not a record counts as text.
    """

    def __init__(self, descriptor: int, keep: int) -> None:
        self._descriptor = descriptor
        self._keep = keep
        self._data = b""
        self._known = [NOTHING, NOTHING]

    def drain(self) -> None:
        """Take what is there, so that there is room for what comes."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(MOST_READS):
                data = os.read(self._descriptor, READ_BYTES)
                if not data:
                    return
                self._take(data)

    def streams(self) -> tuple[Captured, Captured]:
        """What is known of stdout and of stderr."""
        self.drain()
        if self._data:
            self._add_raw(self._data)
        return self._known[0], self._known[1]

    def _take(self, data: bytes) -> None:
        data, at = self._data + data, 0
        while len(data) >= at + RECORD.size:
            kind, total, length = RECORD.unpack_from(data, at)
            if kind >= 2 * len(self._known) or total > MOST_CHARS or length > RECORD_BYTES:
                self._add_raw(data[at:])
                return
            start = at + RECORD.size
            if len(data) < start + length:
                break
            at = start + length
            self._add(kind // 2, kind % 2, data[start:at].decode("utf-8", "ignore"), total)
        self._data = data[at:]

    def _add(self, number: int, kind: int, text: str, total: int) -> None:
        known = self._known[number]
        if kind == HEAD:
            head = (known.head + text)[: self._keep]
            self._known[number] = Captured(head, "", max(known.total, total, len(head)), least=True)
        else:
            self._known[number] = Captured(known.head, text, max(known.total, total), least=True)

    def _add_raw(self, data: bytes) -> None:
        """Written to the descriptor by the code itself."""
        self._data = b""
        text = data.decode("utf-8", "replace")
        self._add(0, HEAD, text, self._known[0].total + len(text))


def cut_output(out: Captured, err: Captured, limit: int) -> tuple[str, str]:
    """Both streams, together at most `limit` characters, markers included. stderr yields first."""
    err_share = min(err.total, max(limit // 4, limit - out.total))
    out_share = min(out.total, limit - err_share)
    return cut(out, out_share), cut(err, min(err_share, limit - out_share))


def cut(stream: Captured, limit: int) -> str:
    """The stream in at most `limit` characters."""
    whole = len(stream.head) + len(stream.tail) >= stream.total
    if stream.total <= limit and whole:
        return (stream.head + stream.tail)[: stream.total]
    total = f"at least {stream.total}" if stream.least else str(stream.total)
    size, mark = stream.total, MARKER if stream.lines >= 0 else UNCOUNTED
    room = limit - len(
        mark.format(total=total, head=limit, tail=limit, missing=f"printed lines {size}-{size} of {size}")
    )
    if room < 2:
        return stream.head[:limit]
    head = _whole_lines(stream.head[: room - room // 2])
    tail = (stream.tail if len(stream.tail) >= room // 2 or not whole else stream.head + stream.tail)[-(room // 2) :]
    tail = _whole_lines(tail[::-1])[::-1]
    missing = f"characters {len(head) + 1}-{size - len(tail)}"
    first, last = head.count("\n") + 1, stream.lines - tail.count("\n") + 1  # the tail begins with the end of a line
    if head.endswith("\n") and tail.startswith("\n") and first <= last <= size:
        missing = f"printed lines {first}-{last} of {stream.lines if tail.endswith(chr(10)) else stream.lines + 1}"
    return head + mark.format(total=total, head=len(head), tail=len(tail), missing=missing) + tail


def _whole_lines(text: str) -> str:
    """The text up to its last line break, unless that would lose more than a quarter of it (one giant line)."""
    end = text.rfind("\n") + 1
    return text[:end] if end >= len(text) * 3 // 4 else text
