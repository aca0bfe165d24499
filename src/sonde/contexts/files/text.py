"""The bytes of one text, opened so that nothing but the listed file is ever read.

`open_text` refuses what is no longer the listed file (a symlink put in its place, a pipe, a folder that now leads elsewhere) and what
is not text. UTF-8 is read as it is, without a byte-order mark, stray bytes shown as U+FFFD. UTF-16 and UTF-32 need their byte-order
mark. Other text is read as Latin-1. PDF, office files, notebooks, web pages, gzip, bzip2, xz and zstd are read in a confined process.
Files are read, never mapped: a mapped log that is truncated kills the process that reads it.
"""

from __future__ import annotations

import codecs
import errno
import importlib.util
import itertools
import os
import posixpath
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from sonde.contexts.files.file_list import Entry
from sonde.core.canonical import clip
from sonde.core.deadline import deadline_in_force
from sonde.disk import NotPlain, open_exactly, read_at
from sonde.errors import ToolFault, how_to_install
from sonde.parsers import PACKED
from sonde.parsers.documents import ParserLimits, Refused, Unparsed, parse

SAMPLE = 65_536
SQLITE, _SQLITE_HEAD = "a SQLite database", b"SQLite format 3\0"
EXPORT_IT = "export the tables to CSV, or use --source if it holds traces"
_FIRST_BYTES = 4096
_TRANSCODED_BYTES = 64_000_000
DOCUMENT_SECONDS = 10
DOCUMENT_BYTES_PER_S = 500_000
"""A document may take ten seconds of processor time, and one more for every half megabyte."""
OFFICE_KINDS = {
    ".docx": "office",
    ".xlsx": "office",
    ".pptx": "presentation",
    ".odt": "opendocument",
    ".ods": "opendocument",
    ".odp": "opendocument",
}
"""Which parser reads an office file; those of `office` need the extra of that name."""
PAGE_SUFFIXES = (".html", ".htm", ".xhtml")
_ZIP, _OLD_OFFICE = b"PK\x03\x04", b"\xd0\xcf\x11\xe0"
UNPACKED_BYTES = 128_000_000
MAX_EXPANSION = 200
EXPANDED_FREELY = 16_000_000
"""What is compressed may unpack to 128 MB, and to no more than 200 times its size if that is over 16 MB."""
MEMBER_BYTES = 64_000_000
MEMBERS = 10_000
_LONGEST_NAME = 1000
_NAMED_BYTES = 200
UNPACK_SECONDS = 20
MemberPiece = tuple[int, str, str, bytes]
"""The number of a member, its name, why it is not read, and some of its bytes."""
_STEP = 1_048_576
_CHECKED_BYTES = 2 * _STEP
_CONTINUATIONS = bytes(range(0x80, 0xC0))
_CONTROLS = bytes(set(range(32)) - set(b"\t\n\v\f\r\b\x1b")) + b"\x7f"
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


class Unreadable(ToolFault):
    """A listed file that cannot be read as text; the message says why."""


class NotText(Unreadable):
    """It is binary: searches of everything skip it silently."""


class LeftOut(Unreadable):
    """It is over a limit of its parser, or cannot be parsed safely: the user hears of it. `why` goes on from its name."""

    def __init__(self, message: str, why: str) -> None:
        super().__init__(message)
        self.why = why


