"""Indexes of trace files, built once per content: found again by hash, and appended to when a file has only grown.

`<cache>/<hash>.sqlite` is the index of that content. `<cache>/paths/<hash of the path>.json` remembers size and time of the files behind a
path, so that an unchanged source costs a few `stat` calls. A lock file keeps two processes from building the same index. Whoever uses an
index holds `<hash>.used`, whose time says when it was last opened: indexes over the limit are removed, the least recently used first,
and never one that is held. Does not promise to see a file that was rewritten within its old size and time stamp.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Generator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import BinaryIO

from sonde.contexts.traces.importers import FilePosition, Imported, grows, read
from sonde.contexts.traces.importers.records import Malformed
from sonde.contexts.traces.index import (
    CONTENT,
    KEPT_MALFORMED,
    STORE_FILE,
    VERSION,
    IndexWriter,
    is_store,
    store_fingerprint,
    store_last,
)
from sonde.core.canonical import hash_value, sha256_text
from sonde.disk import AnyPath, NotPlain, below, lock, open_below, open_database, open_exactly, open_plain
from sonde.errors import ConfigError

SUFFIXES = (".jsonl", ".json", ".ndjson", ".parquet", ".db", ".sqlite")
_BLOCK = 1 << 20
_LARGE = 1 << 30
_LEFT_BEHIND_S = 86_400


class NothingYet(ConfigError):
    """A source that is there and holds no span; one may come."""


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
    claim: BinaryIO
    """Close it when the index is no longer read: until then nobody removes it."""
    upto: int | None = None
    """The last span that counts, of a store that must stand still."""


def files_of(source: Path) -> list[Path]:
    """The trace files behind a path: itself, or everything with a known ending in the folder, sorted by name."""
    try:
        exists = source.exists()
    except OSError as error:
        raise ConfigError(f"{source} cannot be read: {error.strerror}") from error
    if exists and not os.access(source, os.R_OK):
        raise ConfigError(f"{source} cannot be read: permission denied")
    if source.is_file():
        return [source]
    if not source.is_dir():
        missing = "is neither a file nor a folder" if exists else "does not exist"
        raise ConfigError(
            f"{source} {missing}; give a trace file, a folder of them, or the address of a Phoenix server"
        )
    found: list[Path] = []
    for path in sorted(path for path in source.rglob("*") if path.suffix in SUFFIXES):
        if path.name == "manifest.json" and path.with_name("traces.jsonl").exists():
            continue  # the labels that `sonde bench seeded` writes beside its traces
        with contextlib.suppress(NotPlain):
            found += [path] if Path(below(source, path)).is_file() else []
    if not found:
        raise NothingYet(f"{source} holds no trace files ({', '.join(SUFFIXES)})")
    return found


def store_of(source: Path) -> Path | None:
    """The file of the store that `sonde watch --listen` fills, if that is what is at this path: its folder, or the file itself."""
    file = source / STORE_FILE if source.is_dir() else source
    with contextlib.suppress(OSError), open_below(source, file) as stream:
        return Path(below(source, file)) if is_store(stream.read(100)) else None
    return None


def open_index(
    source: Path,
    cache: Path,
    *,
    project: str | None = None,
    most_gb: float | None = None,
    still: bool = False,
    upto: int | None = None,
) -> Indexed:
    """The index of what is at `source` now. A file on its own is its own root, so that a copy elsewhere finds the same index.

    A new one makes room for itself, if all together would take more than `most_gb`. `still`: of a store, to which more may come, only
    what it holds now counts, or what it held when its last span was `upto`.
    """
    files = files_of(source)
    if (store := store_of(source)) is not None:  # it is an index, and its writer may be at work
        content = store_fingerprint(store)  # refuses what is none
        if still:
            upto = store_last(store) if upto is None else upto
            content = store_fingerprint(store, upto)
        return Indexed(path=store, content=content, how="found", claim=open_plain(store), upto=upto if still else None)
    pointer = cache / "paths" / f"{sha256_text(f'{source.resolve()}|{project}')[:32]}.json"
    for folder in (cache, pointer.parent):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # traces hold what people wrote
    with _locked(pointer.with_suffix(".lock")):
        known, old = _load_pointer(pointer)
        states = [_state(path, source) for path in files]
        unhashed = [replace(state, sha256="") for state in known]
        if old and unhashed == states and (path := cache / f"{old}-{VERSION}.sqlite").exists():
            claim = _claim(path)
            if path.exists():
                return Indexed(path=path, content=old, how="found", claim=claim)
            claim.close()  # removed just now, to make room
        states = [replace(state, sha256=_sha256(below(source, source / state.name), state.size)) for state in states]
        content = hash_value([CONTENT, project, [(state.name, state.sha256) for state in states]])
        target, previous = (cache / f"{name}-{VERSION}.sqlite" for name in (content, old))
        claim = _claim(target)
        how = "found" if target.exists() else "built"
        if how == "built":
            with _locked(cache / "append.lock"):
                if old and previous.exists() and _only_grew(source, known, states):
                    _fill(previous, source, states, content=content, project=project, new=False)
                    previous.replace(target)
                    how = "appended"
        if how == "built":
            try:
                _build(target, source, states, content=content, project=project)
            except BaseException:
                target.with_suffix(".used").unlink(missing_ok=True)
                claim.close()
                raise
        part = pointer.with_suffix(f".{os.getpid()}.part")
        part.write_text(json.dumps({"version": VERSION, "index": content, "files": [asdict(each) for each in states]}))
        part.replace(pointer)
        if old not in ("", content) and all(_load_pointer(path)[1] != old for path in pointer.parent.glob("*.json")):
            previous.unlink(missing_ok=True)  # no path points at the old index any more
    if how != "found" and most_gb is not None:
        remove_unused(cache, int(most_gb * 1e9))
    return Indexed(path=target, content=content, how=how, claim=claim)


def _claim(index: Path) -> BinaryIO:
    """Hold an index, and note that it is used now."""
    while True:
        handle = index.with_suffix(".used").open("ab")
        lock(handle.fileno(), shared=True, wait=True)
        if os.fstat(handle.fileno()).st_nlink:  # else it was removed with its index while we waited
            os.utime(handle.fileno())
            return handle
        handle.close()


def cached_bytes(cache: Path) -> int:
    """What the indexes in a cache take on the disk."""
    return sum(size for _, size, _ in _indexes(cache))


def _indexes(cache: Path) -> list[tuple[float, int, Path]]:
    """When each index was last opened, its size, and its path; the least recently used first."""
    found: list[tuple[float, int, Path]] = []
    for path in cache.glob("*.sqlite"):
        with contextlib.suppress(FileNotFoundError):  # another process removed it
            used = path.with_suffix(".used")
            found.append(((used if used.exists() else path).stat().st_mtime, path.stat().st_size, path))
    return sorted(found)


def remove_unused(cache: Path, most: int) -> int:
    """Remove the least recently used indexes until they take at most so many bytes, none that is in use; how many were removed."""
    indexes, removed = _indexes(cache), 0
    total = sum(size for _, size, _ in indexes)
    for _, size, path in indexes:
        if total <= most:
            break
        with path.with_suffix(".used").open("ab") as handle:
            try:
                lock(handle.fileno())
            except BlockingIOError:
                continue
            path.unlink(missing_ok=True)
            path.with_suffix(".used").unlink(missing_ok=True)
            total, removed = total - size, removed + 1
    return removed


def _build(target: Path, source: Path, states: list[FileState], *, content: str, project: str | None) -> None:
    """A new index, written aside and put in place when it is complete."""
    # Imports that were killed leave parts behind; a living one touched its own within the day.
    for left in target.parent.glob("*.part"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _LEFT_BEHIND_S:
                left.unlink()
    fresh = target.with_suffix(f".{os.getpid()}.part")
    fresh.unlink(missing_ok=True)
    try:
        _fill(fresh, source, states, content=content, project=project, new=True)
        fresh.replace(target)
    finally:
        fresh.unlink(missing_ok=True)


def _fill(path: Path, source: Path, states: list[FileState], *, content: str, project: str | None, new: bool) -> None:
    """Index what is new in each file. A source in which nothing can be read is an error, and leaves no index behind."""
    positions: dict[str, FilePosition] = {}
    hashes: dict[str, str] = {}
    malformed = unplaced = spans = 0
    if not new:
        with contextlib.closing(open_database(path)) as connection:
            for name, offset, line, sha256 in connection.execute("SELECT name, offset, line, sha256 FROM files"):
                positions[name], hashes[name] = FilePosition(offset, line), sha256
            meta = dict(connection.execute("SELECT key, value FROM meta").fetchall())
            malformed, unplaced = int(meta.get("malformed", 0)), int(meta.get("unplaced", 0))
    files: list[tuple[object, ...]] = []
    kept: list[tuple[str, Malformed]] = []
    lost: dict[str, tuple[int, str]] = {}  # by trace: how many of its spans, and where the first is
    with IndexWriter(path, new=new, project=project) as writer:
        for state in states:
            if hashes.get(state.name) == state.sha256:
                continue
            position, form, room = positions.get(state.name, FilePosition()), "unknown", KEPT_MALFORMED
            for item in read(Path(below(source, source / state.name)), position):
                if isinstance(item, Imported):
                    writer.add(item.span, item.line, state.name)
                    spans += 1
                    form = item.form
                else:
                    if room:
                        kept.append((state.name, item))
                        room -= 1
                    if item.unfinished:
                        continue  # read again when the file has grown
                    malformed += 1
                    unplaced += not item.trace_id
                    if item.trace_id:
                        count, first = lost.get(item.trace_id, (0, f"line {item.line} of {shown(source, state.name)}"))
                        lost[item.trace_id] = count + 1, first
                position = FilePosition(item.end, item.line)
            files.append((state.name, state.size, state.sha256, position.offset, position.line, form))
        if new and spans == 0:
            first = "; ".join(f"{bad.reason} (line {bad.line} of {shown(source, name)})" for name, bad in kept[:3])
            kind = ConfigError if first else NothingYet
            raise kind(f"no span could be read from {source.name}: {first or 'it is empty'}")
        gaps = [
            (name, f"spans of this trace were not read: {count:,} ({first})") for name, (count, first) in lost.items()
        ]
        meta = {"content": content, "malformed": str(malformed), "unplaced": str(unplaced)}
        writer.finish(files=files, malformed=kept, gaps=gaps, meta=meta)


def shown(source: Path, name: str) -> str:
    """A file's name for people: a source that is one file has no name inside itself."""
    return source.name if name == "." else name


