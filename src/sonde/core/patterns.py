"""Patterns from models and users, compiled by RE2: time linear in the text, whatever the pattern.

A typed interface to the re2 module. RE2 has neither look-around nor back-references and says so.
"""

from __future__ import annotations

from typing import Any, Protocol, cast

import re2

_re2 = cast("Any", re2)


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


def escaped(text: str) -> str:
    """A pattern that matches exactly this text."""
    return str(_re2.escape(text))
