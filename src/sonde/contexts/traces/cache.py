"""Indexes of trace files, built once per content: found again by hash, and appended to when a file has only grown.

`<cache>/<hash>.sqlite` is the index of that content. `<cache>/paths/<hash of the path>.json` remembers size and time of the files behind a
path, so that an unchanged source costs a few `stat` calls. A lock file keeps two processes from building the same index. Does not promise
to see a file that was rewritten within its old size and time stamp.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Generator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from sonde.contexts.traces.importers.read import Imported, Place, grows, read
from sonde.contexts.traces.importers.records import Malformed
from sonde.contexts.traces.index import KEPT_MALFORMED, VERSION, IndexWriter
from sonde.core.canonical import hash_value, sha256_text
from sonde.errors import ConfigError

SUFFIXES = (".jsonl", ".json", ".ndjson", ".parquet", ".db", ".sqlite")
_BLOCK = 1 << 20
_LARGE = 1 << 30
_LEFT_BEHIND_S = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class FileState:
    """A file as it was when it was indexed."""

    name: str
    size: int
    mtime_ns: int
    inode: int
    sha256: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexed:
    """An index that is complete, and how it came about: `found`, `built` or `appended`."""

    path: Path
    content: str
    how: str


def files_of(source: Path) -> list[Path]:
    """The trace files behind a path: itself, or everything with a known ending in the folder, sorted by name."""
    exists = _may_be_read(source)
    if source.is_file():
        return [source]
    if not source.is_dir():
        missing = "is neither a file nor a folder" if exists else "does not exist"
        raise ConfigError(
            f"{source} {missing}; give a trace file, a folder of them, or the address of a Phoenix server"
        )
    found = sorted(path for path in source.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    if not found:
        raise ConfigError(f"{source} holds no trace files ({', '.join(SUFFIXES)})")
    return found


def _may_be_read(source: Path) -> bool:
    """Whether it exists; ConfigError when it is there and may not be read."""
    try:
        exists = source.exists()
    except OSError as error:
        raise ConfigError(f"{source} cannot be read: {error.strerror}") from error
    if exists and not os.access(source, os.R_OK):
        raise ConfigError(f"{source} cannot be read: permission denied")
    return exists


def open_index(source: Path, cache: Path, *, project: str | None = None) -> Indexed:
    """The index of what is at `source` now. A file on its own is its own root, so that a copy elsewhere finds the same index."""
    files = files_of(source)
    pointer = cache / "paths" / f"{sha256_text(f'{source.resolve()}|{project}')[:32]}.json"
    for folder in (cache, pointer.parent):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # traces hold what people wrote
    with _locked(pointer.with_suffix(".lock")):
        known, old = _load_pointer(pointer)
        states = [_state(path, source) for path in files]
        if old and [_unhashed(state) for state in known] == states and (path := cache / f"{old}.sqlite").exists():
            return Indexed(path=path, content=old, how="found")
        hashed = [_hashed(state, source) for state in states]
        work = _Work(source=source, cache=cache, project=project, states=hashed, known=known, old=old)
        indexed = _bring_up_to_date(work)
        _save_pointer(pointer, hashed, indexed.content)
        if old != indexed.content:
            _forget(old, cache)
    return indexed


def _forget(content: str, cache: Path) -> None:
    """Remove an index that no path points at any more."""
    pointers = (_load_pointer(path)[1] for path in (cache / "paths").glob("*.json"))
    if content and content not in pointers:
        (cache / f"{content}.sqlite").unlink(missing_ok=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """One source to bring up to date: its files now, its files then and the index made of them."""

    source: Path
    cache: Path
    project: str | None
    states: list[FileState]
    known: list[FileState]
    old: str

    @property
    def content(self) -> str:
        return hash_value([VERSION, self.project, [(state.name, state.sha256) for state in self.states]])


def _bring_up_to_date(work: _Work) -> Indexed:
    target = work.cache / f"{work.content}.sqlite"
    if target.exists():
        return Indexed(path=target, content=work.content, how="found")
    with _locked(work.cache / "append.lock"):
        previous = work.cache / f"{work.old}.sqlite"
        if work.old and previous.exists() and _only_grew(work):
            _fill(previous, work, _before(previous))
            previous.replace(target)
            return Indexed(path=target, content=work.content, how="appended")
    return _build(work, target)


def _build(work: _Work, target: Path) -> Indexed:
    """A new index, written aside and put in place when it is complete."""
    _sweep(work.cache)
    fresh = target.with_suffix(f".{os.getpid()}.part")
    fresh.unlink(missing_ok=True)
    try:
        _fill(fresh, work, None)
        fresh.replace(target)
    finally:
        fresh.unlink(missing_ok=True)
    return Indexed(path=target, content=work.content, how="built")


def _sweep(cache: Path) -> None:
    """Remove what imports that were killed have left behind; whoever still writes has touched his within the day."""
    for left in cache.glob("*.part"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _LEFT_BEHIND_S:
                left.unlink()


@dataclass(frozen=True, slots=True)
class _Before:
    """What an index that is appended to holds already."""

    places: dict[str, Place]
    hashes: dict[str, str]
    malformed: int


def _before(path: Path) -> _Before:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT name, offset, line, sha256 FROM files").fetchall()
        row = connection.execute("SELECT value FROM meta WHERE key = 'malformed'").fetchone()
    places = {name: Place(offset, line) for name, offset, line, _ in rows}
    return _Before(places, {row[0]: row[3] for row in rows}, int(row[0]) if row else 0)


def _fill(path: Path, work: _Work, before: _Before | None) -> None:
    """Index what is new in each file. A source in which nothing can be read is an error, and leaves no index behind."""
    earlier = before or _Before({}, {}, 0)
    writer = IndexWriter(path, new=before is None, project=work.project)
    tally = _Tally(malformed=earlier.malformed)
    try:
        for state in work.states:
            if earlier.hashes.get(state.name) != state.sha256:
                tally.add(state, _read_into(writer, work.source, state.name, earlier.places.get(state.name, Place())))
        if before is None and tally.spans == 0:
            raise ConfigError(_nothing_readable(work.source, tally))  # noqa: TRY301 - the index under way is abandoned below
    except BaseException:
        writer.abandon()
        raise
    meta = {"content": work.content, "malformed": str(tally.malformed)}
    writer.close(files=tally.files, malformed=tally.kept, meta=meta)


@dataclass(slots=True)
class _Tally:
    """What all files of a source gave together."""

    malformed: int = 0
    spans: int = 0
    files: list[tuple[object, ...]] = field(default_factory=list[tuple[object, ...]])
    kept: list[tuple[str, Malformed]] = field(default_factory=list[tuple[str, Malformed]])

    def add(self, state: FileState, progress: _Progress) -> None:
        """Count one file."""
        self.spans += progress.spans
        self.malformed += progress.malformed
        place = progress.place
        self.files.append((state.name, state.size, state.sha256, place.offset, place.line, progress.form))
        self.kept.extend((state.name, item) for item in progress.kept)


@dataclass(slots=True)
class _Progress:
    place: Place
    spans: int
    malformed: int
    kept: list[Malformed]
    form: str


def _read_into(writer: IndexWriter, source: Path, name: str, place: Place) -> _Progress:
    progress = _Progress(place=place, spans=0, malformed=0, kept=[], form="unknown")
    for item in read(source / name, place):
        if isinstance(item, Imported):
            writer.add(item.span, item.line, name)
            progress.spans += 1
            progress.form = item.form
            progress.place = Place(item.end, item.line)
            continue
        progress.malformed += not item.unfinished
        if len(progress.kept) < KEPT_MALFORMED:
            progress.kept.append(item)
        if not item.unfinished:
            progress.place = Place(item.end, item.line)
    return progress


def _nothing_readable(source: Path, tally: _Tally) -> str:
    reasons = "; ".join(f"{item.reason} (line {item.line} of {shown(source, name)})" for name, item in tally.kept[:3])
    return f"no span could be read from {source.name}: {reasons or 'it is empty'}"


def shown(source: Path, name: str) -> str:
    """A file's name for people: a source that is one file has no name inside itself."""
    return source.name if name == "." else name


