"""Source code as a context: an outline, scopes, symbols and search (nav_*), over one file or a whole repository.

The nav tools refuse a name that is not there with a ToolFault that lists names like it.
The tools of `contexts.files` come too. Only definitions are known: no types, references or call graphs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sonde.contexts import SeenFields, SeenNames, SeenRows, SeenText, Shareable
from sonde.contexts.code.finder import Finder, FoundSymbol
from sonde.contexts.code.outline import chunks, outline
from sonde.contexts.code.symbols import lacking_parser, language_of
from sonde.contexts.files import FilesContext
from sonde.contexts.files.exclusion import Exclusion
from sonde.contexts.files.text import read_lines
from sonde.core.canonical import clip, plural
from sonde.core.deadline import Clock
from sonde.core.evidence import Excerpt, Observed
from sonde.disk import AnyPath
from sonde.errors import ToolFault, how_to_install
from sonde.tools import Tool, tool

if TYPE_CHECKING:
    from sonde.core.mask import Mask

_LISTED = 20
_TEXT = 200
_COUNTED_BYTES = 5_000_000
_LACKING = "the parser of its language is not installed; nav_search, grep and read_file work on its text"
_DEFINITION = r"^\s*(?:async\s+def|def|class|export|func|fn|pub fn|public|module)\s+\w"


class CodeContext:
    """Files whose symbols can be asked for."""

    def __init__(
        self,
        sources: str | Path | Sequence[str | Path] = (),
        *,
        texts: Mapping[str, str] | None = None,
        rationale_over: int | None = None,
        clock: Clock | None = None,
        within: Sequence[AnyPath] = (),
        without: str = "",
        exclusion: Exclusion | None = None,
    ) -> None:
        """`without` is the layer that the parsers of files may lack."""
        self.files = FilesContext(
            sources,
            texts=texts,
            rationale_over=rationale_over,
            clock=clock,
            within=within,
            without=without,
            source=True,
            exclusion=exclusion,
        )
        self._finder = Finder(self.files)

    def mask_with(self, mask: Mask | None) -> None:
        """Show only masked text, under masked names; None: as it is."""
        self.files.mask_with(mask)
        self._finder = Finder(self.files)

    def tools(self) -> Sequence[Tool]:
        """The nav tools, then those of files."""
        functions = (self.nav_info, self.nav_outline, self.nav_ls, self.nav_read, self.nav_search)
        return [*(tool(function) for function in functions), *self.files.tools()]

    def describe(self) -> str:
        """What is here, without its content."""
        languages = Counter(language_of(entry.path) for entry in self._finder.sources)
        shown = ", ".join(f"{language} {count:,}" for language, count in languages.most_common(8)) or "none"
        return f"Source code. Files by language: {shown}.\n{self.files.describe()}"

    def shared(self) -> Mapping[str, Shareable]:
        """CONTEXT as for files; a single file is also the variable `context`."""
        shared = dict(self.files.shared())
        texts = shared.get("CONTEXT")
        if self._finder.single and isinstance(texts, Mapping) and self._finder.single in texts:
            shared = {"context": texts[self._finder.single]}
        return shared

    def outline(self) -> str:
        """What is here, in few words."""
        return f"Source code: {self.files.outline()}"

    def whole_text(self, most_chars: int) -> Observed | None:
        """All of it with numbered lines, if that takes no more characters."""
        return self.files.whole_text(most_chars)

    def first_lines(self) -> Observed:
        """The first lines of a few files."""
        return self.files.first_lines()

    def reread(self, excerpt: Excerpt) -> str | None:
        """The cited lines as they are now."""
        return self.files.reread(excerpt)

    def locate(self, path: str) -> Path | None:
        """Where a file is on disk."""
        return self.files.locate(path)

    @property
    def left_out(self) -> Mapping[str, str]:
        """Files that were over a limit of their parser, with the reason."""
        return self.files.left_out

    def fingerprint(self) -> str:
        """A hash of the data."""
        return self.files.fingerprint()

    @property
    def lacking(self) -> str:
        """The files that have no symbols because the extra `code` is not installed; empty if there are none."""
        languages = Counter(language_of(entry.path) for entry in self._finder.sources)
        shown = [f"{language} {count:,}" for language, count in languages.most_common() if lacking_parser(language)]
        return f"files without symbols: {', '.join(shown)} ({how_to_install('code')} finds them)" if shown else ""

    def nav_info(self) -> SeenFields:
        """Size and kind of the code: {total_chars, total_lines, estimated_tokens, language, symbol_count, source_path},
        and file_count where there are several.

        Example: info = nav_info()
        """
        chars = lines = 0
        for entry in self.files.library.listing.texts:
            try:
                with self.files.library.open(entry) as text:
                    lines += self.files.library.index(entry, text).total
                    chars += text.count_characters()
            except (ToolFault, OSError):
                continue
        sources = self._finder.sources
        languages = Counter(language_of(entry.path) for entry in sources)
        exact = sum(entry.size for entry in sources) <= _COUNTED_BYTES
        count = (
            sum(len(parsed.symbols) for _, parsed in self._finder.every(sources))
            if exact
            else self._finder.count_lines(_DEFINITION)
        )
        info: dict[str, Any] = {
            "total_chars": chars,
            "total_lines": lines,
            "estimated_tokens": math.ceil(chars / 4),
            "language": languages.most_common(1)[0][0] if languages else "text",
            "symbol_count": count,
            "source_path": self._finder.single
            or ", ".join(Path(root).name for root in self.files.library.listing.roots),
        }
        if not self._finder.single:
            info["file_count"] = len(self.files.library.entries)
        return Observed(info if exact else {**info, "symbol_count_is_estimated": True})

    def nav_outline(self) -> SeenText:
        """The skeleton of the code: signatures with their lines, or the folders of a large repository.

        Example: skeleton = nav_outline()
        """
        return Observed(outline(self._finder))

    def nav_ls(self, scope: str = "") -> SeenNames:
        """Signatures directly in a scope: "" is the top; in a repository a folder, a file, or "path/file.py:Class".

        Example: names = nav_ls("Session")
        """
        if not self._finder.single:
            prefix = f"{scope.rstrip('/')}/" if scope not in ("", ".") else ""
            paths = [entry.path for entry in self._finder.sources]
            inside = [path.removeprefix(prefix) for path in paths if path.startswith(prefix)]
            folders = Counter(rest.split("/")[0] for rest in inside if "/" in rest)
            files = sorted(f"{prefix}{rest}" for rest in inside if "/" not in rest)
            if inside:
                return Observed(
                    [*(f"{prefix}{name}/ ({count:,} files)" for name, count in sorted(folders.items())), *files]
                )
        found = self._finder.find(scope)
        first = self._only(found, scope)
        if lacking_parser(language_of(first.path)):
            raise ToolFault(f"the symbols of {first.path} are not known: {_LACKING}")
        inside = self._finder.parsed(first.path).members(first.symbol.name if first.symbol else "")
        return Observed([symbol.signature for symbol in inside])

    def nav_read(self, symbol: str, chunk_index: int = 0, *, numbered: bool = False) -> SeenText:
        """The source of a symbol, headed by its path and lines; more than 8,000 characters come in chunks. numbered=True puts each
        line's number before it, for citing.

        Example: print(nav_read("Session.run", numbered=True))
        """
        found = self._only(self._finder.find(symbol), symbol)
        entry = self.files.library.entry(found.path)
        with self.files.library.open(entry) as text:
            index = self.files.library.index(entry, text)
            first, last = (found.symbol.start_line, found.symbol.end_line) if found.symbol else (1, index.total)
            source = read_lines(text, index, first, last)
        parts = chunks(source, first)
        if not 0 <= chunk_index < len(parts):
            raise ToolFault(f"{symbol!r} has {plural(len(parts), 'chunk')}; chunk_index may be 0 to {len(parts) - 1}.")
        part = parts[chunk_index]
        lines = source.split("\n")[part.start_line - first : part.end_line - first + 1]
        excerpt = Excerpt.of_lines(found.path, part.start_line, part.end_line, "\n".join(lines))
        head = f"# {found.path}:{part.start_line}-{part.end_line}"
        shown = part.text
        if numbered:
            shown = "\n".join(f"{number}: {line}" for number, line in enumerate(shown.split("\n"), part.start_line))
        if len(parts) == 1:
            return Observed(f"{head}\n{shown}", (excerpt,) if source else ())
        rest = f"\n# next: nav_read({symbol!r}, {chunk_index + 1})" if chunk_index + 1 < len(parts) else "\n# end"
        return Observed(f"{head} chunk {chunk_index + 1}/{len(parts)} of {symbol}\n{shown}{rest}", (excerpt,))

    def nav_search(self, pattern: str, max_results: int = 20) -> SeenRows:
        """Lines that match a regular expression (RE2): [{text, line}], with the path in a repository.

        Example: rows = nav_search("retry|backoff", max_results=10)
        """
        seen = self.files.grep(pattern, max_matches=max_results)
        rows = [{"text": row["text"][:_TEXT], "line": row["line"], "path": row["path"]} for row in seen.value]
        if self._finder.single:
            rows = [{"text": row["text"], "line": row["line"]} for row in rows]
        return Observed(rows, seen.excerpts, seen.truncated)

    def _only(self, found: Sequence[FoundSymbol], name: str) -> FoundSymbol:
        """The one that a name means. The fault of a wrong name offers symbols that resemble it, then the first in the code."""
        if len(found) == 1:
            return found[0]
        shown = clip(repr(name), _TEXT)
        if found:
            known = [self._finder.qualified(f.path, f.symbol.name) if f.symbol else f.path for f in found[:_LISTED]]
            raise ToolFault(f"{shown} is defined {len(found)} times; name one: {', '.join(known)}")
        lacking = f" (there are {self.lacking}: {_LACKING})" if self.lacking else ""
        wanted = name.rpartition(":")[2].rpartition(".")[2].lower()
        finder = self._finder
        symbols = ((path, each) for path, parsed in finder.every(finder.sources) for each in parsed.symbols)
        every = list(islice(symbols, 5_000))
        like = [(path, each) for path, each in every if wanted and wanted in each.name.lower()]
        ranked = [*like, *(pair for pair in every if pair not in like)] if len(like) < _LISTED else like
        known = [self._finder.qualified(path, each.name) for path, each in ranked[:_LISTED]]
        if not known:
            raise ToolFault(
                f"nothing here is called {shown}. There are no symbols here; read_file shows the text.{lacking}"
            )
        hint = "Call nav_ls() first to list what is there, or use one of these symbols"
        raise ToolFault(f"nothing here is called {shown}. {hint}: {', '.join(known)}{lacking}")