class Text:
    """Bytes with an encoding in which a newline is one byte; `start` is where they begin after a byte-order mark."""

    def __init__(
        self, *, size: int, encoding: str, label: str, start: int = 0, head: bytes = b"", fd: int | None = None
    ) -> None:
        self.size = size
        self.encoding = encoding
        self.label = label
        self.start = start
        self._head = head
        self._fd = fd
        self._unchecked = 0
        self._since: float | None = None

    @classmethod
    def of_bytes(cls, data: bytes, label: str = "utf-8") -> Text:
        """Text in memory, as UTF-8."""
        start = 3 if data.startswith(codecs.BOM_UTF8) else 0
        return cls(size=len(data), encoding="utf-8", label=label, start=start, head=data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def in_memory(self) -> bool:
        """Whether it needs no open file."""
        return self._fd is None

    def close(self) -> None:
        """Give the file back."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset`; fewer if the file has become shorter. LeftOut if the run had to end since much was read:
        this is where every pass over a large file notices it.
        """
        end = min(offset + length, self.size)
        if end <= len(self._head) or self._fd is None:
            return self._head[offset:end]
        self._notice_the_end(end - offset)
        parts: list[bytes] = []
        while offset < end:
            part = read_at(self._fd, end - offset, offset)
            if not part:
                break
            parts.append(part)
            offset += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _notice_the_end(self, wanted: int) -> None:
        """Look at the run's deadline and its stop after each so many bytes; the first ones never end a run, so short texts are read."""
        run = deadline_in_force()
        if run is None:
            return
        if self._since is None:
            self._since = run.clock.now()
        if self._unchecked > _CHECKED_BYTES:
            self._unchecked = 0
            try:
                self._since = run.check(self._since, "was still being read")
            except ToolFault as over:
                raise LeftOut(f"the file {over.message}.", over.message) from None
        self._unchecked += wanted

    def is_plain(self) -> bool:
        """Whether its file can be mapped as it is: UTF-8 to the last byte, without a byte-order mark."""
        if self.in_memory or self.encoding != "utf-8" or self.start:
            return False
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            for offset in range(0, self.size, _STEP):
                decoder.decode(self.read(offset, _STEP))
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return False
        return True

    def count_characters(self) -> int:
        """How many characters there are, counted without decoding them."""
        if self.encoding != "utf-8":
            return self.size - self.start
        blocks = (self.read(offset, _STEP) for offset in range(self.start, self.size, _STEP))
        return sum(len(block) if block.isascii() else len(block.translate(None, _CONTINUATIONS)) for block in blocks)

    def decode(self, data: bytes) -> str:
        """Bytes of this text as characters, with a newline for every line end."""
        return data.decode(self.encoding, "replace").replace("\r\n", "\n")

    def utf8(self, data: bytes) -> bytes:
        """Bytes of this text as UTF-8, with a newline for every line end."""
        if self.encoding != "utf-8":
            data = data.decode(self.encoding).encode()
        return data.replace(b"\r\n", b"\n") if b"\r" in data else data


def open_text(entry: Entry, *, without: str = "", as_it_is: bool = False) -> Text:
    """The text of a listed file; Unreadable says why it has none. Close it, or use it in a `with`.

    `without` is the layer that the parsers of documents may lack; `as_it_is` converts no web
    page and no notebook. Web pages in a git repository are never converted.
    """
    fd = _opened(entry)
    try:
        size, head = os.fstat(fd).st_size, read_at(fd, SAMPLE, 0)
        as_it_is = as_it_is or (entry.path.lower().endswith(PAGE_SUFFIXES) and in_repository(entry.real))
        text = document_text(entry.path, fd, size, head, without=without, as_it_is=as_it_is)
        if text is None and (packing := next((kind for magic, kind in PACKED.items() if head.startswith(magic)), "")):
            head = _unpacked(fd, size, packing, without=without)
            text = _decoded(head, len(head), None)
        text = text or _decoded(head, size, fd)
    except OSError as error:
        os.close(fd)
        raise Unreadable(f"{entry.path} cannot be read: {error.strerror}.") from None
    except LeftOut as reason:
        os.close(fd)
        raise LeftOut(f"{entry.path} is {reason.message}", reason.why) from None
    except Unreadable as reason:
        os.close(fd)
        raise type(reason)(f"{entry.path} is {reason.message}") from None
    if text.in_memory:
        os.close(fd)
    return text


def binary_kind(entry: Entry) -> str:
    """What a file is if its first bytes say that it is neither text nor something that is made text; empty if they do not."""
    try:
        fd = open_exactly(entry.real)
    except OSError:
        return ""  # whoever reads it says why
    try:
        head = read_at(fd, _FIRST_BYTES, 0)
    except OSError:
        return ""
    finally:
        os.close(fd)
    if head.startswith(_SQLITE_HEAD):
        return SQLITE
    office = posixpath.splitext(entry.path)[1].lower() in OFFICE_KINDS and head.startswith((_ZIP, _OLD_OFFICE))
    made_text = office or head.startswith((b"%PDF-", *PACKED, *(mark for mark, _ in _MARKS)))
    return "binary" if b"\0" in head and not made_text else ""


def in_repository(real: str) -> bool:
    """Whether a file lies below a folder with `.git`."""
    return any((folder / ".git").exists() for folder in Path(real).parents)


def _opened(entry: Entry) -> int:
    try:
        fd = open_exactly(entry.real)
    except OSError as error:
        if isinstance(error, NotPlain | IsADirectoryError) or error.errno == errno.ELOOP:
            gone = f"{entry.path} is no longer the file that was listed: something else is in its place."
            raise Unreadable(gone) from None
        raise Unreadable(f"{entry.path} cannot be opened: {error.strerror}.") from None
    return fd


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """The members of an archive by name, None for binary ones; which others are not read and why; and why there may be more."""

    members: Mapping[str, bytes | None]
    refused: Mapping[str, str]
    cut: str

    @property
    def size(self) -> int:
        """Bytes of all texts together, and what their names take: a member may be empty and its name long."""
        return sum(len(data or b"") for data in self.members.values()) + self.names

    @property
    def names(self) -> int:
        """What the names of all members take in a listing, about."""
        return sum(len(name) + _NAMED_BYTES for name in itertools.chain(self.members, self.refused))

    def open(self, entry: Entry, *, without: str = "", as_it_is: bool = False) -> Text:
        """The text of a member; Unreadable says why it has none. The keywords are those of `open_text`."""
        if entry.member not in self.members:
            raise Unreadable(f"{entry.path} is no longer in its archive.")
        data = self.members[entry.member]
        if data is None:
            raise NotText(f"{entry.path} is binary, so it is listed but not read.")
        try:
            document = document_text(entry.member, data, len(data), data[:SAMPLE], without=without, as_it_is=as_it_is)
            return document or _decoded(data, len(data), None)
        except Unreadable as reason:
            raise type(reason)(f"{entry.path} is {reason.message}") from None


def open_archive(entry: Entry, *, without: str = "") -> Archive:
    """All members of a zip or tar, within limits; of several with one name the last, as when it is unpacked.

    LeftOut if none can be read.
    """
    fd = _opened(entry)
    members: dict[str, bytearray | None] = {}
    refused: dict[str, str] = {}
    cut, latest, current = "", -1, ""
    try:
        size = os.fstat(fd).st_size
        most = min(UNPACKED_BYTES, max(EXPANDED_FREELY, MAX_EXPANSION * size))
        limits = ParserLimits(cpu_s=UNPACK_SECONDS, output_bytes=2 * UNPACKED_BYTES)  # names count too
        form = "zip" if entry.real.lower().endswith(".zip") else "tar"
        options = {"form": form, "most": MEMBER_BYTES, "together": most, "members": MEMBERS}
        for number, name, why, piece in parse("archive", fd, MemberPiece, limits, without=without, **options):
            if number != latest:
                latest, current = number, member_name(name) or f"unnamed {number}"
                if why == "one too many" or len(members) + len(refused) >= MEMBERS:
                    cut, current = f"has more than {MEMBERS:,} members", ""
                    break
                members[current] = bytearray()
                refused.pop(current, None)
            data = members.get(current)
            if why == "binary":
                members[current] = None
            elif why:
                members.pop(current, None)
                refused[current] = clip(why, 100)
            elif data is not None:
                data += piece
    except Unparsed as reason:
        cut = f"cannot be read: {reason}" if isinstance(reason, Refused) else str(reason)
        members.pop(current, None)  # only its beginning is there
    except OSError as error:
        cut = f"cannot be read: {error.strerror}"
    finally:
        os.close(fd)
    if cut and not members:
        raise LeftOut(f"{entry.path} {cut}.", cut)
    kept = {name: data if data is None else bytes(data) for name, data in members.items()}
    return Archive(members=kept, refused=refused, cut=cut)


def member_name(raw: str) -> str:
    """What a member is called here: without what leads up or out, on one line; empty if nothing sensible is left."""
    name = "/".join(part for part in raw.replace("\\", "/").split("/") if part not in ("", ".", ".."))
    if len(name) > _LONGEST_NAME:
        return ""
    if name.isprintable():
        return name
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in name)


