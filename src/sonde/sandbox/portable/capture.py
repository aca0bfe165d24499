"""What a turn prints: head, tail and the true length of both streams, in bounded memory."""

from __future__ import annotations

from sonde.sandbox.output import Captured


class _Stream:
    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._head = ""
        self._tail = ""
        self._total = 0

    def add(self, text: str) -> None:
        room = max(0, self._keep - len(self._head))
        self._total += len(text)
        self._head += text[:room]
        if len(text) > room:
            self._tail = (self._tail + text[room:])[-self._keep :]

    def captured(self) -> Captured:
        return Captured(self._head, self._tail, self._total)


class Printed:
    """Both streams of one turn."""

    def __init__(self, keep: int) -> None:
        self._streams = {"stdout": _Stream(keep), "stderr": _Stream(keep)}

    def add(self, stream: str, text: str) -> None:
        """The next piece of one of them."""
        self._streams[stream].add(text)

    def captured(self) -> tuple[Captured, Captured]:
        """Both, stdout first, as they were kept."""
        return self._streams["stdout"].captured(), self._streams["stderr"].captured()
