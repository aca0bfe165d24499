"""What the prompt and the user hear about files: numbers, kinds, first names, what was left out, and a first look at the text."""

from __future__ import annotations

import importlib.util
import json
import posixpath
from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

from sonde.contexts.files.exclusion import EXCLUDED, IGNORED
from sonde.contexts.files.file_list import Entry, Listing
from sonde.contexts.files.library import Library
from sonde.contexts.files.text import (
    EXPORT_IT,
    OFFICE_KINDS,
    PAGE_SUFFIXES,
    SQLITE,
    Unreadable,
    in_repository,
    is_installed,
)
from sonde.core.canonical import plural
from sonde.core.evidence import Excerpt, Observed
from sonde.errors import how_to_install

_NAMED = 40
_HEAD_FILES, _HEAD_LINES, _HEAD_CHARS = 3, 3, 200
_READ_BYTES = 4096
_KEYED_BYTES, _KEYS = 200_000, 30
_WHOLE_FILES, _RECORDS = 200, 300
_SOURCE = frozenset(
    {".bash", ".c", ".cc", ".cpp", ".cs", ".css", ".go", ".h", ".hpp", ".java", ".js", ".jsx", ".kt", ".lua", ".php"}
    | {".pl", ".py", ".pyi", ".r", ".rb", ".rs", ".scala", ".sh", ".swift", ".ts", ".tsx"}
)


def describe(listing: Listing) -> str:
    """The description of a listing, for the prompt: all files of a few, else the largest folders down to two levels."""
    entries = listing.texts
    lines = [f"{len(entries):,} files, {listing.text_bytes:,} bytes. Kinds: {_kinds(entries, 8) or 'none'}."]
    if len(entries) <= _NAMED:
        lines += ["Files:", *(f"  {shown_name(entry.path)} ({entry.size:,} bytes)" for entry in entries)]
    else:
        files: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        for entry in entries:
            folder = "/".join(entry.path.split("/")[:-1][:2]) or "."
            files[folder] += 1
            sizes[folder] += entry.size
        lines.append("Folders (list_files() has all files):")
        lines += [
            f"  {shown_name(name)}/ ({files[name]:,} files, {size:,} bytes)" for name, size in sizes.most_common(_NAMED)
        ]
        if len(sizes) > _NAMED:
            lines.append(f"  and {len(sizes) - _NAMED:,} more folders")
    if listing.skipped:
        skipped = ", ".join(f"{name} ({count})" for name, count in sorted(listing.skipped.items()))
        lines.append(f"Folders skipped: {skipped}.")
    lines += [f"Not read: {each}." for each in _unread(listing)]
    return "\n".join(lines)


