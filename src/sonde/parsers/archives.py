"""Compressed files and the members of zip and tar archives; by the standard library, and zstandard for zst before Python 3.14.

An archive of a few kilobytes may say gigabytes, so every member and all together have a limit, and reading stops there. Nothing is written
anywhere. Links, devices and archives within an archive are named, not followed. Names are the archive's own words; the caller
cleans them.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import itertools
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Generator, Iterator
from importlib import import_module
from typing import IO, Any, BinaryIO, cast

from sonde.parsers import PACKED, BadDocument

CHUNK = 1 << 20
SAMPLE = 1 << 16
NESTED = (*PACKED, b"PK\x03\x04", b"Rar!", b"7z\xbc\xaf")
BINARY, ENCRYPTED, NESTED_ONE, LINK, FOLDER = "binary", "encrypted", "an archive", "a link or device", "a folder"
TOO_LARGE, TOO_MUCH, TOO_MANY, DAMAGED = "too large", "over the limit", "one too many", "damaged"

zstd: Any = None
zstandard: Any = None
with contextlib.suppress(ImportError):  # Python 3.14, unless it was built without
    zstd = import_module("compression.zstd")
with contextlib.suppress(ImportError):
    zstandard = import_module("zstandard")

Member = tuple[int, str, str, bytes]
"""Its number, its name, why it is not read (empty if it is), and some of its bytes."""


def read(document: BinaryIO, *, form: str, most: int, together: int, members: int) -> Iterator[Member]:
    """The members of a `zip` or `tar`, each in pieces; a `file` has one, without a name.

    `most` bytes are read of one member and `together` of all; of more than `members`, or as many folders, the rest is not looked at.
    """
    try:
        if form == "file":
            yield from ((0, "", "", piece) for piece in _pieces(_decompressed(document), most))
        else:
            yield from _members(document, form, most, together, members)
    except OverflowError:
        raise BadDocument("it is larger than that when unpacked") from None
    except EOFError:
        raise BadDocument("it ends too early") from None
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, OSError):
        raise BadDocument("it is damaged") from None


def _members(document: BinaryIO, form: str, most: int, together: int, members: int) -> Iterator[Member]:
    found = _zip_members(document) if form == "zip" else _tar_members(_decompressed(document))
    number, folders = -1, 0
    for raw, refusal, content in found:
        name = raw.encode("utf-8", "replace").decode()
        if refusal == FOLDER:
            folders += 1
        else:
            number += 1
        if number == members or folders > members:
            yield number + 1, name, TOO_MANY, b""
            return
        if refusal == FOLDER:
            continue
        if content is None:
            yield number, name, refusal, b""
            continue
        over = TOO_LARGE if most <= together else TOO_MUCH
        try:
            sample = content.read(SAMPLE)
            if sample.startswith(NESTED) or _is_binary(sample):
                yield number, name, NESTED_ONE if sample.startswith(NESTED) else BINARY, b""
                continue
            for piece in itertools.chain([sample], _pieces(content, min(most, together) - len(sample))):
                together -= len(piece)
                yield number, name, "", piece
        except OverflowError:
            yield number, name, over, b""
        except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError, RuntimeError):
            yield number, name, DAMAGED, b""


def _zip_members(document: BinaryIO) -> Iterator[tuple[str, str, IO[bytes] | None]]:
    with zipfile.ZipFile(document) as archive:
        for info in archive.infolist():
            if info.is_dir():
                yield info.filename, FOLDER, None
            elif info.flag_bits & 1:
                yield info.filename, ENCRYPTED, None
            elif (info.external_attr >> 16) & 0o170000 not in (0, 0o100000):
                yield info.filename, LINK, None
            else:
                try:
                    content = archive.open(info)
                except (zipfile.BadZipFile, NotImplementedError, OSError, RuntimeError):
                    yield info.filename, DAMAGED, None
                    continue
                with content:
                    yield info.filename, "", content


def _tar_members(stream: IO[bytes]) -> Iterator[tuple[str, str, IO[bytes] | None]]:
    with _header_of_tar():
        opened = tarfile.open(fileobj=stream, mode="r|", errorlevel=2)  # noqa: SIM115 - closed below
    with opened as archive:
        while True:
            with _header_of_tar():
                info = archive.next()
            if info is None:
                return
            cast("Any", archive).members = []  # it would keep every header
            if info.isreg():
                yield info.name, "", archive.extractfile(info)
            else:
                yield info.name, FOLDER if info.isdir() else LINK, None


@contextlib.contextmanager
def _header_of_tar() -> Generator[None]:
    """What tarfile raises for a header that makes no sense becomes a BadDocument."""
    try:
        yield
    except (ValueError, TypeError, IndexError, KeyError, ArithmeticError) as error:  # tarfile trusts numbers in headers
        raise BadDocument("it is not a readable tar: a header makes no sense") from error


def _decompressed(document: BinaryIO) -> IO[bytes]:
    head = document.read(6)
    document.seek(0)
    match next((kind for magic, kind in PACKED.items() if head.startswith(magic)), ""):
        case "gzip":
            return cast("IO[bytes]", gzip.GzipFile(fileobj=document))
        case "bzip2":
            return bz2.BZ2File(document)
        case "xz":
            return lzma.LZMAFile(document)
        case "zstd" if zstd:
            return zstd.ZstdFile(document)
        case "zstd" if zstandard:
            return zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(document, read_across_frames=True)
        case "zstd":
            raise BadDocument("reading zst needs the package zstandard: pip install zstandard")
        case _:
            return document


def _pieces(content: IO[bytes], most: int) -> Iterator[bytes]:
    """All of it; OverflowError as soon as it is more than it may be."""
    while piece := content.read(CHUNK):
        most -= len(piece)
        if most < 0:
            raise OverflowError
        yield piece


def _is_binary(sample: bytes) -> bool:
    return b"\0" in sample and not sample.startswith((b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff"))