def signature(entry: Entry) -> tuple[str, str, int, int, int] | None:
    """What changes with the file, for caches; None if it is gone or in memory."""
    try:
        state = os.lstat(entry.real)
    except (OSError, ValueError):
        return None
    return entry.real, entry.member, state.st_size, state.st_mtime_ns, state.st_ctime_ns


def _decoded(head: bytes, size: int, fd: int | None) -> Text:
    """The text of an open file with this beginning, or of these bytes."""
    sample = head[:SAMPLE]
    for mark, encoding in _MARKS:
        if sample.startswith(mark):
            if size > _TRANSCODED_BYTES:
                raise Unreadable(
                    f"{encoding} of {size:,} bytes; at most {_TRANSCODED_BYTES:,} are converted. Convert it to UTF-8 text first."
                )
            data = head
            if fd is not None:
                with os.fdopen(os.dup(fd), "rb") as file:
                    file.seek(0)
                    data = file.read()
            try:
                return Text.of_bytes(data.decode(encoding).encode(), encoding)
            except UnicodeError as error:
                raise Unreadable(f"not valid {encoding} ({error}), so it is listed but not read.") from None
    zero = sample.find(b"\0")
    if sample.startswith(_SQLITE_HEAD):
        raise NotText(f"{SQLITE}, so it is listed but not read: {EXPORT_IT}.")
    if zero >= 0:
        raise NotText(f"binary (a zero byte at offset {zero:,}), so it is listed but not read.")
    controls = len(sample) - len(sample.translate(None, _CONTROLS))
    if controls * 20 > len(sample):
        raise Unreadable(
            f"binary ({controls:,} control bytes in the first {len(sample):,}), so it is listed but not read."
        )
    start = 3 if sample.startswith(codecs.BOM_UTF8) else 0
    encoding = label = "utf-8"
    if not sample.isascii():  # with more broken than sound UTF-8 it is read as Latin-1, which accepts any bytes
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(sample, final=len(sample) < SAMPLE)
        broken = text.count("\N{REPLACEMENT CHARACTER}")
        sound = len(text) - len(text.encode("ascii", "ignore")) - broken
        if broken > sound:
            encoding, label = "latin-1", "latin-1 (not UTF-8)"
        elif broken:
            label = "utf-8 with stray bytes"
    return Text(size=size, encoding=encoding, label=label, start=start, head=head, fd=fd)


