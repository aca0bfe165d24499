"""What the nav tools print: outlines, and source in chunks that can be cited."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sonde.contexts.code.finder import Finder
from sonde.contexts.code.symbols import Parsed

CHUNK_CHARS = 8_000
OUTLINE_CHARS = 20_000
OUTLINED_FILES = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Part of a source text, with the lines it comes from."""

    text: str
    start_line: int
    end_line: int


def outline(finder: Finder) -> str:
    """The skeleton: every symbol of a few files, or the folders of many."""
    sources = finder.sources
    if finder.single or len(sources) <= OUTLINED_FILES:
        found = [(finder.single, finder.parsed(finder.single))] if finder.single else finder.every(sources)
        return _bounded(line for path, parsed in found for line in outline_file(path, parsed))
    counts = Counter("/".join(entry.path.split("/")[:-1][:3]) or "." for entry in sources)
    head = f"{len(sources):,} source files. nav_ls('folder') lists a folder, nav_ls('folder/file.py') the symbols of a file."
    return _bounded([head, *(f"{folder}/  ({count:,} files)" for folder, count in sorted(counts.items()))])


def outline_file(path: str, parsed: Parsed) -> Iterator[str]:
    """A file's symbols, indented, with their lines."""
    yield f"# {path} ({parsed.language}){f': {parsed.note}' if parsed.note else ''}"
    for symbol in parsed.symbols:
        yield f"{'    ' * symbol.depth}{symbol.signature}  # {symbol.start_line}-{symbol.end_line}"


def chunks(text: str, first_line: int) -> list[Chunk]:
    """The text in parts of at most 8,000 characters, broken at line ends; a longer line is broken where it must."""
    parts: list[Chunk] = []
    held: list[str] = []
    size, line = 0, first_line
    for piece in (
        f"{whole}\n"[start : start + CHUNK_CHARS]
        for whole in text.split("\n")
        for start in range(0, len(whole) + 1, CHUNK_CHARS)
    ):
        if held and size + len(piece) > CHUNK_CHARS:
            parts.append(_chunk(held, line))
            line += parts[-1].text.count("\n") + bool(held[-1].endswith("\n"))
            held, size = [], 0
        held.append(piece)
        size += len(piece)
    return [*parts, _chunk(held, line)] if held or not parts else parts


def _chunk(held: list[str], line: int) -> Chunk:
    text = "".join(held).removesuffix("\n")
    return Chunk(text=text, start_line=line, end_line=line + text.count("\n"))


def _bounded(lines: Iterable[str]) -> str:
    held: list[str] = []
    size = 0
    for line in lines:
        size += len(line) + 1
        if size > OUTLINE_CHARS:
            held.append("… cut here; nav_ls(scope) shows the rest by scope.")
            break
        held.append(line)
    return "\n".join(held)