def _only_grew(work: _Work) -> bool:
    """True when every file that was there begins with what it held then, and the grown ones are files of lines."""
    current = {state.name: state for state in work.states}
    for old in work.known:
        state = current.get(old.name)
        if state is None or state.size < old.size:
            return False
        if state.sha256 == old.sha256:
            continue
        path = work.source / old.name
        if not grows(path) or _sha256(path, old.size) != old.sha256:
            return False
    return bool(work.known)


def _state(path: Path, root: Path) -> FileState:
    stat = path.stat()
    if stat.st_size > _LARGE and stat.st_blocks * 512 < stat.st_size // 1000:  # reading its zeros would take hours
        raise ConfigError(
            f"{path} says that it has {stat.st_size:,} bytes, but nearly all of it is a hole; it is no trace file"
        )
    name = path.relative_to(root).as_posix()
    return FileState(name=name, size=stat.st_size, mtime_ns=stat.st_mtime_ns, inode=stat.st_ino)


def _hashed(state: FileState, root: Path) -> FileState:
    return replace(state, sha256=_sha256(root / state.name, state.size))


def _unhashed(state: FileState) -> FileState:
    return replace(state, sha256="")


def _sha256(path: Path, size: int) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while size > 0 and (block := stream.read(min(_BLOCK, size))):
            digest.update(block)
            size -= len(block)
    return digest.hexdigest()


def _load_pointer(path: Path) -> tuple[list[FileState], str]:
    try:
        data = json.loads(path.read_text("utf-8"))
        if data["version"] != VERSION:
            return [], ""
        return [FileState(**state) for state in data["files"]], str(data["index"])
    except (OSError, ValueError, KeyError, TypeError):
        return [], ""


def _save_pointer(path: Path, states: list[FileState], content: str) -> None:
    data = {"version": VERSION, "index": content, "files": [asdict(state) for state in states]}
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_text(json.dumps(data), "utf-8")
    part.replace(path)


@contextlib.contextmanager
def _locked(path: Path) -> Generator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
