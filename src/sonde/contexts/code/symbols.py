"""Symbols of a source file: what it defines, under which dotted name, on which lines.

Source is parsed in a confined process, by `parsers.grammars`. Lines are those of `contexts.files`: only a newline ends one, so
what is found here can be cited there. A file that cannot be parsed has no symbols and a note that says why; its text stays readable.
"""

from __future__ import annotations

import importlib.util
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sonde.parsers.documents import ParserLimits, ParserUnavailable, Unparsed, parse as parse_document

LIMITS = ParserLimits(cpu_s=10, per_record=True)
BATCH = 50
"""Texts that are handed over together: one at a time would cost more than parsing them."""
NO_SYMBOLS = "this kind of file has no symbols; read it by lines"
Found: Any = list[tuple[str, str, int, int]] | str
_SUFFIXES = {
    "python": ".py .pyi .pyw",
    "javascript": ".js .jsx .mjs .cjs",
    "typescript": ".ts .mts .cts",
    "tsx": ".tsx",
    "go": ".go",
    "rust": ".rs",
    "java": ".java",
    "c": ".c .h",
    "cpp": ".cc .cpp .cxx .hpp .hh .hxx",
    "ruby": ".rb",
}
_LANGUAGES = {suffix: language for language, suffixes in _SUFFIXES.items() for suffix in suffixes.split()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Symbol:
    """One definition; `name` is dotted within its file, as in `Class.method`. Lines count from 1, both included."""

    name: str
    signature: str
    start_line: int
    end_line: int

    @property
    def parent(self) -> str:
        """The name of what it is a member of; empty at the top."""
        return self.name.rpartition(".")[0]

    @property
    def depth(self) -> int:
        """How far below the top of the file."""
        return self.name.count(".")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """The symbols of a file in order, or a note on why it has none."""

    language: str
    symbols: tuple[Symbol, ...] = ()
    note: str = ""
    over_limit: str = ""
    """Which limit of the parser it exceeded, if one."""

    def members(self, scope: str) -> list[Symbol]:
        """What is defined directly in a scope; an empty scope is the top of the file."""
        return [symbol for symbol in self.symbols if symbol.parent == scope]

    def find(self, name: str) -> Symbol | None:
        """The symbol of this dotted name."""
        return next((symbol for symbol in self.symbols if symbol.name == name), None)


def language_of(path: str) -> str:
    """The language of a file by its suffix; empty if unknown."""
    return _LANGUAGES.get(posixpath.splitext(path)[1].lower(), "")


def lacking_parser(language: str) -> bool:
    """Whether the extra `code`, which has the parser of this language, is not installed. Python needs none."""
    package = f"tree_sitter_{'typescript' if language == 'tsx' else language}"
    return language not in ("", "python") and not all(map(importlib.util.find_spec, ("tree_sitter", package)))


def parse(sources: Sequence[tuple[str, str]], *, without: str = "") -> list[Parsed]:
    """The symbols of source texts, given with their paths; no text makes it raise.

    A second `size` in one scope (a setter, an overload) becomes `size~2`.
    """
    done = [Parsed(language=language_of(path) or "text", note=NO_SYMBOLS) for path, _ in sources]
    left = [(at, parsed.language, sources[at][1]) for at, parsed in enumerate(done) if parsed.language != "text"]
    while left:
        batch = [(at, language, text.encode("utf-8", "replace")) for at, language, text in left[:BATCH]]
        files = [(language, len(source)) for _, language, source in batch]
        whole = b"".join(source for _, _, source in batch)
        read = 0
        try:
            for found in parse_document("symbols", whole, Found, LIMITS, without=without, files=files):
                at, language, _ = batch[read]
                done[at] = Parsed(language=language, note=found) if isinstance(found, str) else _named(language, found)
                read += 1
        except ParserUnavailable as reason:
            for at, language, _ in left:
                done[at] = Parsed(language=language, note=f"it {reason}; read it by lines")
            return done
        except Unparsed as reason:  # the fault of the one that is being read: go on after it
            at, language, _ = batch[read]
            done[at] = Parsed(language=language, note=f"it {reason}; read it by lines", over_limit=str(reason))
            read += 1
        left = left[read:]
    return done


def _named(language: str, found: Sequence[tuple[str, str, int, int]]) -> Parsed:
    seen: dict[str, int] = {}
    symbols: list[Symbol] = []
    for name, signature, first, last in found:
        seen[name] = count = seen.get(name, 0) + 1
        unique = name if count == 1 else f"{name}~{count}"
        symbols.append(Symbol(name=unique, signature=signature, start_line=first, end_line=last))
    return Parsed(language=language, symbols=tuple(symbols))
