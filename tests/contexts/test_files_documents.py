"""Office files and web pages are read as the text in them, and every line of it can be cited."""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path

import office_oxide
import pytest
from files_support import call, proved, write

from sonde.contexts.code import CodeContext
from sonde.contexts.files import FilesContext
from sonde.contexts.files.about import left_out
from sonde.contexts.workspace import LocalWorkspace
from sonde.errors import ToolFault, how_to_install
from sonde.viewer.excerpts import lines_of

REPORT = """\
# Harbour report

The **crane** failed on 3 May.

- a bolt sheared
- nobody looked

| part | cost |
|---|---|
| bolt | 12 |
"""
REPORT_LINES = "# Harbour report\nThe crane failed on 3 May.\n- a bolt sheared\n- nobody looked\npart | cost\nbolt | 12"
PAGE = """\
<!DOCTYPE html>
<html><head><title>Harbour
 report</title><style>p { color: red }</style><script>if (a < b) { x = "{{unseen}}" }</script></head>
<body><!-- nobody sees this --><h1>Ships &amp; cranes<a class="headerlink" href="#ships">¶</a></h1>
<p>The <b>crane</b> failed
on 3 May.<br>See <a href="https://example.org/log">the log</a> or <a href="/home">home</a>.</p>
<ul><li><p>a bolt sheared</p></li><li>nobody looked</li></ul>
<table><tr><th>part</th><th>cost</th></tr><tr><td><p>bolt</p></td><td>12<br>EUR</td></tr></table>
<pre>def f():
    return 1</pre><img src="x.png" alt="a broken crane"></body></html>
"""
PAGE_LINES = """\
[title] Harbour report
# Ships & cranes
The crane failed on 3 May.
See the log (https://example.org/log) or home.
- a bolt sheared
- nobody looked
part | cost
bolt | 12 EUR
def f():
    return 1
[image: a broken crane]"""
ODT = """<?xml version="1.0" encoding="UTF-8"?>
<office:document-content xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0"
 xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0" xmlns:table="urn:oasis:names:tc:opendocument:xmlns:table:1.0">
<office:body><office:text><text:tracked-changes><text:p>deleted</text:p></text:tracked-changes>
<text:h text:outline-level="2">Harbour report</text:h>
<text:p>The <text:span>crane</text:span><text:s text:c="2"/>failed
<text:note><text:note-citation>1</text:note-citation><text:note-body><text:p>see the log</text:p></text:note-body></text:note>.</text:p>
<text:list><text:list-item><text:p>a bolt sheared</text:p></text:list-item></text:list>
<table:table table:name="Costs"><table:table-row><table:table-cell><text:p>bolt</text:p></table:table-cell>
<table:table-cell table:number-columns-repeated="2"><text:p>12</text:p></table:table-cell>
<table:table-cell table:number-columns-repeated="16000"/></table:table-row>
<table:table-row table:number-rows-repeated="1000000"><table:table-cell/></table:table-row></table:table>
</office:text></office:body></office:document-content>"""