def _unpacked(fd: int, size: int, packing: str, *, without: str) -> bytes:
    most = min(UNPACKED_BYTES, max(EXPANDED_FREELY, MAX_EXPANSION * size))
    limits = ParserLimits(cpu_s=UNPACK_SECONDS, output_bytes=most + (1 << 20))
    options = {"form": "file", "most": most, "together": most, "members": 1}
    data = bytearray()
    try:
        for _, _, _, piece in parse("archive", fd, MemberPiece, limits, without=without, **options):
            data += piece
    except Refused as broken:
        raise LeftOut(
            f"{packing} that cannot be read ({broken}).", f"{packing} that cannot be read: {broken}"
        ) from None
    except Unparsed as reason:
        raise LeftOut(f"{packing} that {reason}.", str(reason)) from None
    return bytes(data)


def is_installed(extra: str) -> bool:
    """Whether the packages of the extra `pdf` or `office` are here."""
    return all(map(importlib.util.find_spec, {"pdf": ("pypdf",), "office": ("mammoth", "python_calamine")}[extra]))


def document_text(
    name: str, file: int | bytes, size: int, head: bytes, *, without: str = "", as_it_is: bool = False
) -> Text | None:
    """The text of a PDF, an office file, a notebook or a web page; None if it is something else, to be read as it is.

    Unreadable says why a PDF or office file has no text. A notebook or page that is broken, a template or over a limit is read as it is.
    """
    suffix = posixpath.splitext(name)[1].lower()
    extra, options = "", dict[str, object]()
    if head.startswith(b"%PDF-"):
        kind, called, extra = "pdf", "a PDF", "pdf"
    elif suffix in OFFICE_KINDS and head.startswith((_ZIP, _OLD_OFFICE)):
        kind, called = OFFICE_KINDS[suffix], f"{'an' if suffix[1] in 'ox' else 'a'} {suffix[1:]}"
        options["most"] = min(2 * UNPACKED_BYTES, max(EXPANDED_FREELY, MAX_EXPANSION * size))
        if kind == "office":
            extra, options["form"] = "office", suffix[1:]
    elif suffix in (*PAGE_SUFFIXES, ".ipynb") and not as_it_is:
        kind, called = ("notebook", "a notebook") if suffix == ".ipynb" else ("web", "a web page")
    else:
        return None
    is_markup = kind in ("notebook", "web")
    if size > _TRANSCODED_BYTES and is_markup:
        return None
    if size > _TRANSCODED_BYTES:
        raise Unreadable(
            f"{called} of {size:,} bytes; at most {_TRANSCODED_BYTES:,} are read. Convert it to text first."
        )
    if head.startswith(_OLD_OFFICE):
        raise Unreadable(f"{called} with a password or of an old format; save it as {suffix} without a password.")
    if extra and not is_installed(extra):
        raise Unreadable(f"{called}, which needs the extra {extra}: {how_to_install(extra)}.")
    limits = ParserLimits(cpu_s=DOCUMENT_SECONDS + size // DOCUMENT_BYTES_PER_S, output_bytes=_TRANSCODED_BYTES)
    try:
        parts = list(parse(kind, file, str, limits, without=without, **options))
    except Unparsed as reason:
        if is_markup:
            return None
        if isinstance(reason, Refused):
            raise LeftOut(f"{called} that cannot be read ({reason}).", f"cannot be read: {reason}") from None
        raise LeftOut(f"{called} that {reason}.", str(reason)) from None
    if kind == "pdf":
        parts = [f"[page {number}]\n{text}" for number, text in enumerate(parts, 1)]
    return Text.of_bytes("\n".join(parts).encode("utf-8", "replace"), kind)


BLOCK = 262_144
LINES_BYTES = 16_000_000


@dataclass(frozen=True, slots=True)
class LineIndex:
    """How many line ends come before each block, and how many lines there are: 32 bytes for every 256 KiB of text."""

    before: tuple[int, ...]
    total: int

    @classmethod
    def of(cls, text: Text) -> LineIndex:
        """One pass over the text, counting."""
        before, seen, last = [0], 0, b"\n"
        for offset in range(text.start, text.size, BLOCK):
            block = text.read(offset, BLOCK)
            seen += block.count(b"\n")
            before.append(seen)
            last = block[-1:] or last
        return cls(tuple(before), seen + (last != b"\n"))

    def offset(self, text: Text, line: int) -> int:
        """The byte at which a line begins; the end of the text for the line after the last."""
        wanted = line - 1
        if wanted <= 0:
            return text.start
        if wanted > self.before[-1]:
            return text.size
        number = bisect_left(self.before, wanted) - 1
        block = text.read(text.start + number * BLOCK, BLOCK)
        rest = block.split(b"\n", wanted - self.before[number])[-1]
        return text.start + number * BLOCK + len(block) - len(rest)

    def line_at(self, text: Text, offset: int) -> int:
        """The number of the line that holds this byte."""
        number = min(max(offset - text.start, 0) // BLOCK, len(self.before) - 1)
        begin = text.start + number * BLOCK
        return self.before[number] + text.read(begin, offset - begin).count(b"\n") + 1


def read_lines(text: Text, index: LineIndex, first: int, last: int, most: int | None = None) -> str:
    """Lines `first` to `last`, joined by newlines: of `most` bytes the beginning. Without it, Unreadable if they are longer than any
    citation: one line may fill the memory.
    """
    begin, end = index.offset(text, first), index.offset(text, last + 1)
    if most is None and end - begin > LINES_BYTES:
        raise Unreadable(
            f"lines {first:,} to {last:,} have {end - begin:,} bytes; at most {LINES_BYTES:,} are read at once. "
            "context_slice reads parts of long lines."
        )
    return text.decode(text.read(begin, end - begin if most is None else min(end - begin, most))).removesuffix("\n")
