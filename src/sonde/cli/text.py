"""Text on its way to a terminal: made harmless, cut to size, linked.

Text from a model, a tool or a file may hold escape sequences that move the cursor, set the clipboard or fake output, and line ends after
which it could speak in our name. Whatever is printed goes through `printable` (one line), `one_line` (one line, cut) or
`printable_lines` (an answer, a page, code). They promise nothing about the meaning of the text.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TextIO
from urllib.parse import quote

CELL = 160
"""The longest cell of a table."""
_BIDI = [*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C]
_HARMFUL = [code for code in [*range(0x20), *range(0x7F, 0xA0), *_BIDI] if chr(code) not in "\n\t"]
_TABLE = dict.fromkeys([*_HARMFUL, 0x2028, 0x2029], "�")
_ONE_LINE = {**_TABLE, ord("\n"): "�"}
_ESCAPED = {code: f"\\u{code:04x}" for code in _HARMFUL if code >= 0x7F}


def printable(text: str) -> str:
    """The text on one line, without control characters other than the tab, and without marks that reverse its order."""
    return text.translate(_ONE_LINE).encode("utf-8", "replace").decode()


def printable_lines(text: str) -> str:
    """The same for text that may have several lines, such as an answer."""
    return text.translate(_TABLE).encode("utf-8", "replace").decode()


def indented(text: str) -> str:
    """Lines after `sonde: `. Only the first begins at the margin, so that no name in a message can end it and speak in our name."""
    return printable_lines(text).replace("\n", "\n  ")


def escaped_json(text: str) -> str:
    """JSON with escapes for what a terminal would obey and JSON leaves as it is: the controls from 7F to 9F, and reversing marks."""
    return text.translate(_ESCAPED)


def one_line(text: str, width: int) -> str:
    """The text on one line of at most `width` characters."""
    flat = " ".join(printable_lines(text).split())
    return flat if len(flat) <= width else flat[: max(1, width - 1)] + "…"


def outcome_text(failed: int, recovered: int) -> str:
    """How many traces failed and how many recovered, in the words that every command uses."""
    return f"{failed:,} failed" + (f", {recovered:,} had errors and recovered" if recovered else "")


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Rows below their heads; numbers stand to the right, cells are one line each. The last column is not padded."""
    cells = [[each if isinstance(each, int | float) else one_line(str(each), CELL) for each in row] for row in rows]
    texts = [[f"{each:,.0f}" if isinstance(each, int | float) else each for each in row] for row in cells]
    right = [any(isinstance(row[at], int | float) for row in cells) for at in range(len(heads))]
    widths = [max(map(len, column)) for column in zip(heads, *texts, strict=True)]
    lines = [
        "  ".join(
            each.rjust(wide) if to else each.ljust(wide) for each, wide, to in zip(row, widths, right, strict=True)
        )
        for row in (heads, *texts)
    ]
    return "\n".join(line.rstrip() for line in lines)


def middle_cut(text: str, width: int) -> str:
    """The text on one line of at most `width` characters, without its middle: names of models differ at both ends."""
    flat = one_line(text, len(text) + 1)
    if len(flat) <= width:
        return flat
    tail = max(0, width - 1) // 3
    return f"{flat[: max(1, width) - 1 - tail]}…{flat[len(flat) - tail :]}"


def clipped(text: str, limit: int) -> str:
    """The start and the end of a text: messages begin with what was wrong and end with what to do about it."""
    half = limit // 2
    return text if len(text) <= limit else f"{text[:half]} … {text[-half:]}"


def some_lines(text: str, limit: int, *, tail: bool = False) -> list[str]:
    """The first (or last) lines, and a line that says how many are missing."""
    lines = printable_lines(text).rstrip().split("\n")
    if len(lines) <= limit:
        return lines
    missing, kept = f"… {len(lines) - limit + 1} more lines", limit - 1
    return [missing, *lines[len(lines) - kept :]] if tail else [*lines[:kept], missing]


def link(shown: str, target: Path, line: int) -> str:
    """A link to a line of a file."""
    return hyperlink(shown, f"file://{quote(str(target))}" + (f"#L{line}" if line else ""))


def hyperlink(shown: str, address: str) -> str:
    """Text that a terminal opens at a click (OSC 8); only for streams that `links_shown` allows."""
    return f"\x1b]8;;{address}\x1b\\{shown}\x1b]8;;\x1b\\"


def links_shown(stream: TextIO) -> bool:
    """Whether the stream is a terminal that may get escape sequences."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
