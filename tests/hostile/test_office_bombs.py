"""Office files and web pages of a stranger: bombs of entities, parts that unpack to gigabytes, markup without end. The rest is read."""

from __future__ import annotations

import io
import zipfile

import pytest
from victim import Victim, one_in_make_test

LAUGHS = (
    '<!DOCTYPE w [<!ENTITY a "ha">'
    + "".join(
        f'<!ENTITY {chr(98 + n)} "{f"&{chr(97 + n)};" * 10}">'  # each ten times the one before
        for n in range(12)
    )
    + "]>"
)
STOLEN = '<!DOCTYPE w [<!ENTITY a SYSTEM "file://{secret}">]>'
BODIES = {
    "docx": (
        "word/document.xml",
        '<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:p>&a;</w:p></w:document>',
    ),
    "xlsx": ("xl/workbook.xml", "<workbook>&a;</workbook>"),
    "pptx": ("ppt/presentation.xml", "<p>&a;</p>"),
    "odt": ("content.xml", "<p>&a;</p>"),
}

SLOW = (
    b'<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:body>'
    + b"<w:p><w:r><w:t>a service</w:t></w:r></w:p>" * 40_000
    + b"</w:body></w:document>"
)
"""Takes mammoth some seconds to read; a few kilobytes when packed."""


def package(parts: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return file.getvalue()


def ask(victim: Victim) -> str:
    victim.write("notes.txt", "the service is payments\n")
    done = victim.sonde("ask", "Which service?", ".", "--runs-dir", victim.own)
    assert done.returncode == 0, done.stderr
    assert "payments" in done.stdout
    return done.stdout + done.stderr


@pytest.mark.parametrize("suffix", one_in_make_test({name: name for name in BODIES}))
@pytest.mark.parametrize(
    "doctype", [LAUGHS, pytest.param(STOLEN, marks=pytest.mark.hostile_long)], ids=["laughs", "stolen"]
)
def test_no_entity_of_an_office_file_is_expanded(victim: Victim, suffix: str, doctype: str) -> None:
    secret = victim.home / "secret.txt"
    secret.write_text("service hush-hush\n")
    part, body = BODIES[suffix]
    text = f'<?xml version="1.0"?>{doctype.replace("{secret}", str(secret))}{body}'
    victim.write(f"service.{suffix}", package({part: text.encode()}))

    said = ask(victim)

    assert f"left out: service.{suffix} (cannot be read: it has a DOCTYPE" in said
    assert "hush-hush" not in said
    assert "hahaha" not in said


@pytest.mark.hostile_long
@pytest.mark.parametrize("suffix", BODIES)
def test_a_part_of_a_gigabyte_is_refused(victim: Victim, suffix: str) -> None:
    part, body = BODIES[suffix]
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive, archive.open(part, "w") as out:
        out.write(body.partition("&a;")[0].encode())
        for _ in range(1024):
            out.write(b"x" * (1 << 20))
    victim.write(f"service.{suffix}", file.getvalue())

    assert f"left out: service.{suffix} (cannot be read: it unpacks to more than" in ask(victim)


@pytest.mark.hostile_long
def test_a_size_that_lies_costs_no_more_than_the_limit(victim: Victim) -> None:
    part, body = BODIES["docx"]
    made = bytearray(package({part: body.partition("&a;")[0].encode() + b"x" * (300 << 20)}))
    for magic, at in (
        (b"PK\x01\x02", 24),
        (b"PK\x03\x04", 22),
    ):  # where the size stands in the directory and before the part
        start = made.rindex(magic) + at
        made[start : start + 4] = (1000).to_bytes(4, "little")
    victim.write("service.docx", bytes(made))

    ask(victim)


@pytest.mark.hostile_long
def test_a_page_that_takes_its_parser_too_long_is_read_as_it_is(victim: Victim) -> None:
    victim.write("service.html", b"<p>the service is ledger\n" + b"<!-" * 4_000_000)

    ask(victim)


@pytest.mark.hostile_long
def test_a_sheet_that_says_it_is_enormous_does_not_fill_memory(victim: Victim) -> None:
    sheet = b'<worksheet><dimension ref="A1:XFD1048576"/><sheetData><row r="1"><c r="A1"><v>1</v></c></row>'
    sheet += b'<row r="1048576"><c r="XFD1048576"><v>2</v></c></row></sheetData></worksheet>'
    namespace = b'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
    relations = b"http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    victim.write(
        "service.xlsx",
        package(
            {
                "[Content_Types].xml": b'<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"/>',
                "xl/workbook.xml": b"<workbook %s xmlns:r='%s'><sheets><sheet name='S' sheetId='1' r:id='r1'/></sheets></workbook>"
                % (namespace, relations),
                "xl/_rels/workbook.xml.rels": b"<Relationships xmlns='http://schemas.openxmlformats.org/package/2006/relationships'>"
                b"<Relationship Id='r1' Type='%s/worksheet' Target='worksheets/sheet1.xml'/></Relationships>"
                % relations,
                "xl/worksheets/sheet1.xml": sheet.replace(b"<worksheet", b"<worksheet " + namespace),
            }
        ),
    )

    told = ask(victim)
    assert "left out: service.xlsx" in told
    assert "too large a sheet" in told


@pytest.mark.hostile_long
def test_many_slow_documents_do_not_hold_a_run_each_for_its_own_time(victim: Victim) -> None:
    for number in range(12):
        victim.write(f"report-{number:02}.docx", package({"word/document.xml": SLOW}))
    victim.write("notes.txt", "the service is payments\n")

    done = victim.sonde("ask", "Which service?", ".", "--runs-dir", victim.own, "--max-wall-time-sec", "3")

    assert done.returncode == 0, done.stderr
    assert "(was not read: the run had to end)" in done.stdout
