"""The text of docx and xlsx, by mammoth and calamine of the extra `office`: headings, paragraphs, list items, notes, comments and rows.

Before a library sees a file, its parts are counted, and none that is XML may have a DOCTYPE.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import importlib
import re
from collections.abc import Iterator
from typing import IO, Any, BinaryIO
from xml.parsers.expat import ExpatError

import mammoth
from python_calamine import CalamineWorkbook

from sonde.parsers import BadDocument
from sonde.parsers.opendocument import opened, strict_parser
from sonde.parsers.web import in_batches, page_lines

importlib.import_module("xml.dom.expatbuilder")  # mammoth's parser asks for it with the first document
_HEAD = 1 << 16
_CHUNK = 1 << 20
_MAX_CELLS = 8_000_000  # each takes memory, empty ones too
_LONGEST_PLACE = len(' r="XFD1048576"')
_COLUMN = re.compile(rb"""\sr=["']([A-Za-z]{1,3})[0-9]""")
_ROW = re.compile(rb"""\sr=["'][A-Za-z]{0,3}([0-9]{1,7})["']""")
_STYLES = "p[style-name='Title'] => h1:fresh\np[style-name='Subtitle'] => h2:fresh\ncomment-reference => sup"


def read(document: BinaryIO, *, form: str, most: int) -> Iterator[str]:
    """The lines, many at a time."""
    with opened(document, most) as package:
        for part in package.infolist():
            if part.filename.lower().endswith((".xml", ".rels", ".vml")):
                with package.open(part) as content, contextlib.suppress(ExpatError):  # broken: the library says so
                    strict_parser().Parse(content.read(_HEAD), False)
            if form == "xlsx" and part.filename.lower().startswith("xl/worksheets/"):
                with package.open(part) as content:
                    _check_extent(content)
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


def _check_extent(sheet: IO[bytes]) -> None:
    """BadDocument if the library would make a table of too many cells; two cells far apart are enough for that."""
    columns: set[bytes] = set()
    rows: set[bytes] = set()
    rest = b""
    while piece := sheet.read(_CHUNK):
        text = rest + piece
        columns.update(_COLUMN.findall(text))
        rows.update(_ROW.findall(text))
        rest = text[-_LONGEST_PLACE:]
    wide = {sum((letter - 64) * 26**n for n, letter in enumerate(reversed(name.upper()))) for name in columns}
    high = set(map(int, rows))
    if wide and high and (max(wide) - min(wide) + 1) * (max(high) - min(high) + 1) > _MAX_CELLS:
        raise BadDocument(f"a sheet in it reaches over more than {_MAX_CELLS:,} cells, too large a sheet")


def _cell(value: Any) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, dt.datetime):
        return value.isoformat(" ")
    return " ".join(str(value).split())
