"""What the prompt and the user are told about files: numbers, kinds, first names, and what was left out. Never content."""

from __future__ import annotations

import importlib.util
import json
import posixpath
from collections import Counter

from sonde.contexts.files.file_list import Listing
from sonde.core.plurals import plural

_NAMED = 40


def describe(listing: Listing) -> str:
    """The description of a listing, for the prompt."""
    entries = listing.entries.values()
    lines = [f"{len(entries):,} files, {listing.total_bytes:,} bytes. Kinds: {_kinds(listing)}."]
    shown = [
        f"  {shown_name(entry.path)} ({entry.size:,} bytes)" for entry, _ in zip(entries, range(_NAMED), strict=False)
    ]
    lines += (
        ["Files:", *shown] if len(entries) <= _NAMED else ["Folders (list_files() has all files):", *_folders(listing)]
    )
    return "\n".join([*lines, *_left_out(listing)])


def left_out(listing: Listing) -> str:
    """What is there and not read, in one line for the user: `4 binary, 1 secret (.env)`; empty when everything is read."""
    kinds: list[str] = []
    if binary := len(listing.entries) - len(listing.texts):
        kinds.append(f"{binary:,} binary")
    secrets = [shown_name(posixpath.basename(path)) for path, why in listing.refused.items() if "secret" in why]
    if secrets:
        named = ", ".join(secrets[:3]) + (", …" if len(secrets) > 3 else "")
        kinds.append(f"{plural(len(secrets), 'secret')} ({named})")
    pdfs = sum(entry.path.lower().endswith(".pdf") for entry in listing.texts)
    if pdfs and importlib.util.find_spec("pypdf") is None:
        kinds.append(f"{plural(pdfs, 'PDF')} (pip install 'sonde-rlm[pdf]')")
    others = Counter(why for why in listing.refused.values() if "secret" not in why)
    kinds += [f"{count:,} × {why}" for why, count in others.items()]
    return ", ".join(kinds)


def shown_name(path: str) -> str:
    """A path on one line: names with line breaks or control characters are quoted."""
    return path if path.isprintable() else json.dumps(path)


def _kinds(listing: Listing) -> str:
    kinds = Counter(posixpath.splitext(path)[1].lower() or "no suffix" for path in listing.entries)
    return ", ".join(f"{kind} {count:,}" for kind, count in kinds.most_common(8)) or "none"


def _folders(listing: Listing) -> list[str]:
    """The folders down to two levels with their files and bytes, the largest first."""
    files: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for entry in listing.entries.values():
        folder = "/".join(entry.path.split("/")[:-1][:2]) or "."
        files[folder] += 1
        sizes[folder] += entry.size
    rows = [
        f"  {shown_name(name)}/ ({files[name]:,} files, {size:,} bytes)" for name, size in sizes.most_common(_NAMED)
    ]
    return rows + ([f"  and {len(sizes) - _NAMED:,} more folders"] if len(sizes) > _NAMED else [])


def _left_out(listing: Listing) -> list[str]:
    lines: list[str] = []
    if listing.skipped:
        folders = ", ".join(f"{name} ({count})" for name, count in sorted(listing.skipped.items()))
        lines.append(f"Folders skipped: {folders}.")
    reasons = Counter(listing.refused.values())
    lines.extend(f"Not read: {count} ({reason})." for reason, count in sorted(reasons.items()))
    return lines