def outline(listing: Listing) -> str:
    """The same in fewer words: the names of a few files, else the largest folders at the top, in one line."""
    entries = listing.texts
    if len(entries) <= _NAMED:
        named = ", ".join(f"{shown_name(entry.path)} ({entry.size:,} bytes)" for entry in entries) or "no files"
    else:
        folders: Counter[str] = Counter()
        for entry in entries:
            if "/" in entry.path:
                folders[f"{shown_name(entry.path.partition('/')[0])}/"] += 1
        parts = [f"{name} {count:,}" for name, count in folders.most_common(_NAMED // 2)]
        parts += [f"{len(folders) - len(parts):,} more folders"] if len(folders) > len(parts) else []
        loose = len(entries) - folders.total()
        parts += [f"{loose:,} in no folder"] if loose and folders else []
        counts = f"{len(entries):,} files, {listing.text_bytes:,} bytes ({_kinds(entries, 4)})"
        named = f"{counts}{': ' if parts else ''}{', '.join(parts)}"
    skipped = [f"folders {', '.join(sorted(listing.skipped))}"] if listing.skipped else []
    hidden = [*skipped, *_unread(listing)]
    return f"{named}. Not read: {'; '.join(hidden)}." if hidden else f"{named}."


def _kinds(entries: Sequence[Entry], most: int) -> str:
    """`.py 90, .md 12, others 3`: the numbers add up."""
    suffixes = Counter(posixpath.splitext(entry.path)[1].lower() or "no suffix" for entry in entries)
    shown = dict(suffixes.most_common(most))
    if others := len(entries) - sum(shown.values()):
        shown["others"] = others
    return ", ".join(f"{kind} {count:,}" for kind, count in shown.items())


def _unread(listing: Listing) -> list[str]:
    """`2 (secret)`, `3 (binary)`: what is not read and why."""
    named = len(listing.entries) - len(listing.texts) - len(listing.binary)  # their suffixes say that they are binary
    reasons = Counter((*listing.refused.values(), *listing.binary.values(), *["binary"] * named))
    return [f"{count} ({reason})" for reason, count in sorted(reasons.items())]


def whole_text(library: Library, most_chars: int) -> Observed | None:
    """All files with their lines numbered, as excerpts that may be cited; None if that takes more than so many characters, or if one
    is a long list of records: to go through those is work for code, and reading them first costs more than it tells.
    """
    listing = library.listing
    if not listing.texts or len(listing.texts) > _WHOLE_FILES or listing.text_bytes > most_chars:
        return None
    parts: list[str] = []
    excerpts: list[Excerpt] = []
    for entry in listing.texts:
        try:
            with library.open(entry) as text:
                if text.size > most_chars:
                    return None
                read = text.decode(text.read(text.start, text.size)).removesuffix("\n")
        except (Unreadable, OSError):
            continue
        if not read.strip():
            continue
        lines = read.split("\n")
        records = sum(bool(line) and not line[0].isspace() for line in lines)
        if len(lines) > _RECORDS and records > 0.9 * len(lines):
            return None
        parts += [f"{shown_name(entry.path)}:", *(f"{number}: {line}" for number, line in enumerate(lines, 1))]
        excerpts.append(Excerpt.of_lines(entry.path, 1, len(lines), read))
    shown = "\n".join(parts)
    return Observed(shown, tuple(excerpts)) if 0 < len(shown) <= most_chars else None


def first_lines(library: Library) -> Observed:
    """The first lines of a few files that are no source code, and the keys of JSON. A line that is cut may not be cited."""
    texts, parts = library.listing.texts, list[str]()
    excerpts: list[Excerpt] = []
    for entry in _examples(texts):
        try:
            with library.open(entry) as text:
                data = text.read(text.start, _READ_BYTES)
                read, ended = text.decode(data), text.start + len(data) >= text.size
                keys = _keys(text.decode(text.read(text.start, text.size))) if _may_have_keys(entry, text.size) else ""
        except (Unreadable, OSError):
            continue
        lines = read.removesuffix("\n").split("\n")[:_HEAD_LINES]
        whole = read.count("\n") + ended  # as many lines were read to their end
        shown = [f"{at}: {line[:_HEAD_CHARS]}{'…' * (len(line) > _HEAD_CHARS)}" for at, line in enumerate(lines, 1)]
        parts += [f"{shown_name(entry.path)} begins:{keys}", *shown]
        excerpts += [
            Excerpt.of_lines(entry.path, at, at, line)
            for at, line in enumerate(lines[:whole], 1)
            if len(line) <= _HEAD_CHARS
        ]
    return Observed("\n".join(parts), tuple(excerpts))


def _examples(entries: Sequence[Entry]) -> list[Entry]:
    """All of a few files, else the largest of each kind that makes up a tenth of the data. Not source: it begins with imports."""
    sizes: Counter[str] = Counter()
    largest: dict[str, Entry] = {}
    for entry in sorted(entries, key=lambda each: -each.size):
        kind = posixpath.splitext(entry.path)[1].lower()
        sizes[kind] += entry.size
        largest.setdefault(kind, entry)
    if len(entries) <= _HEAD_FILES:
        return [each for each in entries if posixpath.splitext(each.path)[1].lower() not in _SOURCE]
    kinds = [
        kind for kind, size in sizes.most_common(_HEAD_FILES) if size >= sizes.total() / 10 and kind not in _SOURCE
    ]
    return [largest[kind] for kind in kinds]


def _may_have_keys(entry: Entry, size: int) -> bool:
    return entry.path.lower().endswith(".json") and size <= _KEYED_BYTES


def _keys(text: str) -> str:
    """The keys of a JSON object or of the first row of a list."""
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    rows = f" {len(cast('list[Any]', value)):,} items," if isinstance(value, list) else ""
    first = cast("Any", value[0] if isinstance(value, list) and value else value)
    keys = list(cast("dict[str, Any]", first)) if isinstance(first, dict) else []
    listed = ", ".join(shown_name(key[:40]) for key in keys[:_KEYS])
    return f"{rows} keys {listed}{', …' * (len(keys) > _KEYS)}" if keys else ""


def raw_pages(listing: Listing) -> int:
    """How many web pages are shown with their markup because they lie in a repository; 0 unless they are half of the texts or more."""
    pages = [entry for entry in listing.texts if entry.path.lower().endswith(PAGE_SUFFIXES) and not entry.member]
    if not pages or 2 * len(pages) < len(listing.texts):
        return 0
    folders = Counter(posixpath.dirname(entry.real) for entry in pages)
    return sum(count for folder, count in folders.items() if in_repository(posixpath.join(folder, "page")))


def left_out(listing: Listing) -> str:
    """What is left out, in one line for the user: `4 binary, 1 secret (.env)`; empty if everything is read."""
    kinds: list[str] = []
    databases = [shown_name(path) for path, kind in listing.binary.items() if kind == SQLITE]
    if binary := len(listing.entries) - len(listing.texts) - len(databases):
        kinds.append(f"{binary:,} binary")
    if databases:
        named = ", ".join(databases[:3]) + (", …" if len(databases) > 3 else "")
        kinds.append(f"{plural(len(databases), 'SQLite database')} ({named}; {EXPORT_IT})")
    secrets = [shown_name(posixpath.basename(path)) for path, why in listing.refused.items() if "secret" in why]
    if secrets:
        named = ", ".join(secrets[:3]) + (", …" if len(secrets) > 3 else "")
        kinds.append(f"{plural(len(secrets), 'secret')} ({named})")
    pdfs = sum(entry.path.lower().endswith(".pdf") for entry in listing.texts)
    if pdfs and not is_installed("pdf"):
        kinds.append(f"{plural(pdfs, 'PDF')} ({how_to_install('pdf')})")
    if not is_installed("office"):
        suffixes = Counter(posixpath.splitext(entry.path)[1].lower() for entry in listing.texts)
        office = [
            f"{suffixes[name]:,} {name[1:]}"
            for name, kind in OFFICE_KINDS.items()
            if kind == "office" and suffixes[name]
        ]
        kinds += [f"{', '.join(office)} ({how_to_install('office')})"] if office else []
    zsts = sum(entry.path.lower().endswith(".zst") for entry in listing.texts)
    if zsts and not any(map(importlib.util.find_spec, ("zstandard", "compression"))):
        kinds.append(f"{zsts:,} zst (pip install zstandard)")
    for reason, way_on in ((IGNORED, "; --no-ignore reads them"), (EXCLUDED, "")):
        hidden = [shown_name(path) for path, why in listing.refused.items() if why == reason]
        folders = sum(path.endswith("/") for path in hidden)
        counts = [(folders, "folder"), (len(hidden) - folders, "file")]
        counted = " and ".join(plural(count, what) for count, what in counts if count)
        named = ", ".join(sorted(hidden)[:3]) + (", …" if len(hidden) > 3 else "")
        kinds += [f"{counted} {reason} ({named}{way_on})"] if hidden else []
    if listing.skipped:
        named = ", ".join(
            f"{name} ({count:,})" if count > 1 else name for name, count in sorted(listing.skipped.items())
        )
        kinds.append(f"{'folder' if listing.skipped.total() == 1 else 'folders'} {named}")
    others = Counter(why for why in listing.refused.values() if "secret" not in why and why not in (IGNORED, EXCLUDED))
    kinds += [f"{count:,} × {why}" for why, count in others.items()]
    return ", ".join(kinds)


def shown_name(path: str) -> str:
    """A path on one line: names with line breaks or control characters are quoted."""
    return path if path.isprintable() else json.dumps(path)
