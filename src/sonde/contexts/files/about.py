"""What the prompt and the user hear about files: numbers, kinds, first names, and what was left out. Never content."""

from __future__ import annotations

import importlib.util
import json
import posixpath
from collections import Counter

from sonde.contexts.files.file_list import Listing
from sonde.contexts.files.text import OFFICE_KINDS, is_installed
from sonde.core.canonical import plural

_NAMED = 40


def describe(listing: Listing) -> str:
    """The description of a listing, for the prompt: all files of a few, else the largest folders down to two levels."""
    entries = listing.entries.values()
    suffixes = Counter(posixpath.splitext(path)[1].lower() or "no suffix" for path in listing.entries)
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in suffixes.most_common(8)) or "none"
    lines = [f"{len(entries):,} files, {listing.total_bytes:,} bytes. Kinds: {kinds}."]
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
    reasons = Counter(listing.refused.values())
    lines += [f"Not read: {count} ({reason})." for reason, count in sorted(reasons.items())]
    return "\n".join(lines)


def left_out(listing: Listing) -> str:
    """What is left out, in one line for the user: `4 binary, 1 secret (.env)`; empty if everything is read."""
    kinds: list[str] = []
    if binary := len(listing.entries) - len(listing.texts):
        kinds.append(f"{binary:,} binary")
    secrets = [shown_name(posixpath.basename(path)) for path, why in listing.refused.items() if "secret" in why]
    if secrets:
        named = ", ".join(secrets[:3]) + (", …" if len(secrets) > 3 else "")
        kinds.append(f"{plural(len(secrets), 'secret')} ({named})")
    pdfs = sum(entry.path.lower().endswith(".pdf") for entry in listing.texts)
    if pdfs and not is_installed("pdf"):
        kinds.append(f"{plural(pdfs, 'PDF')} (pip install 'sonde-rlm[pdf]')")
    if not is_installed("office"):
        suffixes = Counter(posixpath.splitext(entry.path)[1].lower() for entry in listing.texts)
        office = [
            f"{suffixes[name]:,} {name[1:]}"
            for name, kind in OFFICE_KINDS.items()
            if kind == "office" and suffixes[name]
        ]
        kinds += [f"{', '.join(office)} (pip install 'sonde-rlm[office]')"] if office else []
    zsts = sum(entry.path.lower().endswith(".zst") for entry in listing.texts)
    if zsts and not any(map(importlib.util.find_spec, ("zstandard", "compression"))):
        kinds.append(f"{zsts:,} zst (pip install zstandard)")
    others = Counter(why for why in listing.refused.values() if "secret" not in why)
    kinds += [f"{count:,} × {why}" for why, count in others.items()]
    return ", ".join(kinds)


def shown_name(path: str) -> str:
    """A path on one line: names with line breaks or control characters are quoted."""
    return path if path.isprintable() else json.dumps(path)
