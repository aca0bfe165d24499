"""The text of odt, ods and odp: headings, paragraphs, list items, notes, and the rows of tables; by the standard library.

Such a file is a zip, of which content.xml is read as a stream. A DOCTYPE, which no office file has and every bomb of entities needs,
is refused, and so is a file that says it unpacks to more than it may.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from typing import Any, BinaryIO
from xml.parsers import expat

from sonde.parsers import BadDocument

PARTS = 10_000
_CHUNK = 1 << 20
_SPACE = re.compile(r"[ \t\r\n]+")
_REPEATED = 100
"""A cell, row or space that says it stands for more than this many is written that often."""
_NAMES = "urn:oasis:names:tc:opendocument:xmlns:"
_REPEATS = {
    "table-row": "table:1.0 number-rows-repeated",
    "table-cell": "table:1.0 number-columns-repeated",
    "s": "text:1.0 c",
    "h": "text:1.0 outline-level",
}


def opened(document: BinaryIO, most: int) -> zipfile.ZipFile:
    """The parts of an office file; BadDocument if they are too many or too large together."""
    package = zipfile.ZipFile(document)
    parts = package.infolist()
    if len(parts) > PARTS:
        raise BadDocument(f"it has more than {PARTS:,} parts")
    if sum(part.file_size for part in parts) > most:
        raise BadDocument(f"it unpacks to more than {most:,} bytes")
    return package


def strict_parser() -> Any:
    """An XML parser that refuses a DOCTYPE, and with it every entity that a document defines."""
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.StartDoctypeDeclHandler = _refuse
    parser.buffer_text = True
    return parser


def _refuse(*_: object) -> None:
    raise BadDocument("it has a DOCTYPE, which no office file has")


def read(document: BinaryIO, *, most: int) -> Iterator[str]:
    """The lines, many at a time."""
    with opened(document, most) as package, package.open("content.xml") as content:
        parser = strict_parser()
        lines = _Lines(parser)
        while piece := content.read(_CHUNK):
            parser.Parse(piece, False)
            if lines.done:
                yield "\n".join(lines.done)
                lines.done.clear()
        parser.Parse(b"", True)


class _Lines:
    """What content.xml says. `done` has the lines that are complete."""

    def __init__(self, parser: Any) -> None:
        self.done: list[str] = []
        self._open: list[list[str]] = []  # the paragraphs that are open: a note has its own within another
        self._cells: list[str] = []
        self._cell: list[str] = []
        self._tables = self._slides = self._lists = self._deleted = 0
        self._repeats = {"table-row": 1, "table-cell": 1, "h": 1}
        parser.StartElementHandler = self._begin
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._collapse

    def _say(self, text: str) -> None:
        if self._open:
            self._open[-1].append(text)

    def _collapse(self, text: str) -> None:
        self._say(_SPACE.sub(" ", text))  # spaces that count are elements of their own

    def _begin(self, name: str, values: dict[str, str]) -> None:
        kind = name.rpartition(" ")[2].removeprefix("covered-")
        number = values.get(f"{_NAMES}{_REPEATS[kind]}", "1") if kind in _REPEATS else "1"
        often = min(int(number), _REPEATED) if number.isdecimal() and len(number) < 10 else 1
        match kind:
            case "h" | "p":
                self._open.append([])
                self._repeats["h"] = often
            case "note-citation":
                self._open.append([])
            case "note" | "annotation":
                self._say(" [note: " if kind == "note" else " [comment: ")
            case "s":
                self._say(" " * often)
            case "tab":
                self._say("\t")
            case "line-break":
                self._say(" ")
            case "list-item" | "tracked-changes":
                self._lists += kind == "list-item"
                self._deleted += kind == "tracked-changes"
            case "page":
                self._slides += 1
                self.done.append(f"[slide {self._slides}]")
            case "notes":
                self.done.append("[notes]")
            case "table":
                self._tables += 1
                if self._tables == 1:
                    self.done.append(f"[table {values.get(f'{_NAMES}table:1.0 name', '')}]")
            case "table-row" | "table-cell" if self._tables == 1:
                (self._cells if kind == "table-row" else self._cell).clear()
                self._repeats[kind] = often
            case _:
                pass

    def _end(self, name: str) -> None:
        match name.rpartition(" ")[2].removeprefix("covered-"):
            case "h" | "p" as kind if self._open:
                text = "".join(self._open.pop()).strip()
                if self._deleted or not text:
                    return
                if self._open:  # it belongs to a note in another one
                    self._say(text)
                elif self._tables:
                    self._cell.append(text)
                else:
                    start = f"{'#' * min(self._repeats['h'], 6)} " if kind == "h" else "- " if self._lists else ""
                    self.done.append(f"{start}{text}")
            case "note-citation" if self._open:
                self._open.pop()  # its number
            case "note" | "annotation":
                self._say("]")
            case "list-item":
                self._lists -= 1
            case "tracked-changes":
                self._deleted -= 1
            case "table":
                self._tables -= 1
            case "table-cell" if self._tables == 1:
                self._cells += [" ".join(self._cell)] * self._repeats["table-cell"]
            case "table-row" if self._tables == 1:
                if row := " | ".join(self._cells).rstrip(" |"):
                    self.done += [row] * self._repeats["table-row"]
            case _:
                pass
