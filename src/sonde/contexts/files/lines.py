r"""Lines by number in a text of any size, without holding more of it than is asked for.

A line ends at `\n`; a `\r` before it belongs to the line end. Nothing else ends a line (form feeds and U+2028 do not), and text
after the last `\n` is a line of its own. Lines count from 1. An empty text has none.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from sonde.contexts.files.text import Text

BLOCK = 262_144


@dataclass(frozen=True, slots=True)
class LineIndex:
    """How many line ends come before each block, and how many lines there are: 32 bytes for every 256 KiB of text."""

    before: tuple[int, ...]
    total: int

    @classmethod
    def of(cls, text: Text) -> LineIndex:
        """One pass over the text, counting."""
        before, seen, last = [0], 0, b"\n"
        for offset in range(text.start, text.size, BLOCK):
            block = text.read(offset, BLOCK)
            seen += block.count(b"\n")
            before.append(seen)
            last = block[-1:] or last
        return cls(tuple(before), seen + (last != b"\n"))

    def offset(self, text: Text, line: int) -> int:
        """The byte at which a line begins; the end of the text for the line after the last."""
        wanted = line - 1
        if wanted <= 0:
            return text.start
        if wanted > self.before[-1]:
            return text.size
        number = bisect_left(self.before, wanted) - 1
        block = text.read(text.start + number * BLOCK, BLOCK)
        rest = block.split(b"\n", wanted - self.before[number])[-1]
        return text.start + number * BLOCK + len(block) - len(rest)

    def line_at(self, text: Text, offset: int) -> int:
        """The number of the line that holds this byte."""
        number = min(max(offset - text.start, 0) // BLOCK, len(self.before) - 1)
        begin = text.start + number * BLOCK
        return self.before[number] + text.read(begin, offset - begin).count(b"\n") + 1


def read_lines(text: Text, index: LineIndex, first: int, last: int) -> str:
    """Lines `first` to `last`, joined by newlines."""
    begin, end = index.offset(text, first), index.offset(text, last + 1)
    return text.decode(text.read(begin, end - begin)).removesuffix("\n")
