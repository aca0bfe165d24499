r"""Which files to read: folders walked, globs expanded, and everything that is left out with its reason.

Nothing is opened here, so 100,000 files are listed in about a second. Symlinks are followed only to files below the same root, never
to folders. Names that are not UTF-8 are shown with `\xNN`. A file that the user names is taken, whatever its name; one that a glob or
a folder brings is judged, and so is everything that somebody else names, by every part of its path. A file that two sources share is
listed once.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import posixpath
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from sonde.contexts.files.exclusion import COSTLY, EXCLUDED, GITIGNORE, IGNORED, Chain, Exclusion, Judge
from sonde.core.canonical import clip
from sonde.core.deadline import deadline_in_force
from sonde.disk import TOO_LONG, AnyPath, NotPlain, below, is_too_long, root_of, secret_reason
from sonde.errors import ConfigError, ToolFault

INTERRUPTIBLE = True  # Ctrl-C may raise KeyboardInterrupt while code of this module waits (cli/interrupt.py)

_PIPED_BYTES = 256_000_000
_GLOB_PARTS = 100
NO_FILE = "not a regular file but a pipe, socket or device"
SKIPPED_FOLDERS = frozenset(
    {
        ".git", ".hg", ".svn", ".venv", "venv", "node_modules", "__pycache__", ".tox", ".nox", ".mypy_cache",
        ".pytest_cache", ".ruff_cache", ".hypothesis", ".ipynb_checkpoints", ".local", "investigator_runs",
    }
)  # fmt: skip
"""Version control, installed packages, caches, and our own run folders (yesterday's answers are not today's evidence)."""

BINARY_SUFFIXES = frozenset(
    """
    .so .dll .dylib .exe .o .a .lib .pyc .pyo .pyd .class .jar .war .whl .egg .wasm .zip .tgz .tbz2 .txz
    .tzst .7z .rar .tar .png .jpg .jpeg .gif .webp .ico .bmp .tif .tiff .heic .mp3 .mp4 .m4a .mov .avi .mkv
    .webm .wav .ogg .flac .woff .woff2 .ttf .otf .eot .sqlite .sqlite3 .parquet .arrow .feather .npy .npz .pkl
    .pickle .pt .pth .onnx .gguf .safetensors .bin .iso .dmg .deb .rpm
    """.split()  # noqa: SIM905 - suffixes read better as text
)
"""Kinds that are not opened when everything is searched; named alone, such a file is looked at like any other."""

COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
ARCHIVES = (".zip", ".tar", ".tgz", ".tbz2", ".txz", ".tzst", *(f".tar{suffix}" for suffix in COMPRESSED))
"""Their members are listed and read as `logs.zip/app.log`."""


class Entry(NamedTuple):
    """One file: the name that tools use, its size and time when listed, where it really is (empty: its text is in memory).

    `member` is its name in the archive that is there.
    """

    path: str
    size: int
    mtime_ns: int
    real: str
    member: str = ""


@dataclass
class Listing:
    """Files by name in sorted order, and what was left out."""

    entries: dict[str, Entry] = field(default_factory=dict[str, Entry])
    refused: dict[str, str] = field(default_factory=dict[str, str])
    skipped: Counter[str] = field(default_factory=Counter[str])
    binary: dict[str, str] = field(default_factory=dict[str, str])
    """Files that are listed but not read, because their first bytes say that they are no text, and what they are."""
    piped: dict[str, bytes] = field(default_factory=dict[str, bytes])
    roots: list[str] = field(default_factory=list[str])
    source: int = 0
    _source_of: dict[str, int] = field(default_factory=dict[str, int])
    _next_number: dict[str, int] = field(default_factory=dict[str, int])
    _numbered: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])

    @property
    def total_bytes(self) -> int:
        """Bytes of all files together."""
        return sum(entry.size for entry in self.entries.values())

    @cached_property
    def texts(self) -> list[Entry]:
        """Files that may be text, as far as their names and first bytes say."""
        return [
            entry
            for entry in self.entries.values()
            if posixpath.splitext(entry.path)[1].lower() not in BINARY_SUFFIXES and entry.path not in self.binary
        ]

    @cached_property
    def text_bytes(self) -> int:
        """Bytes of those files; compressed ones count eight times, about what is in them."""
        return sum(entry.size * (8 if entry.path.endswith(COMPRESSED) else 1) for entry in self.texts)

    def add(self, path: str, size: int, mtime_ns: int, real: str) -> None:
        """One more file, unless another source brought it already; a second one of the same name gets a number."""
        if real and self._source_of.setdefault(real, self.source) != self.source:
            return
        name, number = path, self._next_number.get(path, 2)
        if path in self.entries:
            if real and (self.entries[path].real == real or (path, real) in self._numbered):
                return
            while name in self.entries:
                name, number = f"{path}~{number}", number + 1
            self._next_number[path] = number  # thousands of names may look the same
            self._numbered.add((path, real))
        self.entries[name] = Entry(name, size, mtime_ns, real)


class _Pace:
    """Notices at every thousandth step of a listing that the run had to end."""

    def __init__(self) -> None:
        self._run = deadline_in_force()
        self._since = 0.0 if self._run is None else self._run.clock.now()
        self._steps = 0

    def step(self) -> None:
        """ConfigError if time is up: without its files there is nothing to ask about."""
        self._steps += 1
        if self._run is not None and self._steps % 1000 == 0:
            try:
                self._since = self._run.check(self._since, "the files were still being listed")
            except ToolFault as late:
                raise ConfigError(f"{late.message}; name fewer folders, or raise max_wall_time_sec") from None


class _SourcePath(NamedTuple):
    """A file or folder to list. `base` is the folder in which a glob found it; None if it was named. `judged`: not by the user.

    `matched` is the part that the wildcards of a glob stand for.
    """

    path: str
    real: str
    base: str | None = None
    judged: bool = False
    matched: str = ""


def list_sources(
    sources: Iterable[str | Path], within: Sequence[AnyPath] = (), exclusion: Exclusion | None = None
) -> Listing:
    """Everything below the given files, folders and globs but what is excluded; ConfigError if one matches nothing.

    `within`: not the user named the sources. Then each must lie in one of these folders and may be read as if a walk had found it there.
    """
    listing = Listing()
    found: dict[_SourcePath, None] = {}
    pace = _Pace()
    for given in dict.fromkeys(sources):
        source = os.fspath(given)
        pace.step()
        if is_too_long(source):
            raise ConfigError(f"{clip(source, 200)!r} is not read: {TOO_LONG}")
        if within and ".." in source.split("/"):
            source = os.path.normpath(source)  # behind a link `..` would lead elsewhere than where it is judged
        if os.path.lexists(source):
            found[_SourcePath(source, os.path.realpath(source))] = None
            continue
        links: dict[str, str] = {}
        matches = sorted(expanded(source, links))
        listing.refused |= links
        if not matches:
            braces = "Globs have no braces here: write one for each part, such as '*.py' '*.toml'. "
            raise ConfigError(
                f"no such file or folder: {source!r}. {braces if '{' in source else ''}"
                "Give an existing path, a quoted glob such as 'logs/**/*.log', or - for standard input."
            )
        files = [match for match in matches if not Path(match).is_dir()]
        parts = source.split("/")
        plain = next(at for at, part in enumerate(parts) if glob.has_magic(part))
        top = "/".join(parts[:plain]) or ("/" if source.startswith("/") else ".")
        base = (
            top if files and glob.has_magic(parts[-1]) else None
        )  # else it spells the names of the files that it means
        for match in files or matches:
            found[_SourcePath(match, os.path.realpath(match), base, matched=os.path.relpath(match, top))] = None
    if within:
        kept = [place for place in found if not _is_skipped(listing, place)]
        found.clear()
        for place in kept:
            pace.step()
            found[_judged(place, within)] = None
    judge = Judge(exclusion or Exclusion())
    folders = {place: None for place in found if place.base is None and Path(place.real).is_dir()}
    for place in (place for place in found if place not in folders):
        name = _label(place) if len(found) > 1 else _shown(Path(place.path).name)
        inside = Path(place.path).name if place.base is None else os.path.relpath(place.path, place.base)
        if judge.excludes(inside, str(Path(place.path).absolute())):
            listing.refused[name] = EXCLUDED
        else:
            _take(listing, place, name) if place.base is None else _find(listing, place, name, judge)
    for listing.source, place in enumerate(folders, start=1):
        label = _label(place) if len(found) > 1 else ""
        if judge.excludes(Path(place.real).name, str(Path(place.path).absolute()), folder=True):
            listing.refused[f"{label or Path(place.real).name}/"] = EXCLUDED
            continue
        listing.roots.append(place.real)
        _walk(listing, place, f"{label}/" if label else "", judge)
    listing.refused |= {_shown(file) if file != COSTLY else GITIGNORE: COSTLY for file in judge.costly}
    listing.entries = dict(sorted(listing.entries.items()))
    return listing


def expanded(pattern: str, links: dict[str, str] | None = None) -> Iterator[str]:
    """What a glob matches, as `glob.glob` would, but a wildcard enters no link to a folder while more wildcards follow.

    Links can lead in circles, and 3 of them make 3^40 paths. Those that were not entered are noted in `links`.
    """
    parts = pattern.split("/")
    wild = [at for at, part in enumerate(parts) if glob.has_magic(part)]
    if not wild or len(parts) > _GLOB_PARTS:
        return iter(())
    places: Iterator[str] = iter(("/" if pattern.startswith("/") else "",))
    for at, part in enumerate(parts):
        if glob.has_magic(part):
            passed = links if links is not None else {}
            places = _matching(places, part, last=at == len(parts) - 1, enters=at == wild[-1], links=passed)
        elif part or at == len(parts) - 1:
            places = _named(places, part)
    return (place for place in places if place)


def _named(places: Iterator[str], part: str) -> Iterator[str]:
    return (path for place in places if os.path.lexists(path := _joined(place, part)))


def _matching(places: Iterator[str], part: str, *, last: bool, enters: bool, links: dict[str, str]) -> Iterator[str]:
    """What in these folders fits one part of a glob; `**` goes down and gives the folders too."""
    down = part == "**"
    seen: set[str] = set()
    pace = _Pace()
    for place in places:
        folders = [place]
        while folders:
            folder = folders.pop()
            if folder in seen:
                continue
            seen.add(folder)
            if down:
                yield folder
            try:
                with os.scandir(folder or ".") as items:
                    fitting = [item for item in items if down or fnmatch.fnmatchcase(item.name, part)]
            except (OSError, ValueError):  # no folder, not ours to read, or a name with a zero byte
                continue
            for item in fitting:
                pace.step()
                path = _joined(folder, item.name)
                if item.name.startswith(".") and not part.startswith("."):
                    continue
                if item.is_symlink() and (down or not enters) and item.is_dir():
                    links[_shown(path)] = "a symlink to a folder"
                elif down and item.is_dir():
                    folders.append(path)
                elif last or not down:
                    yield path


def _joined(folder: str, name: str) -> str:
    return f"{folder}{name}" if folder in ("", "/") else f"{folder}/{name}"


def _is_skipped(listing: Listing, place: _SourcePath) -> bool:
    """Whether a stranger's wildcards stand for a folder that a walk would not enter, such as `.gi?`."""
    skipped = SKIPPED_FOLDERS.intersection(place.matched.split("/"))
    listing.skipped.update(skipped)
    return bool(skipped)


