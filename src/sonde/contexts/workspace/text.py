"""Text of files: decoded without loss, so that what a patch does not touch keeps its bytes.

UTF-8 with or without a byte order mark, UTF-16 and UTF-32 with one; any other text is read as Latin-1, which gives every byte back.
A line ends with CRLF, LF or CR, and keeps its own ending. Binary files are refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sonde.contexts.workspace.base import MARKS, Form, PatchRefused, PathRefused
from sonde.core.canonical import CONTROLS, UNSEEN

MAX_BYTES = 16 * 1024 * 1024
WRITTEN_OUT = re.compile(
    rf"(?![\ufe0e\ufe0f])[{CONTROLS}{UNSEEN}]|\r(?!\n)|"
    r"(?<![\u00a9\u00ae\u203c\u2049\u2122\u2190-\u27bf\u2900-\u2bff\u3030\u303d\u3297\u3299\U0001f000-\U0001faff])[\ufe0e\ufe0f](?!\u20e3)"
)
"""Characters that look like nothing, like the end of a line (a lone CR), or that turn others around. U+FE0E and U+FE0F are fine after a
symbol or in a keycap, where they choose its picture. vscode/src/plain.ts has the same.
"""
LINE = re.compile(r"([^\r\n]*)(\r\n|\n|\r|$)")


@dataclass(frozen=True, slots=True)
class TextLine:
    """The text of a line and what ends it; the last one may end with nothing."""

    text: str
    ending: str


def decode(path: str, data: bytes, mode: int = 0o644) -> tuple[str, Form]:
    """The text of a file and the form to write it back in."""
    for mark, encoding in MARKS:
        if data.startswith(mark):
            try:
                return data[len(mark) :].decode(encoding), Form(encoding=encoding, bom=mark, mode=mode)
            except UnicodeDecodeError as error:
                raise PathRefused(f"{path} is not valid {encoding}: {error.reason} at byte {error.start}") from error
    if b"\0" in data:
        raise PathRefused(f"{path} is a binary file; only text can be read or patched")
    try:
        return data.decode("utf-8"), Form(mode=mode)
    except UnicodeDecodeError:
        return data.decode("latin-1"), Form(encoding="latin-1", mode=mode)


def encode(path: str, text: str, form: Form) -> bytes:
    """The bytes of a text in its form; characters that the encoding lacks are refused, never replaced."""
    try:
        return form.bom + text.encode(form.encoding)
    except UnicodeEncodeError as error:
        bad = text[error.start]
        raise PatchRefused(
            f"{path} is kept as {form.encoding}, which cannot hold {bad!r}; use another spelling"
        ) from error


def visible(text: str) -> str:
    """The text for somebody who has to judge it: what is hidden in it is written out, such as <U+202E>."""
    return WRITTEN_OUT.sub(lambda found: f"<U+{ord(found[0]):04X}>", text)


def split(text: str) -> list[TextLine]:
    """The lines of a text; an empty text has none, and a final newline does not make another line."""
    return [TextLine(m[1], m[2]) for m in LINE.finditer(text) if m[0]]


def plain(text: str) -> str:
    """The text with LF at the end of each line."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def join(lines: Sequence[TextLine], final_newline: bool, ending: str) -> str:
    """The lines as one text, with or without a newline at its very end."""
    if not lines:
        return ""
    whole = "".join(line.text + (line.ending or ending) for line in lines[:-1])
    return whole + lines[-1].text + ((lines[-1].ending or ending) if final_newline else "")
