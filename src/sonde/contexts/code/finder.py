"""From a name to the symbol that is meant, in one file or a whole repository.

In one file a symbol is called `Class.method`. In a repository it is called `path/file.py:Class.method` or
`package.file.Class.method`; a bare `Class.method` works too if only one file defines it. Files are parsed when a question needs them,
and again only if they change.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sonde.contexts.code.symbols import BATCH, Parsed, Symbol, language_of, parse
from sonde.contexts.files import FilesContext
from sonde.contexts.files.file_list import Entry
from sonde.contexts.files.grep import scan_file, time_to_search
from sonde.contexts.files.text import Unreadable, signature
from sonde.core.deadline import SystemClock, deadline_in_force
from sonde.core.patterns import compiled, escaped

_KEPT_FILES = 20_000
_SOURCE_BYTES = 16_000_000
_TOGETHER_BYTES = 4_000_000
NAME_CHARS = 4096
"""No path and no symbol is longer, and every beginning of a dotted name is tried as a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSymbol:
    """A symbol and its file; the whole file if `symbol` is None."""

    path: str
    symbol: Symbol | None


class Finder:
    """Symbols by name over the source files of a library."""

    def __init__(self, files: FilesContext) -> None:
        self._files = files
        self._parsed: OrderedDict[str, tuple[object, Parsed]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def sources(self) -> list[Entry]:
        """Files in a language that has symbols, sorted."""
        return [entry for entry in self._files.library.entries.values() if language_of(entry.path)]

    @property
    def single(self) -> str | None:
        """The path, if the context is exactly one file."""
        entries = self._files.library.entries
        return next(iter(entries)) if len(entries) == 1 else None

    def parsed(self, path: str) -> Parsed:
        """The symbols of a file, parsed now or remembered."""
        return self._parsed_now([self._files.library.entry(path)])[0]

    def every(self, entries: Iterable[Entry]) -> Iterator[tuple[str, Parsed]]:
        """The symbols of many files, parsed a few at a time."""
        batch: list[Entry] = []
        run = deadline_in_force()
        since = 0.0 if run is None else run.clock.now()
        for entry in entries:
            batch.append(entry)
            if len(batch) == BATCH or sum(each.size for each in batch) > _TOGETHER_BYTES:
                yield from zip([each.path for each in batch], self._parsed_now(batch), strict=True)
                batch = []
                if run is not None:
                    since = run.check(since, "the source files were still being parsed")
        yield from zip([each.path for each in batch], self._parsed_now(batch), strict=True)

    def _parsed_now(self, entries: Sequence[Entry]) -> list[Parsed]:
        library = self._files.library
        known: dict[str, Parsed] = {}
        stamps: dict[str, object] = {}
        texts: dict[str, str] = {}
        for entry in entries:
            stamps[entry.path] = stamp = signature(entry) if entry.real else entry.path
            with self._lock:
                remembered = self._parsed.get(entry.path)
            if remembered and remembered[0] == stamp:
                known[entry.path] = remembered[1]
                continue
            language = language_of(entry.path)
            try:
                with library.open(entry) as text:
                    if text.size > _SOURCE_BYTES:
                        known[entry.path] = Parsed(language=language, note="it is too large to parse; read it by lines")
                    else:
                        texts[entry.path] = text.decode(text.read(text.start, text.size))
            except (Unreadable, OSError) as error:
                known[entry.path] = Parsed(language=language, note=str(error))
        for path, parsed in zip(texts, parse(list(texts.items()), without=library.without), strict=True):
            known[path] = parsed
            if parsed.over_limit:
                library.left_out[path] = f"{parsed.over_limit}: it has no outline, only its lines"
        with self._lock:
            for path, parsed in known.items():
                self._parsed[path] = (stamps[path], parsed)
            while len(self._parsed) > _KEPT_FILES:
                self._parsed.popitem(last=False)
        return [known[entry.path] for entry in entries]

    def find(self, name: str) -> list[FoundSymbol]:
        """Everything the name can mean, best reading first."""
        name = name.strip()
        if len(name) > NAME_CHARS:
            return []
        if self.single:
            return self._in_file(self.single, name)
        path, mark, symbol = name.rpartition(":")
        if mark:
            return [found for each in self.paths(path) for found in self._in_file(each, symbol)]
        found = [FoundSymbol(path=each, symbol=None) for each in self.paths(name)]
        # `package.file.Class.method`: the longest beginning that is a file, the rest a symbol in it.
        parts = name.split(".")
        for count in range(len(parts) - 1, 0, -1):
            if not found:
                module, rest = ".".join(parts[:count]), ".".join(parts[count:])
                found = [each for path in self.paths(module) for each in self._in_file(path, rest)]
        if not found:  # a bare name: only the files that hold its last part as a word are parsed
            last = parts[-1].partition("~")[0]
            pattern = compiled(rf"\b{escaped(last)}\b", by_line=True)
            time = time_to_search(SystemClock(), None)
            for entry in self.sources:
                if next(scan_file(self._files.library, entry, pattern, time), None):
                    found += self._in_file(entry.path, name)
        return found

    def paths(self, name: str) -> list[str]:
        """Files that a path or a dotted module name means."""
        entries = self._files.library.entries
        plain = name.removeprefix("./")
        if plain in entries:
            return [plain]
        below = plain.replace(".", "/")
        ends = [f"{below}{suffix}" for suffix in ("/__init__.py", ".py", ".pyi") if plain]
        return [path for path in entries if any(path == end or path.endswith(f"/{end}") for end in ends)][:20]

    def qualified(self, path: str, name: str) -> str:
        """How to ask for a symbol."""
        return name if self.single else f"{path}:{name}"

    def _in_file(self, path: str, name: str) -> list[FoundSymbol]:
        if not name or name == path:
            return [FoundSymbol(path=path, symbol=None)]
        parsed = self.parsed(path)
        exact = parsed.find(name)
        if exact:
            return [FoundSymbol(path=path, symbol=exact)]
        return [FoundSymbol(path=path, symbol=symbol) for symbol in parsed.symbols if symbol.name.endswith(f".{name}")]

    def count_lines(self, pattern: str) -> int:
        """How many lines of source match."""
        wanted, time = compiled(pattern, by_line=True), time_to_search(SystemClock(), None)
        return sum(1 for entry in self.sources for _ in scan_file(self._files.library, entry, wanted, time))