def _judged(place: _SourcePath, within: Sequence[AnyPath]) -> _SourcePath:
    """A source that the user did not name, with where it leads; ConfigError if it may not be read."""
    named = place.path if place.base is None else place.base
    path = os.path.normpath(Path.cwd() / named)
    try:
        real = below(root_of(path, within), path)
        mode = os.lstat(real).st_mode
    except OSError as error:
        raise ConfigError(f"{named} is not read: {error.strerror}") from None
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        raise ConfigError(f"{named} is {NO_FILE}")
    return place if place.base is not None else place._replace(real=real, judged=True)


def _label(place: _SourcePath) -> str:
    """What a source is called beside others: as it was written, when that is a path downwards, else its last part.

    In an absolute path `/./` marks where the written part begins, as for rsync: a recorded run finds its files under the same names.
    """
    folder, marked, written = place.path.partition("/./")
    written = written if marked and folder.startswith("/") else os.path.normpath(place.path)
    if written.startswith(("/", "..")):
        written = Path(place.real).name if place.base is None else os.path.relpath(place.path, place.base)
    return "" if written == "." else _shown(written)


def _shown(name: str) -> str:
    try:
        name.encode()
    except UnicodeEncodeError:
        return os.fsencode(name).decode("utf-8", "backslashreplace")
    return name