def packed(parts: dict[str, str]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as package:
        for name, content in parts.items():
            package.writestr(name, content)
    return file.getvalue()


def docx(folder: Path, markdown: str = REPORT) -> bytes:
    office_oxide.create_from_markdown(markdown, "docx", folder / "made.docx")
    return (folder / "made.docx").read_bytes()


def xlsx() -> bytes:
    book = office_oxide.XlsxWriter()
    costs = book.add_sheet("Costs")
    for row, values in enumerate([["part", "cost"], ["bolt | nut", 12.0], [None, 0.5], [True, "two\nlines"]]):
        for column, value in enumerate(values):
            if value is not None:
                book.set_cell(costs, row, column, value)
    book.add_sheet("Empty")
    return book.to_bytes()


def pptx() -> bytes:
    show = office_oxide.PptxWriter()
    for title, text in (("Harbour report", "The crane failed"), ("Costs", "bolt 12")):
        slide = show.add_slide()
        show.set_slide_title(slide, title)
        show.add_slide_text(slide, text)
    return show.to_bytes()


def test_a_docx_is_read_by_headings_paragraphs_items_and_rows(tmp_path: Path) -> None:
    made = docx(tmp_path)
    context = write(tmp_path / "in", {"report.docx": made})

    read = call(context, "read_file", "report.docx")
    found = call(context, "grep", "crane failed")

    assert read.result == REPORT_LINES
    assert found.result == [{"path": "report.docx", "line": 2, "text": "The crane failed on 3 May."}]
    assert proved(context, read)
    assert proved(context, found)
    assert lines_of(tmp_path / "in" / "report.docx", 2, 2) == "The crane failed on 3 May."
    assert context.shared() == {"CONTEXT": {"report.docx": REPORT_LINES}}


def test_an_xlsx_is_read_sheet_by_sheet_and_row_by_row(tmp_path: Path) -> None:
    context = write(tmp_path, {"costs.xlsx": xlsx()})

    read = call(context, "read_file", "costs.xlsx")

    assert read.result == "[sheet Costs]\npart | cost\nbolt | nut | 12\n | 0.5\nTrue | two lines\n[sheet Empty]"
    assert proved(context, read)


def test_a_pptx_is_read_slide_by_slide(tmp_path: Path) -> None:
    context = write(tmp_path, {"talk.pptx": pptx()})

    read = call(context, "read_file", "talk.pptx")

    assert read.result == "[slide 1]\n# Harbour report\nThe crane failed\n[slide 2]\n# Costs\nbolt 12"
    assert proved(context, read)


def test_an_odt_is_read_with_its_notes_and_without_what_was_deleted(tmp_path: Path) -> None:
    context = write(tmp_path, {"report.odt": packed({"content.xml": ODT}), "costs.ods": packed({"content.xml": ODT})})

    read = call(context, "read_file", "report.odt")

    assert read.result == (
        "## Harbour report\nThe crane  failed  [note: see the log].\n- a bolt sheared\n[table Costs]\nbolt | 12 | 12"
    )
    assert call(context, "read_file", "costs.ods").result == read.result
    assert proved(context, read)


def test_a_web_page_is_read_as_what_it_says(tmp_path: Path) -> None:
    context = write(tmp_path, {"page.html": PAGE, "old.htm": "<p>gr\xfc\xdfe".encode("latin-1")})

    read = call(context, "read_file", "page.html")

    assert read.result == PAGE_LINES
    assert call(context, "read_file", "old.htm").result == "grüße"
    assert proved(context, read)
    assert lines_of(tmp_path / "page.html", 3, 3) == "The crane failed on 3 May."


@pytest.mark.parametrize(
    "mark", ["{{ title }}", "{% if user %}", "<?php echo 1 ?>", "<%= title %>", '<a href="{{ url }}">x</a>']
)
def test_a_template_is_read_as_it_is(tmp_path: Path, mark: str) -> None:
    page = f"<html><body>\n<p>{mark}</p>\n</body></html>"
    context = write(tmp_path, {"page.html": page})

    assert call(context, "read_file", "page.html").result == page


def test_a_page_of_a_repository_and_one_asked_about_as_code_are_read_as_they_are(tmp_path: Path) -> None:
    write(tmp_path, {"site/.git/HEAD": "ref: x", "site/docs/page.html": PAGE, "loose/page.html": PAGE})

    code = CodeContext(tmp_path / "loose")

    assert call(FilesContext(tmp_path / "site"), "read_file", "docs/page.html").result == PAGE.rstrip("\n")
    assert call(code.files, "read_file", "page.html").result == PAGE.rstrip("\n")


def test_pages_and_notebooks_in_an_archive_are_read_like_those_beside_it(tmp_path: Path) -> None:
    context = write(tmp_path, {"site.zip": packed({"page.html": PAGE, "a.ipynb": '{"cells": []}'})})

    read = call(context, "read_file", "site.zip/page.html")

    assert read.result == PAGE_LINES
    assert proved(context, read)
    assert lines_of(tmp_path / "site.zip", 3, 3, "page.html") == "The crane failed on 3 May."


def test_a_deep_or_broken_page_is_still_read(tmp_path: Path) -> None:
    context = write(
        tmp_path, {"deep.html": "<div>" * 50_000 + "the end", "cut.html": "<p>one<table><tr><td>two<script>x"}
    )

    assert call(context, "read_file", "deep.html").result == "the end"
    assert call(context, "read_file", "cut.html").result == "one\ntwo"


def test_a_docx_that_is_none_or_has_a_password_says_so(tmp_path: Path) -> None:
    context = write(
        tmp_path,
        {"a.docx": b"\xd0\xcf\x11\xe0" + bytes(600), "b.docx": b"PK\x03\x04 and no more", "c.docx": "only a note\n"},
    )

    with pytest.raises(ToolFault, match=r"a\.docx is a docx with a password"):
        call(context, "read_file", "a.docx")
    with pytest.raises(ToolFault, match=r"b\.docx is a docx that cannot be read"):
        call(context, "read_file", "b.docx")
    assert call(context, "read_file", "c.docx").result == "only a note"


def test_without_the_extra_office_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mammoth", None)
    made = docx(tmp_path)
    context = write(tmp_path / "in", {"a.docx": made, "b.docx": made, "c.xlsx": xlsx(), "d.pptx": pptx()})

    assert left_out(context.library.listing) == f"2 docx, 1 xlsx ({how_to_install('office')})"
    with pytest.raises(ToolFault, match="needs the extra office"):
        call(context, "read_file", "a.docx")


def test_a_workspace_reads_documents_and_never_patches_them(tmp_path: Path) -> None:
    made = docx(tmp_path)
    write(tmp_path / "in", {"report.docx": made, "page.html": PAGE})
    workspace = LocalWorkspace(tmp_path / "in")

    assert workspace.read("report.docx").content == REPORT_LINES
    assert [match.line for match in workspace.search("crane", "report.docx").matches] == [2]
    assert workspace.read("page.html", 1, 1).content == "<!DOCTYPE html>"
    with pytest.raises(ToolFault, match="binary"):
        workspace.text("report.docx")
