"""Patterns from models and users, compiled by RE2: time linear in the text, whatever the pattern.

A typed interface to the re2 module. RE2 has neither look-around nor back-references and says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, cast

import re2

_re2 = cast("Any", re2)
MOST_PATTERNS = 200  # in one file
MOST_CHARS = 30_000  # of all patterns of a file: classes such as [^\pL] cost memory even where their program is small
MOST_INSTRUCTIONS = 200_000  # of all their programs; those that come with Sonde have 20,000


class PatternMatch(Protocol):
    """One match."""

    def start(self) -> int:
        """Where it begins."""
        ...

    def end(self) -> int:
        """Where it ends."""
        ...


class Pattern(Protocol):
    """A compiled pattern over bytes or text."""

    def search(self, text: bytes | str, pos: int = 0) -> PatternMatch | None:
        """The first match from `pos` on."""
        ...

    def fullmatch(self, text: bytes | str) -> PatternMatch | None:
        """A match of the whole text."""
        ...


def compiled(source: str, *, by_line: bool = False, any_case: bool = False) -> Pattern:
    """The pattern; `by_line` makes `^` and `$` line ends and keeps every match within a line. ValueError says what RE2 does not accept."""
    options = _re2.Options()
    options.log_errors = False
    options.never_nl = by_line
    options.case_sensitive = not any_case
    try:
        return _re2.compile(f"(?m){source}" if by_line else source, options)
    except _re2.error as error:
        said = error.args[0] if error.args else b"?"
        raise ValueError(said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)) from None


@dataclass(slots=True)
class PatternAllowance:
    r"""What all patterns of one file may take: `\pL{200}` is short, but a hundred of them cost seconds and hundreds of megabytes."""

    patterns: int = MOST_PATTERNS
    chars: int = MOST_CHARS
    instructions: int = MOST_INSTRUCTIONS

    def compiled(self, source: str) -> Pattern:
        """The next pattern, in any case. ValueError names it and says what RE2 does not accept or which limit is passed."""
        shown = f"pattern {source!r:.80}"
        self.patterns -= 1
        self.chars -= len(source)
        if self.patterns < 0:
            raise ValueError(f"{shown} is one too many: a file may have {MOST_PATTERNS} patterns")
        if self.instructions < 0:  # pydantic goes on after the first mistake
            raise ValueError(f"{shown} comes after one that is refused")
        if self.chars < 0:
            raise ValueError(f"{shown} is too long: the patterns of a file may have {MOST_CHARS:,} characters together")
        try:
            found = compiled(source, any_case=True)
        except ValueError as broken:
            self.instructions = -1
            raise ValueError(f"{shown} is not RE2: {broken}") from None
        self.instructions -= int(cast("Any", found).programsize)
        if self.instructions < 0:
            raise ValueError(
                f"{shown} is too large, with those before it: a repeated class such as \\pL{{200}} is costly"
            )
        return found


def escaped(text: str) -> str:
    """A pattern that matches exactly this text."""
    return str(_re2.escape(text))
