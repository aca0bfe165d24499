"""Notebooks, compressed files and the members of archives are read like the text in them, within limits."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import tarfile
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import pytest
from files_support import call, proved, write

from sonde.contexts.files import FilesContext
from sonde.contexts.files.about import left_out
from sonde.contexts.files.text import EXPANDED_FREELY, MEMBERS
from sonde.errors import ToolFault

LOG = "".join(f"{n} payments retried\n" for n in range(1, 500)) + "500 ledger refused the connection\n"


def zipped(members: dict[str, str | bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def tarred(members: dict[str, str | tarfile.TarInfo], mode: str = "w") -> bytes:
    file = io.BytesIO()
    archive: tarfile.TarFile
    with tarfile.open(fileobj=file, mode=cast("Any", mode)) as archive:
        for name, content in members.items():
            if isinstance(content, tarfile.TarInfo):
                content.name = name
                archive.addfile(content)
            else:
                info = tarfile.TarInfo(name)
                info.size = len(content.encode())
                archive.addfile(info, io.BytesIO(content.encode()))
    return file.getvalue()


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


@pytest.mark.parametrize(
    ("name", "packed"),
    [
        ("logs.zip", zipped({"day/app.log": LOG, "logo.png": b"\x89PNG\0"})),
        ("logs.tar", tarred({"day/app.log": LOG})),
        ("logs.tar.gz", tarred({"day/app.log": LOG}, "w:gz")),
        ("logs.tgz", tarred({"day/app.log": LOG}, "w:gz")),
        ("logs.tar.bz2", tarred({"day/app.log": LOG}, "w:bz2")),
        ("logs.tar.xz", tarred({"day/app.log": LOG}, "w:xz")),
    ],
    ids=["zip", "tar", "tar.gz", "tgz", "tar.bz2", "tar.xz"],
)
def test_members_of_an_archive_are_files_below_its_name(tmp_path: Path, name: str, packed: bytes) -> None:
    context = write(tmp_path, {name: packed})

    found = call(context, "grep", "refused", path=name)
    read = call(context, "read_file", f"{name}/day/app.log", 500)

    assert f"{name}/day/app.log" in call(context, "list_files").result
    assert found.result == [{"path": f"{name}/day/app.log", "line": 500, "text": "500 ledger refused the connection"}]
    assert read.result == "500 ledger refused the connection"
    assert proved(context, found)
    assert proved(context, read)
    assert context.shared() == {"CONTEXT": {f"{name}/day/app.log": LOG}}


def test_a_citation_of_a_member_no_longer_holds_when_its_archive_changes(tmp_path: Path) -> None:
    context = write(tmp_path, {"logs.zip": zipped({"app.log": LOG})})
    read = call(context, "read_file", "logs.zip/app.log", 500)

    write(tmp_path, {"logs.zip": zipped({"app.log": LOG.replace("ledger", "nobody")})})

    assert not proved(context, read)


def test_an_archive_that_the_user_names_is_opened_too(tmp_path: Path) -> None:
    write(tmp_path, {"logs.zip": zipped({"app.log": LOG})})

    context = FilesContext(tmp_path / "logs.zip")

    assert call(context, "list_files").result == ["logs.zip/app.log"]


def test_names_of_members_lead_nowhere_and_move_no_cursor(tmp_path: Path) -> None:
    names = ["../../etc/passwd", "/etc/shadow.txt", "a\x1b[2Jb.txt", "..\\up.txt", "./x//y.txt", "n" * 2000]
    context = write(tmp_path, {"odd.tar": tarred(dict.fromkeys(names, "words\n"))})

    listed = call(context, "list_files").result

    assert listed == [
        "odd.tar/a\N{REPLACEMENT CHARACTER}[2Jb.txt",
        "odd.tar/etc/passwd",
        "odd.tar/etc/shadow.txt",
        "odd.tar/unnamed 5",
        "odd.tar/up.txt",
        "odd.tar/x/y.txt",
    ]
    assert all(call(context, "read_file", name).result == "words" for name in listed)


def test_secrets_links_devices_and_archives_in_an_archive_are_left_out_and_told_in_one_line(tmp_path: Path) -> None:
    link, device = tarfile.TarInfo(), tarfile.TarInfo()
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    device.type = tarfile.CHRTYPE
    members = {"passwd": link, "null": device, ".env": "KEY=hush\n", "node_modules/a.js": "x", "a.txt": "words\n"}
    context = write(
        tmp_path, {"a.tar": tarred(members), "b.zip": zipped({"in.zip": zipped({"x": "y"}), "k/id_rsa": "z"})}
    )

    assert call(context, "list_files").result == ["a.tar/a.txt"]
    assert left_out(context.library.listing) == (
        "2 secrets (.env, id_rsa), folder node_modules, 2 × a link or device in an archive, 1 × an archive in an archive"
    )


def test_an_encrypted_member_is_told_and_the_others_are_read(tmp_path: Path) -> None:
    packed = bytearray(zipped({"a.txt": "words\n", "b.txt": "more\n"}))
    second = packed.rindex(b"PK\x01\x02")
    packed[second + 8] |= 1  # its flag in the central directory
    context = write(tmp_path, {"a.zip": bytes(packed)})

    assert call(context, "list_files").result == ["a.zip/a.txt"]
    assert context.library.listing.refused == {"a.zip/b.txt": "encrypted in an archive"}


def test_of_members_with_one_name_the_last_is_read(tmp_path: Path) -> None:
    context = write(tmp_path, {"a.tar": tarred({"x.txt": "old\n", "./x.txt": "new\n"})})

    assert call(context, "read_file", "a.tar/x.txt").result == "new"


@pytest.mark.long
def test_an_archive_over_a_limit_is_read_up_to_it_and_named(tmp_path: Path) -> None:
    many = zipped({f"{n}.txt": "words\n" for n in range(MEMBERS + 1)})
    bomb = zipped({"bomb.txt": b"0\n" * EXPANDED_FREELY, "a.txt": "words\n"})
    context = write(tmp_path, {"many.zip": many, "bomb.zip": bomb, "broken.zip": b"PK\x03\x04 and nothing more"})

    listed = call(context, "list_files").result

    assert len(listed) == MEMBERS + 2
    assert {"bomb.zip/a.txt", "broken.zip"} < set(listed)
    assert context.left_out["many.zip"] == "has more than 10,000 members; the members before are read"
    assert "cannot be read" in context.left_out["broken.zip"]
    assert "bomb.zip/bomb.txt" in context.library.listing.refused


def test_a_notebook_is_read_cell_by_cell_with_what_its_outputs_say(tmp_path: Path) -> None:
    picture = {"output_type": "display_data", "data": {"image/png": "iVBORw0KGgo"}}
    cells = [
        {"cell_type": "markdown", "source": ["# Harbour\n", "Ships by day"]},
        {
            "cell_type": "code",
            "source": "print(ships)",
            "outputs": [{"output_type": "stream", "text": ["42\n"]}, picture],
        },
    ]
    context = write(tmp_path, {"a.ipynb": json.dumps({"cells": cells}), "broken.ipynb": '{"cells": 1}'})

    read = call(context, "read_file", "a.ipynb")

    assert read.result == (
        "[cell 1, markdown]\n# Harbour\nShips by day\n[cell 2, code]\nprint(ships)\n[output of cell 2]\n42"
    )
    assert proved(context, read)
    assert call(context, "read_file", "broken.ipynb").result == '{"cells": 1}'


@pytest.mark.skipif(any(map(find_spec, ("zstandard", "compression"))), reason="zst is read here")
def test_without_a_decoder_a_zst_is_told_with_what_to_install(tmp_path: Path) -> None:
    context = write(tmp_path, {"app.log.zst": b"\x28\xb5\x2f\xfd and so on"})

    assert left_out(context.library.listing) == "1 zst (pip install zstandard)"
    with pytest.raises(ToolFault, match="pip install zstandard"):
        call(context, "read_file", "app.log.zst")
