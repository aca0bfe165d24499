"""Files by the names that tools use: looked up, opened, and remembered where that is costly (line indexes, converted text).

The folders are walked once, at the first question about them; a file that appears later is not seen. What is remembered is kept
under the file's size and times, so a changed file is read anew.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import posixpath
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from sonde.contexts.files.exclusion import EXCLUDED, Exclusion, Judge
from sonde.contexts.files.file_list import ARCHIVES, BINARY_SUFFIXES, SKIPPED_FOLDERS, Entry, Listing, list_sources
from sonde.contexts.files.text import (
    BLOCK,
    PAGE_SUFFIXES,
    Archive,
    LeftOut,
    LineIndex,
    Text,
    Unreadable,
    binary_kind,
    open_archive,
    open_text,
    signature,
)
from sonde.core.deadline import deadline_in_force
from sonde.core.patterns import Pattern, compiled, escaped
from sonde.disk import AnyPath, open_exactly, secret_reason
from sonde.errors import ToolFault
from sonde.parsers.documents import KINDS

if TYPE_CHECKING:
    from sonde.core.mask import Mask

GLOB_CHARS = 4096
"""No path is longer, and to read a glob takes time by the square of its brackets."""
_HASHED_FILES, _HASHED_BYTES = 2_000, 64_000_000
_CONVERTED_BYTES = 128_000_000
MASKED_BYTES = 256_000_000
_ARCHIVES, _ARCHIVED_BYTES, _ARCHIVED_NAMES = 200, 1_000_000_000, 32_000_000
"""How many archives are opened, what may be in them, and what the names of their members may take: those of 100,000, if they are short."""
_LOOKED_AT = 2_000
"""How many files whose names say nothing are opened for their first bytes when they are listed."""
_TEXT_SUFFIXES = frozenset(
    """
    .txt .md .rst .adoc .tex .log .out .err .csv .tsv .json .jsonl .ndjson .yaml .yml .toml .ini .cfg .conf .env .xml .html .htm
    .xhtml .svg .ipynb .sql .patch .diff .py .pyi .js .jsx .mjs .ts .tsx .css .scss .vue .java .kt .scala .go .rs .c .h .cc .cpp .hpp
    .cs .rb .php .pl .lua .r .swift .sh .bash .bat .ps1 .proto .tf .gradle .cmake .lock .pdf .docx .xlsx .pptx .odt .ods .odp .epub
    .eml .rtf .gz .bz2 .xz .zst
    """.split()  # noqa: SIM905 - suffixes read better as text
)
"""Kinds that are text or made text, which opening each of 100,000 would only confirm."""
_TELLING_SUFFIXES = _TEXT_SUFFIXES | BINARY_SUFFIXES
V = TypeVar("V")


class Library:
    """Everything below some files, folders and globs, and texts that are only in memory."""

    def __init__(
        self,
        sources: Sequence[str | Path],
        texts: Mapping[str, str],
        within: Sequence[AnyPath] = (),
        *,
        without: str = "",
        source: bool = False,
        exclusion: Exclusion | None = None,
    ) -> None:
        """`without` is the layer that the parsers of documents may lack; `source` shows the markup of web pages."""
        self._exclusion = exclusion or Exclusion()
        self.without = without
        self._source = source
        self.left_out: dict[str, str] = {}
        """Documents that were over a limit of their parser, with the reason: `took longer than 10 s to read`."""
        self._over_limit: dict[object, tuple[str, str]] = {}
        """What goes on from the name of such a file, as a sentence and as the reason; the name may be masked later."""
        self._as_it_is: set[object] = set()
        self._sources = sources
        self._within = within
        self._texts = {name: text.encode("utf-8", "replace") for name, text in texts.items()}
        self._listing: Listing | None = None
        self._indexes: _Recent[LineIndex] = _Recent(64)
        self._converted: _Recent[Text] = _Recent(_CONVERTED_BYTES, lambda text: text.size)
        self._archives: _Recent[Archive] = _Recent(_CONVERTED_BYTES, lambda archive: archive.size)
        self._lock = threading.Lock()
        self.mask: Mask | None = None
        self._masked: _Recent[Text] = _Recent(_CONVERTED_BYTES, lambda text: text.size)

    def mask_with(self, mask: Mask | None) -> None:
        """From now on every text is masked before anyone reads a part of it, and so are names; None: nothing is any more."""
        before, self.mask = self.mask, mask
        if mask is before:
            return
        self._indexes, self._masked = _Recent(64), _Recent(_CONVERTED_BYTES, lambda text: text.size)

        def renamed(name: str) -> str:
            real = name if before is None else before.restored(name)
            return real if mask is None else mask.hidden_name(real)

        listing = self.listing
        self._texts = {renamed(name): data for name, data in self._texts.items()}
        self.left_out = {renamed(name): reason for name, reason in self.left_out.items()}
        listing.binary = {renamed(name): kind for name, kind in listing.binary.items()}
        listing.piped = {renamed(name): data for name, data in listing.piped.items()}
        listing.refused = {renamed(name): reason for name, reason in listing.refused.items()}
        entries = [entry._replace(path=renamed(entry.path)) for entry in listing.entries.values()]
        listing.entries = {entry.path: entry for entry in sorted(entries)}
        listing.__dict__.pop("texts", None)  # cached

    @property
    def listing(self) -> Listing:
        """What was found; the first call walks the folders."""
        with self._lock:
            if self._listing is None:
                self._listing = self._list()
            return self._listing

    @property
    def entries(self) -> Mapping[str, Entry]:
        """Files by name, sorted."""
        return self.listing.entries

    def entry(self, path: str) -> Entry:
        """The file of this name; a ToolFault says why it is missing and what comes near."""
        found = self.entries.get(path) or self.entries.get(self._normal(path))
        if found:
            return found
        reason = self.listing.refused.get(self._normal(path))
        if reason:
            raise ToolFault(
                f"{path!r} is not read: {reason}. Only the user can allow it, by naming this file itself as a source."
            )
        # Files of the same name elsewhere, else files whose name contains this one's stem.
        name = posixpath.basename(path.rstrip("/"))
        stem = name.split(".")[0].lower()
        same = [known for known in self.entries if posixpath.basename(known) == name]
        like = [known for known in self.entries if stem and stem in posixpath.basename(known).lower()]
        near = (same or like)[:5]
        hint = f" Did you mean {', '.join(map(repr, near))}?" if near else " list_files() shows what there is."
        raise ToolFault(f"there is no file {path!r} here.{hint}")

    def chosen(self, path: str | None) -> list[Entry]:
        """One file, all below a folder, all that match a glob, or everything; a ToolFault if that is nothing."""
        if path is None or path in ("", ".", "./", "*", "**"):
            return self.listing.texts
        name = self._normal(path)
        if name in self.entries:
            return [self.entries[name]]
        below = [entry for entry in self.entries.values() if entry.path.startswith(f"{name}/")]
        if below:
            return below
        return self.matching(path) if re.search(r"[*?\[]", path) else [self.entry(path)]

    def matching(self, glob: str) -> list[Entry]:
        """All files whose path (or, for a glob without a slash, name) matches."""
        pattern = glob_pattern(glob)
        named = "/" not in glob
        found = [
            e
            for e in self.entries.values()
            if pattern.fullmatch((posixpath.basename(e.path) if named else e.path).encode())
        ]
        if not found:
            raise ToolFault(f"no file matches {glob!r}; list_files() shows what there is.")
        return found

    def open(self, entry: Entry) -> Text:
        """The text of a file, as it is now and masked if it must be; Unreadable says why it has none."""
        if self.mask is None:
            return self._open(entry)
        key = signature(entry) or (entry.path, len(self._memory(entry.path)))
        if (known := self._masked.get(key)) is not None:
            return known
        with self._open(entry) as text:
            if text.size > MASKED_BYTES:
                why = f"larger than {MASKED_BYTES:,} bytes, and a file is masked in memory"
                self.left_out[entry.path] = why
                raise LeftOut(f"{entry.path} is {why}.", why)
            try:
                whole = self.mask.hidden(text.decode(text.read(text.start, text.size)))
            except ToolFault:
                why = "was still being masked when the run had to end"
                self.left_out[entry.path] = why
                raise LeftOut(f"{entry.path} {why}.", why) from None
            masked = Text.of_bytes(whole.encode("utf-8", "replace"), text.label)
        self._masked.put(key, masked)
        return masked

    def _open(self, entry: Entry) -> Text:
        if not entry.real:
            return Text.of_bytes(self._memory(entry.path))
        key = signature(entry)
        if (converted := self._converted.get(key)) is not None:
            return converted
        if known := self._over_limit.get(key):
            raise LeftOut(f"{entry.path}{known[0]}", known[1])  # it has had its time once
        lowered = entry.path.lower()
        as_it_is = key in self._as_it_is or (self._source and lowered.endswith(PAGE_SUFFIXES))
        try:
            if entry.member:
                text = self._archive(entry).open(entry, without=self.without, as_it_is=as_it_is)
            else:
                text = open_text(entry, without=self.without, as_it_is=as_it_is)
        except LeftOut as reason:
            self.left_out[entry.path] = reason.why
            self._over_limit[key] = reason.message.removeprefix(entry.path), reason.why
            raise
        if text.in_memory and (not entry.member or text.label in KINDS):
            self._converted.put(key, text)
        elif lowered.endswith((*PAGE_SUFFIXES, ".ipynb")):  # a template, say: it was looked at once
            self._as_it_is.add(key)
        return text

    def unreadable(self) -> list[Unreadable]:
        """Why none of the files can be read; empty as soon as one can, and if there is no time to look at all of them."""
        reasons: list[Unreadable] = []
        run = deadline_in_force()
        for entry in self.listing.texts or self.entries.values():
            if run is not None and run.is_over():
                return []
            try:
                self.open(entry).close()
            except Unreadable as reason:
                reasons.append(reason)
            else:
                return []
        return reasons

    def index(self, entry: Entry, text: Text) -> LineIndex:
        """Where the lines of an open text begin."""
        if text.size <= BLOCK:
            return LineIndex.of(text)
        key = signature(entry)
        found = self._indexes.get(key)
        if found is None:
            try:
                found = LineIndex.of(text)
            except LeftOut as over:
                self.left_out[entry.path] = over.why
                raise LeftOut(f"{entry.path} {over.why}.", over.why) from None
            self._indexes.put(key, found)
        return found

    def stamp(self) -> str:
        """A hash of names, sizes and times: it changes whenever a file is written."""
        return _digest(f"{e.path}\0{e.size}\0{e.mtime_ns}\0{self._memory_hash(e)}" for e in self.entries.values())

    def fingerprint(self) -> str:
        """A hash of names and contents for up to 2,000 files and 64 MB, of names, sizes and times above."""
        entries = self.entries.values()
        if len(entries) > _HASHED_FILES or self.listing.total_bytes > _HASHED_BYTES:
            return self.stamp()
        rows: list[str] = []
        hashes: dict[str, str] = {}
        for entry in entries:
            content = self._memory_hash(entry) or hashes.get(entry.real)
            if not content:
                try:
                    with os.fdopen(open_exactly(entry.real), "rb") as file:
                        content = hashlib.file_digest(file, "sha256").hexdigest()
                except OSError:
                    content = "unreadable"
                hashes[entry.real] = content
            rows.append(f"{entry.path}\0{entry.size}\0{content}")
        return _digest(rows)

    def _list(self) -> Listing:
        """Walk the folders; a library of other files overrides this."""
        listing = list_sources(self._sources, self._within, self._exclusion) if self._sources else Listing()
        self._list_members(listing)
        doubtful = (
            entry for entry in listing.entries.values() if entry.real and not entry.member and _is_doubtful(entry.path)
        )
        kinds = ((entry.path, binary_kind(entry)) for entry in itertools.islice(doubtful, _LOOKED_AT))
        listing.binary = {path: kind for path, kind in kinds if kind}
        for name, data in self._texts.items():
            listing.add(name, len(data), 0, "")
        listing.entries = dict(sorted(listing.entries.items()))
        return listing

    def _list_members(self, listing: Listing) -> None:
        """Put the members of each archive in its place. They are judged by their names like files in a folder."""
        judge = Judge(self._exclusion)
        packed = [entry for entry in listing.entries.values() if entry.real.lower().endswith(ARCHIVES)]
        unpacked_bytes = named_bytes = 0
        for number, entry in enumerate(packed):
            try:
                if number >= _ARCHIVES or unpacked_bytes > _ARCHIVED_BYTES or named_bytes > _ARCHIVED_NAMES:
                    why = f"not opened: at most {_ARCHIVES} archives are, with {_ARCHIVED_BYTES:,} bytes and about 100,000 members"
                    raise LeftOut(f"{entry.path} is {why}.", why)  # noqa: TRY301 - it is left out like one that is broken
                archive = self._archive(entry)
            except LeftOut as reason:
                self.left_out[entry.path] = reason.why
                self._over_limit[signature(entry)] = reason.message.removeprefix(entry.path), reason.why
                continue
            except Unreadable:
                continue  # it is gone, and says so when it is read
            unpacked_bytes += archive.size
            named_bytes += archive.names
            if archive.cut:
                self.left_out[entry.path] = f"{archive.cut}; the members before are read"
            del listing.entries[entry.path]
            listing.refused |= {f"{entry.path}/{name}": f"{why} in an archive" for name, why in archive.refused.items()}
            for name, data in archive.members.items():
                path = f"{entry.path}/{name}"
                if skipped := SKIPPED_FOLDERS.intersection(name.split("/")[:-1]):
                    listing.skipped.update(skipped)
                elif judge.excludes(name):
                    listing.refused[path] = EXCLUDED
                elif secret := secret_reason(name):
                    listing.refused[path] = secret
                else:
                    listing.entries.setdefault(
                        path, Entry(path, len(data or b""), entry.mtime_ns, entry.real, member=name)
                    )

    def _archive(self, entry: Entry) -> Archive:
        """What is in the archive of a member."""
        whole = signature(entry._replace(member=""))
        archive = self._archives.get(whole)
        if archive is None:
            archive = open_archive(entry, without=self.without)
            self._archives.put(whole, archive)
        return archive

    def _memory(self, name: str) -> bytes:
        found = self._texts.get(name)
        return self.listing.piped.get(name, b"") if found is None else found

    def _memory_hash(self, entry: Entry) -> str:
        return "" if entry.real else hashlib.sha256(self._memory(entry.path)).hexdigest()

    def _normal(self, path: str) -> str:
        real = os.path.normpath(path)
        for root in self._listing.roots if self._listing and real.startswith("/") else ():
            if real.startswith(f"{root}/"):
                return real.removeprefix(f"{root}/")
        return posixpath.normpath(path.replace("\\", "/")) if path else path


def _is_doubtful(path: str) -> bool:
    suffix = posixpath.splitext(path)[1].lower()
    return suffix in (".sqlite", ".sqlite3") or suffix not in _TELLING_SUFFIXES


class _Recent(Generic[V]):
    """The last values by key, up to a limit of their number or of their weight together, for several threads."""

    def __init__(self, limit: int, weight: Callable[[V], int] = lambda _: 1) -> None:
        self._limit = limit
        self._weight = weight
        self._total = 0
        self._values: OrderedDict[object, V] = OrderedDict()
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._values)

    def get(self, key: object) -> V | None:
        with self._lock:
            return self._values.get(key) if key is not None else None

    def put(self, key: object, value: V) -> None:
        if key is None:
            return
        with self._lock:
            if key in self._values:
                self._total -= self._weight(self._values.pop(key))
            self._values[key] = value
            self._total += self._weight(value)
            while self._total > self._limit and len(self._values) > 1:
                self._total -= self._weight(self._values.popitem(last=False)[1])


def glob_pattern(glob: str) -> Pattern:
    """A glob as a pattern over whole paths: `*` and `?` stay within a folder, `**` does not, `{a,b}` is either."""
    if len(glob) > GLOB_CHARS:
        raise ToolFault(
            f"a glob of {len(glob)} characters: no path is longer than {GLOB_CHARS}. For example: src/**/*.py"
        )
    return compiled(f"(?s){_glob_source(glob)}")


def _glob_source(glob: str) -> str:
    fixed = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    source = ""
    for token in re.findall(r"\*\*/|\*\*|\*|\?|\[[^\]]+\]|\{[^{}]*\}|.", glob, re.DOTALL):
        if token in fixed:
            source += fixed[token]
        elif token[0] == "[" and len(token) > 2:
            negated = token[1] in "!^"
            signs = escaped(token[2 if negated else 1 : -1]).replace(r"\-", "-")
            source += f"[{'^' if negated else ''}{signs}]"
        elif token[0] == "{" and len(token) > 1:
            source += f"(?:{'|'.join(_glob_source(part) for part in token[1:-1].split(','))})"
        else:
            source += escaped(token)
    return source


def _digest(rows: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row).encode())
    return digest.hexdigest()