def _only_grew(source: Path, known: list[FileState], states: list[FileState]) -> bool:
    """True when every file that was there begins with what it held then, and the grown ones are files of lines."""
    current = {state.name: state for state in states}
    for old in known:
        state = current.get(old.name)
        if state is None or state.size < old.size:
            return False
        if state.sha256 == old.sha256:
            continue
        path = Path(below(source, source / old.name))
        if not grows(path) or _sha256(path, old.size) != old.sha256:
            return False
    return bool(known)


def _state(path: Path, root: Path) -> FileState:
    stat = Path(below(root, path)).lstat()
    if stat.st_size > _LARGE and stat.st_blocks * 512 < stat.st_size // 1000:  # reading its zeros would take hours
        raise ConfigError(
            f"{path} says that it has {stat.st_size:,} bytes, but nearly all of it is a hole; that is not a trace file"
        )
    name = path.relative_to(root).as_posix()
    return FileState(name=name, size=stat.st_size, mtime_ns=stat.st_mtime_ns, inode=stat.st_ino)


def _sha256(path: AnyPath, size: int) -> str:
    digest = hashlib.sha256()
    with os.fdopen(open_exactly(path), "rb") as stream:
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


@contextlib.contextmanager
def _locked(path: Path) -> Generator[None]:
    with path.open("w") as handle:
        lock(handle.fileno(), wait=True)
        yield
