"""A PDF of two kilobytes whose thirty pages share one compressed stream: reading it must not outlast the run that reads it."""

from __future__ import annotations

import zlib

import pytest
from victim import Victim

PAGES = 30
TEXT_OPERATORS = 200_000


def bomb() -> bytes:
    """Thirty pages, one stream that unpacks to a thousand times its size."""
    packed = zlib.compress(zlib.compress(b"BT /F1 12 Tf (aaaaaaaaaa) Tj ET\n" * TEXT_OPERATORS, 9), 9)
    kids = " ".join(f"{n + 5} 0 R" for n in range(PAGES))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {PAGES} >>".encode(),
        b"<< /Length %d /Filter [/FlateDecode /FlateDecode] >>\nstream\n%s\nendstream" % (len(packed), packed),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        *[b"<< /Type /Page /Parent 2 0 R /Contents 3 0 R /Resources << /Font << /F1 4 0 R >> >> /MediaBox [0 0 9 9] >>"]
        * PAGES,
    ]
    out, places = b"%PDF-1.4\n", list[int]()
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    head = b"xref\n0 %d\n0000000000 65535 f \n%s" % (len(objects) + 1, table)
    return out + head + b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, len(out))


@pytest.mark.hostile_long
def test_a_small_pdf_does_not_hold_a_run(victim: Victim) -> None:
    victim.write("report.pdf", bomb())
    victim.write("notes.txt", "the service is payments\n")

    done = victim.sonde("ask", "Which service?", ".", "--runs-dir", victim.own, "--max-wall-time-sec", "3")

    assert done.returncode == 0, done.stderr
    assert "payments" in done.stdout
    assert "left out: report.pdf (was still being read when the run had to end)" in done.stdout


@pytest.mark.hostile_long
def test_a_document_that_takes_too_long_is_left_out_and_the_rest_is_read(victim: Victim) -> None:
    victim.write("report.pdf", bomb())
    victim.write("notes.txt", "the service is payments\n")

    done = victim.sonde("ask", "Which service?", ".", "--runs-dir", victim.own)

    assert done.returncode == 0, done.stderr
    assert "payments" in done.stdout
    assert "left out: report.pdf (took longer than 10 s to read)" in done.stdout
