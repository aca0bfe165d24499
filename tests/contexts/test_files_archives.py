"""Compressed files are read like the text in them, within limits."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest
from files_support import call, proved, write

from sonde.contexts.files.text import EXPANDED_FREELY
from sonde.errors import ToolFault

LOG = "".join(f"{n} payments retried\n" for n in range(1, 500)) + "500 ledger refused the connection\n"


@pytest.mark.parametrize(
    ("suffix", "pack"), [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)], ids=["gz", "bz2", "xz"]
)
def test_a_compressed_log_is_searched_read_and_cited_by_its_lines(
    tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]
) -> None:
    context = write(tmp_path, {f"app.log.{suffix}": pack(LOG.encode())})

    found = call(context, "grep", "refused")
    read = call(context, "read_file", f"app.log.{suffix}", 499, 500)
    ranked = call(context, "search", "ledger refused", limit=1)

    assert found.result == [{"path": f"app.log.{suffix}", "line": 500, "text": "500 ledger refused the connection"}]
    assert read.result == "499 payments retried\n500 ledger refused the connection"
    assert ranked.result[0]["end_line"] == 500
    assert proved(context, found)
    assert proved(context, read)
    assert context.shared() == {"CONTEXT": {f"app.log.{suffix}": LOG}}


def test_what_is_in_a_compressed_file_may_be_utf_16_or_no_text_at_all(tmp_path: Path) -> None:
    context = write(
        tmp_path,
        {"a.txt.gz": gzip.compress("grüße\n".encode("utf-16")), "core.gz": gzip.compress(bytes(range(256)) * 9)},
    )

    assert call(context, "read_file", "a.txt.gz").result == "grüße"
    with pytest.raises(ToolFault, match=r"core\.gz is binary"):
        call(context, "read_file", "core.gz")


def test_a_file_that_expands_beyond_measure_or_is_damaged_is_left_out_by_name(tmp_path: Path) -> None:
    context = write(
        tmp_path,
        {
            "zeros.gz": gzip.compress(b"0\n" * EXPANDED_FREELY),
            "cut.gz": gzip.compress(LOG.encode())[:-20],
            "app.log": "ledger refused the connection\n",
        },
    )

    found = call(context, "grep", "refused")

    assert [row["path"] for row in found.result] == ["app.log"]
    assert set(context.left_out) == {"zeros.gz", "cut.gz"}
    assert "larger" in context.left_out["zeros.gz"]
