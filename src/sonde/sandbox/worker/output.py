"""stdout and stderr of a turn: head, tail and the true length, in bounded memory whatever the code prints."""

from __future__ import annotations

import io
import os

RECORDER = 1
"""Descriptor 1 is a pipe that the supervisor reads only when it had to kill the turn."""


class Capture(io.TextIOBase):
    """A text stream that keeps the first and the last `keep` characters and counts all of them.

    The first `keep` characters also go to the pipe, line by line: a killed turn still shows what it printed. That is less
    than a pipe holds, so a flood never blocks.
    """

    def __init__(self, keep: int) -> None:
        super().__init__()
        self._keep = keep
        self.clear()

    def clear(self) -> None:
        self.total = 0
        self._head: list[str] = []
        self._tail: list[str] = []
        self._tail_size = 0
        self._unsent = ""

    def write(self, text: str) -> int:
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - generated code passes anything
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        room = self._keep - self.total
        self.total += len(text)
        if room > 0:
            self._head.append(text[:room])
            self._record(text[:room])
        if len(text) > room:
            self._add_to_tail(text[max(room, 0) :][-self._keep :])
        return len(text)

    def _add_to_tail(self, text: str) -> None:
        self._tail.append(text)
        self._tail_size += len(text)
        if self._tail_size > 4 * self._keep:
            self._tail = [self.tail()]
            self._tail_size = len(self._tail[0])

    def _record(self, text: str) -> None:
        self._unsent += text
        if "\n" in text or len(self._unsent) > 512:
            self.flush()

    def head(self) -> str:
        return "".join(self._head)

    def tail(self) -> str:
        return "".join(self._tail)[-self._keep :]

    def flush(self) -> None:
        unsent, self._unsent = self._unsent, ""
        if unsent:
            try:
                os.write(RECORDER, unsent.encode("utf-8", "replace"))
            except OSError:
                return  # only the recorder of a killed turn: the capture itself is whole

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride] - a plain attribute in typeshed
        return "utf-8"
