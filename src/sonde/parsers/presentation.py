"""The text of pptx: titles, paragraphs, the rows of tables, and notes, slide by slide; by the standard library."""

from __future__ import annotations

import posixpath
import zipfile
from collections.abc import Iterator
from typing import BinaryIO

from sonde.parsers.opendocument import opened, strict_parser

_RELATION = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_UNSEEN = ("sldNum", "dt", "ftr", "hdr", "sldImg")


def read(document: BinaryIO, *, most: int) -> Iterator[str]:
    """The lines of each slide."""
    with opened(document, most) as package:
        targets = _targets(package, "ppt/presentation.xml")
        slides: list[str] = []

        def note(name: str, values: dict[str, str]) -> None:
            if name.endswith(" sldId"):
                slides.append(targets.get(values.get(f"{_RELATION} id", ""), ""))

        parser = strict_parser()
        parser.StartElementHandler = note
        parser.Parse(package.read("ppt/presentation.xml"), True)
        for number, slide in enumerate(filter(None, slides), 1):
            lines = [f"[slide {number}]", *_Slide(package, slide).lines]
            for part in _targets(package, slide).values():
                if part.startswith("ppt/notesSlides/") and (notes := _Slide(package, part).lines):
                    lines += ["[notes]", *notes]
            yield "\n".join(lines)


def _targets(package: zipfile.ZipFile, part: str) -> dict[str, str]:
    """What the relations of a part lead to, by their ids."""
    folder, name = posixpath.split(part)
    found: dict[str, str] = {}

    def note(_: str, values: dict[str, str]) -> None:
        if "Id" in values:
            target = values.get("Target", "")
            found[values["Id"]] = posixpath.normpath(posixpath.join("/", folder, target)).lstrip("/")

    parser = strict_parser()
    parser.StartElementHandler = note
    try:
        parser.Parse(package.read(f"{folder}/_rels/{name}.rels"), True)
    except KeyError:
        return {}
    return found


class _Slide:
    """The lines of one slide or of its notes."""

    def __init__(self, package: zipfile.ZipFile, part: str) -> None:
        self.lines: list[str] = []
        self._text: list[str] = []
        self._cells: list[str] = []
        self._cell: list[str] = []
        self._in_text = self._in_cell = False
        self._fallback = 0
        self._role = ""
        parser = strict_parser()
        parser.StartElementHandler = self._begin
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._say
        parser.Parse(package.read(part), True)

    def _say(self, text: str) -> None:
        if self._in_text and not self._fallback:
            self._text.append(text)

    def _begin(self, name: str, values: dict[str, str]) -> None:
        match name.rpartition(" ")[2]:
            case "sp" | "graphicFrame":
                self._role = ""
            case "ph":
                self._role = values.get("type", "")
            case "p":
                self._text.clear()
            case "t":
                self._in_text = True
            case "br":
                self._text.append(" ")
            case "tr":
                self._cells.clear()
            case "tc":
                self._cell.clear()
                self._in_cell = True
            case "Fallback":  # the same once more, for older programs
                self._fallback += 1
            case _:
                pass

    def _end(self, name: str) -> None:
        match name.rpartition(" ")[2]:
            case "t":
                self._in_text = False
            case "p":
                text = " ".join("".join(self._text).split())
                if self._in_cell:
                    self._cell.append(text)
                elif text and self._role not in _UNSEEN:
                    self.lines.append(f"# {text}" if self._role in ("title", "ctrTitle") else text)
            case "tc":
                self._cells.append(" ".join(self._cell).strip())
                self._in_cell = False
            case "tr":
                if row := " | ".join(self._cells).rstrip(" |"):
                    self.lines.append(row)
            case "Fallback":
                self._fallback -= 1
            case _:
                pass
