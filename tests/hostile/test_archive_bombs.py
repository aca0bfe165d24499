"""Archives of a stranger: bombs, names that lead out, links, escapes. The rest of the folder is read, and nothing leaves the archive."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
import zlib

import pytest
from victim import Victim


def ask(victim: Victim) -> str:
    victim.write("notes.txt", "the service is payments\n")
    done = victim.sonde("ask", "Which service?", ".", "--runs-dir", victim.own)
    assert done.returncode == 0, done.stderr
    assert "payments" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    return done.stdout + done.stderr


def gz_of_zeros(megabytes: int) -> bytes:
    """Made without ever holding the zeros."""
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(megabytes)) + packer.flush()


@pytest.mark.hostile_long
def test_a_gigabyte_of_zeros_in_a_gz_is_left_out_by_name(victim: Victim) -> None:
    victim.write("app.log.gz", gz_of_zeros(1024))

    assert "left out: app.log.gz" in ask(victim)


def test_a_zip_whose_members_share_one_bomb_costs_no_more_than_its_limit(victim: Victim) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.txt", b"0\n" * 20_000_000)
        for number in range(2000):  # each points at the bytes of the first
            info = zipfile.ZipInfo(f"{number}.txt")
            first = archive.infolist()[0]
            info.__setattr__("header_offset", first.header_offset)
            for name in ("CRC", "compress_size", "file_size", "compress_type"):
                setattr(info, name, getattr(first, name))
            archive.filelist.append(info)
    victim.write("logs.zip", file.getvalue())

    assert "in an archive" in ask(victim)


@pytest.mark.hostile_long
def test_a_tar_whose_header_makes_no_sense_is_left_out_with_words(victim: Victim) -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("service.txt")
        info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(1 << 50)}
        archive.addfile(info)
    victim.write("logs.tar", file.getvalue())

    told = ask(victim)

    assert "left out: logs.tar" in told
    assert "not a readable tar" in told


@pytest.mark.hostile_long
def test_links_and_names_in_a_tar_lead_nowhere(victim: Victim) -> None:
    (victim.home / "secret.txt").write_text("hush-hush\n")
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, kind in (("up", tarfile.SYMTYPE), ("hard", tarfile.LNKTYPE), ("null", tarfile.CHRTYPE)):
            info = tarfile.TarInfo(f"service-{name}.txt")
            info.type, info.linkname = kind, str(victim.home / "secret.txt")
            archive.addfile(info)
        for name in ("../../home/it-ran", str(victim.marker), "service\x1b]0;owned\x07.txt"):
            info = tarfile.TarInfo(name)
            info.size = 8
            archive.addfile(info, io.BytesIO(b"service\n"))
    victim.write("logs.tar.gz", gzip.compress(file.getvalue()))

    said = ask(victim)

    assert "hush-hush" not in said
    assert "3 × a link or device in an archive" in said
    assert not victim.marker.exists()
