"""What a web page says: title, headings, paragraphs, list items, table rows and links as lines of text; by the standard library.

Scripts, styles, drawings and comments are left out. Text that a style sheet hides is read like any other. A page with the marks of a
template engine is refused: its reader wants the source.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from itertools import islice
from typing import BinaryIO

from sonde.parsers import BadDocument

_BATCH = 1000
_LONG_CELL = 120
_ANCHORS = ("¶", "§", "#", "↑", "↩")
"""Links that lead to the line on which they stand, or back."""
_UNSEEN = frozenset({"script", "style", "template", "noscript", "svg", "iframe", "object"})
_HEADINGS = {f"h{level}": f"{'#' * level} " for level in range(1, 7)}
_BLOCKS = frozenset(
    """
    address article aside blockquote body br caption dd details dialog div dl dt fieldset figcaption figure footer form header hr html
    legend li main nav ol optgroup option p pre search section select summary table tbody textarea tfoot thead title tr ul
    """.split()  # noqa: SIM905 - names of elements read better as text
) | set(_HEADINGS)
_BREAKING = frozenset({"table", "tr", "pre", "dl", "dt", "dd", *_HEADINGS})
"""These begin a line in a cell too: where tables only lay out a page, they hold what it says."""
_TEMPLATE = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|%>", re.DOTALL)
_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w-]{1,40})", re.IGNORECASE)
_SPACE = re.compile(r"\s+")

for _name in (
    "cp1250", "cp1251", "cp1252", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "iso8859_2", "iso8859_5", "iso8859_15", "koi8_r",
    "gbk", "gb18030", "big5", "shift_jis", "euc_jp", "euc_kr", "utf_16",
):  # fmt: skip
    codecs.lookup(_name)  # a confined process cannot load them any more


def read(document: BinaryIO) -> Iterator[str]:
    """The lines of the page, many at a time. BadDocument if it is a template."""
    return in_batches(page_lines(_decoded(document.read()), templates=False))


def page_lines(html: str, *, templates: bool = True) -> list[str]:
    """The lines of a page; BadDocument if it is a template and none may be."""
    page = _Page(templates=templates)
    page.feed(html)
    page.close()
    page.end_line()
    return page.lines


def in_batches(lines: Iterable[str]) -> Iterator[str]:
    """Lines as records: one for each would cost more than its text."""
    waiting = iter(lines)
    while batch := list(islice(waiting, _BATCH)):
        yield "\n".join(batch)


def _decoded(data: bytes) -> str:
    for mark, encoding in (
        (codecs.BOM_UTF8, "utf-8-sig"),
        (codecs.BOM_UTF16_LE, "utf-16"),
        (codecs.BOM_UTF16_BE, "utf-16"),
    ):
        if data.startswith(mark):
            return data.decode(encoding, "replace")
    declared = _CHARSET.search(data[:4096])
    for encoding in ("utf-8", declared[1].decode() if declared else "cp1252"):
        try:
            return data.decode(encoding)
        except (UnicodeDecodeError, LookupError):
            continue
    return data.decode("latin-1")


class _Page(HTMLParser):
    """Collects lines. A row of a table is one line; a paragraph in a cell begins a new one only if the cell is long."""

    def __init__(self, *, templates: bool) -> None:
        super().__init__()
        self._templates = templates
        self.lines: list[str] = []
        self._line: list[str] = []
        self._length = 0
        self._start = ""
        self._unseen: list[str] = []
        self._pre = self._code = 0
        self._cells: list[int] = []  # for every open table, how many cells its row has so far
        self._href = ""
        self._link_at = 0

    def end_line(self) -> None:
        """What was collected becomes a line, unless it is blank."""
        text = "".join(self._line)
        text = text.rstrip() if self._pre else _SPACE.sub(" ", text).strip()
        if text.strip():
            self.lines.extend(f"{self._start}{text}".split("\n"))
            self._start = ""
        self._line, self._length = [], 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _UNSEEN:
            self._unseen.append(tag)
        if self._unseen:
            return
        values = dict(attrs)
        for value in values.values():
            self._judge(value or "")
        if tag in ("td", "th"):
            if self._cells:
                self._cells[-1] += 1
                if self._cells[-1] > 1:
                    self._add(" | ")
        elif tag in _BLOCKS:
            self._break(tag)
            if tag == "table":
                self._cells.append(0)
            elif tag == "tr" and self._cells:
                self._cells[-1] = 0
            elif tag == "li" and not self._line:
                self._start = "- "
            elif tag == "title":
                self._start = "[title] "
            self._start = _HEADINGS.get(tag, self._start)
            self._pre += tag in ("pre", "textarea")
        elif tag == "code":
            self._code += 1
        elif tag == "a":
            self._href, self._link_at = values.get("href") or "", len(self._line)
        elif tag == "img" and values.get("alt"):
            self._add(f"[image: {values['alt']}]")

    def handle_endtag(self, tag: str) -> None:
        if self._unseen:
            if tag == self._unseen[-1]:
                self._unseen.pop()
            return
        if tag in _BLOCKS:
            self._break(tag)
            self._start = "" if tag == "li" or tag in _HEADINGS else self._start
            self._pre = max(0, self._pre - (tag in ("pre", "textarea")))
            if tag == "table" and self._cells:
                self._cells.pop()
        elif tag == "code":
            self._code = max(0, self._code - 1)
        elif tag == "a" and self._href:
            said = "".join(self._line[self._link_at :])
            if self._href.startswith(("http://", "https://", "mailto:")) and self._href not in said:
                self._add(f" ({self._href})")
            elif self._href.startswith("#") and said.strip() in _ANCHORS:
                del self._line[self._link_at :]
            self._href = ""

    def handle_data(self, data: str) -> None:
        if self._unseen:
            return
        if not (self._pre or self._code):
            self._judge(data)
        self._add(data)

    def handle_pi(self, data: str) -> None:
        if data.startswith(("php", "=")) and not self._templates:
            raise BadDocument("a template")

    def _judge(self, text: str) -> None:
        if not self._templates and _TEMPLATE.search(text):
            raise BadDocument("a template")

    def _add(self, text: str) -> None:
        self._line.append(text)
        self._length += len(text)

    def _break(self, tag: str) -> None:
        """A block begins or ends here. Within a cell that is only a space, so that a row stays on its line."""
        row = self._cells and self._cells[-1]
        if row and self._length < _LONG_CELL and tag not in _BREAKING:
            self._add(" ")
        else:
            self.end_line()
