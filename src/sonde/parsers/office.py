"""The text of docx and xlsx, by mammoth and calamine of the extra `office`: headings, paragraphs, list items, notes, comments and rows.

Before a library sees a file, its parts are counted, and none that is XML may have a DOCTYPE.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import importlib
from collections.abc import Iterator
from typing import Any, BinaryIO
from xml.parsers.expat import ExpatError

import mammoth
from python_calamine import CalamineWorkbook

from sonde.parsers.opendocument import opened, strict_parser
from sonde.parsers.web import in_batches, page_lines

importlib.import_module("xml.dom.expatbuilder")  # mammoth's parser asks for it with the first document
_HEAD = 1 << 16
_STYLES = "p[style-name='Title'] => h1:fresh\np[style-name='Subtitle'] => h2:fresh\ncomment-reference => sup"


def read(document: BinaryIO, *, form: str, most: int) -> Iterator[str]:
    """The lines, many at a time."""
    with opened(document, most) as package:
        for part in package.infolist():
            if part.filename.lower().endswith((".xml", ".rels", ".vml")):
                with package.open(part) as content, contextlib.suppress(ExpatError):  # broken: the library says so
                    strict_parser().Parse(content.read(_HEAD), False)
    document.seek(0)
    yield from in_batches(_document(document) if form == "docx" else _sheets(document))


def _document(document: BinaryIO) -> Iterator[str]:
    library: Any = mammoth  # it has no types
    page = library.convert_to_html(
        document, style_map=_STYLES, convert_image=library.images.img_element(_without_content)
    ).value
    return iter(page_lines(page))


def _without_content(_: object) -> dict[str, str]:
    """The attributes of a picture; mammoth adds what is said in its place."""
    return {}


def _sheets(document: BinaryIO) -> Iterator[str]:
    with CalamineWorkbook.from_filelike(document) as workbook:
        for name in workbook.sheet_names:
            yield f"[sheet {name}]"
            for row in workbook.get_sheet_by_name(name).iter_rows():
                if text := " | ".join(map(_cell, row)).rstrip(" |"):
                    yield text


def _cell(value: Any) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, dt.datetime):
        return value.isoformat(" ")
    return " ".join(str(value).split())