def _take(listing: Listing, place: _SourcePath, name: str) -> None:
    """A file that the user named: taken even if it looks like a secret; a pipe is read to its end."""
    try:
        state = os.lstat(place.real) if place.judged else Path(place.path).stat()
    except OSError as error:
        raise ConfigError(f"cannot read {place.path!r}: {error.strerror}.") from None
    if stat.S_ISREG(state.st_mode) or place.judged:
        listing.add(name, state.st_size, state.st_mtime_ns, place.real)
        return
    try:
        with Path(place.path).open("rb") as pipe:
            text = pipe.read(_PIPED_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {place.path!r}: {error.strerror}.") from None
    if len(text) > _PIPED_BYTES:
        raise ConfigError(
            f"{place.path!r} gave more than {_PIPED_BYTES:,} bytes and is not a file: save it as one first."
        )
    listing.piped[name] = text
    listing.add(name, len(text), 0, "")


def _find(listing: Listing, place: _SourcePath, name: str, judge: Judge) -> None:
    """A file that a glob brings, judged like one in a folder: the glob itself follows symlinks to anywhere."""
    base, folder = place.base or ".", Path(place.path).parent
    root = os.path.realpath(base)
    if os.path.realpath(folder) != os.path.normpath(Path(root) / os.path.relpath(folder, base)):
        listing.refused[name] = "a symlink to a folder leads to it"
    elif judge.ignores_below(root, os.path.normpath(Path(root) / os.path.relpath(place.path, base))):
        listing.refused[name] = IGNORED
    elif Path(place.path).is_symlink():
        _follow(listing, place.path, name, root)
    elif not Path(place.path).is_file():
        listing.refused[name] = NO_FILE
    elif skipped := SKIPPED_FOLDERS.intersection(os.path.relpath(folder, base).split("/")):
        listing.skipped.update(skipped)
    elif reason := secret_reason(place.matched):  # the name may be its last part only
        listing.refused[name] = reason
    else:
        _note(listing, Path(root, os.path.relpath(place.path, base)), name)


def _walk(listing: Listing, place: _SourcePath, prefix: str, judge: Judge) -> None:
    root, absolute = place.real, str(Path(place.path).absolute())
    folders: list[tuple[str, str, Chain]] = [(root, prefix, judge.top(root))]
    pace = _Pace()
    while folders:
        folder, shown, chain = folders.pop()
        try:
            with os.scandir(folder) as items:
                for item in items:
                    pace.step()
                    name = shown + _shown(item.name)
                    is_folder = item.is_dir(follow_symlinks=False)
                    if is_folder and item.name in SKIPPED_FOLDERS:
                        listing.skipped[item.name] += 1
                    elif reason := _left_out(item.path, root, absolute, chain, judge, folder=is_folder):
                        listing.refused[f"{name}/" if is_folder else name] = reason
                    elif item.is_symlink():
                        _follow(listing, item.path, name, root)
                    elif is_folder:
                        folders.append((item.path, f"{name}/", judge.enter(item.path, chain)))
                    elif item.is_file(follow_symlinks=False):
                        _note(listing, item, name)
                    else:
                        listing.refused[name] = NO_FILE
        except OSError as error:
            listing.refused[shown or "."] = error.strerror or "unreadable"


def _left_out(path: str, root: str, absolute: str, chain: Chain, judge: Judge, *, folder: bool) -> str:
    """Why the user or a .gitignore leaves out what a walk has found; empty if neither does."""
    if judge.exclusion.globs:
        inside = _shown(os.path.relpath(path, root))
        if judge.excludes(inside, f"{absolute.rstrip('/')}/{inside}", folder=folder):
            return EXCLUDED
    return IGNORED if chain and judge.ignores(path, chain, folder=folder) else ""


def _note(listing: Listing, item: os.DirEntry[str] | Path, name: str) -> None:
    reason = secret_reason(name)
    if reason:
        listing.refused[name] = reason
        return
    try:
        state = item.stat(follow_symlinks=False)
    except OSError:
        return  # it vanished while its folder was read
    listing.add(name, state.st_size, state.st_mtime_ns, os.fspath(item))


def _follow(listing: Listing, link: str, name: str, root: str) -> None:
    try:
        real = below(root, link)
        state = os.lstat(real)
    except NotPlain as refused:
        listing.refused[name] = refused.strerror or str(refused)
        return
    except OSError:
        listing.refused[name] = "a symlink to nothing"
        return
    if not stat.S_ISREG(state.st_mode):
        listing.refused[name] = "a symlink to something that is not a file"
    elif not SKIPPED_FOLDERS.isdisjoint(os.path.relpath(real, root).split("/")):
        listing.refused[name] = "a symlink into a folder that is skipped"
    else:
        listing.add(name, state.st_size, state.st_mtime_ns, real)
