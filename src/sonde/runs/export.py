"""A run as one file that can be given away: a .tar.gz of its folder with a manifest, the same bytes for the same run.

`redact=True` removes what looks like a secret, by pattern, from every file. Prompts and replies are then no longer what they were, so the
manifest and the journal say that the export cannot be replayed. Patterns miss things: check the file before you share it.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import tarfile
import unicodedata
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from sonde.core.canonical import decoded_bytes
from sonde.core.events import SCHEMA_VERSION, AnyEvent, Event, RunStarted, as_dict
from sonde.core.redaction import encodable, redact_text, redact_value
from sonde.disk import read_plain
from sonde.errors import ConfigError
from sonde.runs.journal import bounded, chain, ending, refuse_large
from sonde.runs.rundir import (
    ANSWER,
    JOURNAL,
    RECORD,
    REPORT,
    RESULT,
    SUMMARY,
    RunDir,
    fold,
    pretty_json,
    write_atomically,
)

MANIFEST = "export.json"
FILES = (JOURNAL, RECORD, RESULT, SUMMARY, ANSWER)
MAX_UNPACKED = 1 << 30
MAX_PAX = 64 * 1024
MAX_MEMBERS = 100  # we write six; other programs add folders and headers of their own
BLOCK = 512  # of a tar: headers take one, and files are filled up to a whole number of them
CHUNK = 1 << 20
PACKED_CHUNK = 64 * 1024  # zlib copies what is left of it each time


def export_page(run: RunDir, target: Path, *, redact: bool = False) -> Path:
    """Write the report of a run as Markdown, or else its answer or summary. The report of a masked run holds the real values and is not
    given away.
    """
    names = (REPORT, ANSWER, SUMMARY) if run.mask() is None else (ANSWER, SUMMARY)
    text = next((found for name in names if (found := run.text(name))), None)
    if text is None:
        raise ConfigError(f"{run.path} holds no report, answer or summary: has the run ended?")
    write_atomically(target, (redact_text(text) if redact else text).encode())
    return target


def export_run(run: RunDir, target: str | Path, *, redact: bool = False) -> Path:
    """Write the run as one file; a name without a suffix gets .tar.gz."""
    path = Path(target)
    path = path if path.suffix else path.with_name(f"{path.name}.tar.gz")
    content: dict[str, bytes] = {}
    left = MAX_UNPACKED
    for source in (run.path / name for name in FILES):
        if source.is_symlink():  # somebody else's folder could point at a key, and the export is given away
            raise ConfigError(
                f"{source} is a link, but a run's files are not; check where it leads before you export it"
            )
        if source.is_file():
            try:
                content[source.name] = read_plain(source, left)
            except OSError as error:
                raise ConfigError(f"{source} cannot be exported: {error.strerror}") from None
            left -= len(content[source.name])
    events = run.events()
    if redact:
        clean = redact_events(events)
        for name, data in content.items():
            if name == RESULT:
                try:
                    content[name] = pretty_json(redact_value(msgspec.json.decode(bounded(data))))
                except (msgspec.DecodeError, RecursionError) as error:
                    raise ConfigError(f"{run.path / name} is not the result of a run: {error}") from None
            elif name not in (JOURNAL, RECORD):
                content[name] = redact_text(data.decode("utf-8", "replace")).encode()
        content[JOURNAL] = journal_bytes(clean)
        content[RECORD] = pretty_json(fold(clean).model_dump(mode="json"))
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "run_id": fold(events).run_id,
        "redacted": redact,
        "replayable": not redact and is_replayable(events),
        "files": {name: hashlib.sha256(data).hexdigest() for name, data in content.items()},
    }
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as archive:
        for name, data in {MANIFEST: pretty_json(manifest), **content}.items():
            member = tarfile.TarInfo(f"{run.run_id}/{name}")
            member.size, member.mode = len(data), 0o600
            archive.addfile(member, io.BytesIO(data))
    write_atomically(path, buffer.getvalue())
    return path


def redact_events(events: Iterable[AnyEvent]) -> list[Any]:
    """The events without what looks like a secret, marked as such."""
    clean = (msgspec.convert(redact_value(as_dict(event), kept=("type",)), type(event)) for event in events)
    return [
        msgspec.structs.replace(event, settings={**event.settings, "redacted": True})
        if isinstance(event, RunStarted)
        else event
        for event in clean
    ]


def is_replayable(events: Iterable[AnyEvent]) -> bool:
    """False for a redacted run: its hashes can no longer be proved."""
    return not any(isinstance(event, RunStarted) and event.settings.get("redacted") for event in events)


def journal_bytes(events: Iterable[Event]) -> bytes:
    """These events as a journal."""
    lines: list[bytes] = []
    sum_so_far = ""
    for event in events:
        body = encodable(event)[1][:-1]
        sum_so_far = chain(sum_so_far, body)
        lines.append(body + ending(sum_so_far))
    return b"".join(lines)


class _Manifest(msgspec.Struct):
    run_id: str
    files: dict[str, str]


def unpack_run(source: str | Path, runs_dir: str | Path) -> RunDir:
    """A run folder from an exported file; its hashes must be those of the manifest. Only our own file names are written."""
    try:
        with Path(source).open("rb") as file:
            content = dict(_members(_Unpacked(file)))
    except (OSError, zlib.error, ValueError) as error:
        raise ConfigError(f"{source} is not an exported run: {error}") from None
    if MANIFEST not in content or JOURNAL not in content:
        raise ConfigError(f"{source} is not an exported run: it has no {MANIFEST} or no {JOURNAL}")
    try:
        manifest = msgspec.json.decode(bounded(content.pop(MANIFEST)), type=_Manifest)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{source} is not an exported run: its {MANIFEST} cannot be read ({error})") from None
    for name in {**manifest.files, **content}:
        if hashlib.sha256(content.get(name, b"")).hexdigest() != manifest.files.get(name):
            raise ConfigError(f"{name} in {source} does not have the hash of its manifest: the file was changed")
        try:
            data = content.get(name, b"")
            held = 0
            for number, line in enumerate(re.finditer(rb"[^\n]+" if name == JOURNAL else rb"(?s).+", data), start=1):
                held += decoded_bytes(bounded(line.group()))
                refuse_large(held, number, f"{name} in {source}")
        except msgspec.DecodeError as error:
            raise ConfigError(f"{name} in {source} is not of a run: {error}") from None
    # A plain name in the runs folder: no path, nothing hidden, nothing that looks like an option or moves a cursor.
    last = manifest.run_id.rpartition("/")[2]
    plain = "".join("_" if unicodedata.category(each)[0] == "C" else each for each in last).lstrip(".-")[:200]
    run = RunDir.create(runs_dir, plain or "imported")
    for name, data in content.items():
        write_atomically(run.path / name, data)
    return run


def _members(unpacked: _Unpacked) -> Iterator[tuple[str, bytearray]]:
    """Our own files in a tar. Its headers are read here and not by `tarfile`, which believes in names of a gigabyte and in maps of holes:
    the name of a member stands in its own header, or in the short header of pax before it.
    """
    long_name = ""
    count = 0
    while (header := unpacked.read(BLOCK)).strip(b"\0"):
        count += 1
        if count > MAX_MEMBERS:
            raise ValueError(f"it has more than {MAX_MEMBERS} members")
        digits, kind = re.fullmatch(rb" *([0-7]+)[ \0]*", header[124:136]), bytes(header[156:157])
        if digits is None:
            raise ValueError("a header in it makes no sense")
        size = int(digits[1], 8)
        name = long_name or header[:100].rstrip(b"\0").decode("utf-8", "replace")
        last, long_name = name.rpartition("/")[2], ""
        if kind == b"x" and size <= MAX_PAX:
            _, _, path = unpacked.read(size).decode("utf-8", "replace").partition(" path=")
            long_name = path.partition("\n")[0]
        elif kind in (b"0", b"\0") and last in (*FILES, MANIFEST):
            yield last, unpacked.read(size)
        else:
            unpacked.read(size, keep=False)
        unpacked.read(-size % BLOCK)


class _Unpacked:
    """What a gzip file holds. A small one may hold something huge: no more than MAX_UNPACKED is read, and nothing behind it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._zipped = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        self._packed = b""
        self._ready: memoryview[int] = memoryview(b"")  # unpacked, but not read yet
        self._left = MAX_UNPACKED

    def read(self, size: int, *, keep: bool = True) -> bytearray:
        """The next bytes, or nothing if they are not to be kept; ValueError if there are fewer."""
        if size > self._left:
            raise ConfigError(f"the export unpacks to more than {MAX_UNPACKED >> 20} MiB; a run is smaller")
        self._left -= size
        kept = bytearray()
        while size:
            if not self._ready:
                self._packed = self._packed or self._file.read(PACKED_CHUNK)
                self._ready = memoryview(self._zipped.decompress(self._packed, CHUNK))
                if not self._ready and (self._zipped.eof or not self._packed):
                    raise ValueError("it ends too early")
                self._packed = self._zipped.unconsumed_tail
            taken, self._ready = self._ready[:size], self._ready[size:]
            size -= len(taken)
            if keep:
                kept += taken
        return kept
