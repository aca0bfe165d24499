"""Reading generated source as data: one way to parse it, and the shape of a refusal.

Promises that `parse` never raises, whatever the text holds, and never prints: the answer is a tree or a Refusal.
Does not promise that the tree compiles; CPython's compiler has a few rules of its own, which the worker reports.
"""

from __future__ import annotations

import ast
import re
import threading
import warnings
from dataclasses import dataclass

MAX_SOURCE_CHARS = 500_000
"""A syntax tree costs about 300 bytes of the parent's memory for each character; a turn's code never needs this much."""

MAX_FIELD_WORK = 1_000_000_000
"""Fields times characters of f-strings, about a second: CPython 3.11 looks for each field from the start of its string again."""

_EXCERPT_CHARS = 120
_BAD_CHARACTER = re.compile(r"[\x00\ud800-\udfff]")
_F_STRING = re.compile(r"""(?i)\b(?:f|fr|rf)["']""")
_LONG_F_STRING = re.compile(r"""(?is)\b(?:f|fr|rf)(\"{3}|'{3}).*?(?:\1|\Z)""")
_quiet = threading.Lock()  # warning filters belong to the whole process: one thread at a time may swap them


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why code was not run, in words for the model that wrote it. `rule` is a short stable name for counting."""

    line: int
    reason: str
    example: str
    rule: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.reason}\nInstead, for example:\n{indented(self.example)}"


def parse(code: str) -> ast.Module | Refusal:
    """The tree of `code`, or the reason why it has none."""
    code = plain_text(code)
    if len(code) > MAX_SOURCE_CHARS:
        return Refusal(
            line=1,
            rule="too-long",
            reason=f"the code has {len(code):,} characters; at most {MAX_SOURCE_CHARS:,} are run in one turn.",
            example="text = context  # data belongs in shared variables, not in the source\nprint(text[:500])",
        )
    if has_too_many_fields(code):
        return Refusal(
            line=1,
            rule="too-long",
            reason="the code has f-strings of too many fields to be read.",
            example='text = ", ".join(f"{row}" for row in rows)  # one field in a loop instead of thousands',
        )
    lines = code.split("\n")
    try:
        with _quiet, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(code)
    except SyntaxError as error:
        line = error.lineno or 1
        shown = lines[line - 1].strip()[:_EXCERPT_CHARS] if line <= len(lines) else ""
        near = f" near `{_printable(shown)}`" if shown else ""
        return Refusal(
            line=line,
            rule="syntax",
            reason=f"this is not valid Python: {_printable(error.msg)}{near}.",
            example="total = sum([1, 2, 3])\nprint(total)",
        )
    except (RecursionError, MemoryError):
        return Refusal(
            line=1,
            rule="too-deep",
            reason="the code is nested too deeply to be read.",
            example="first = a + b\nsecond = first + c  # split long expressions into steps",
        )
    except ValueError as error:  # null bytes, lone surrogates
        bad = (number for number, line in enumerate(lines, start=1) if _BAD_CHARACTER.search(line))
        return Refusal(
            line=next(bad, 1),
            rule="bad-text",
            reason=f"the code is not plain text ({_printable(str(error))[:_EXCERPT_CHARS]}).",
            example='separator = "\\x00"  # write unprintable characters as escapes',
        )


def has_too_many_fields(code: str) -> bool:
    """Would f-strings keep the parser busy for longer than anybody waits? A string is within a line, or in triple quotes."""
    if code.count("{") * len(code) <= MAX_FIELD_WORK:
        return False
    lines = filter(_F_STRING.search, code.replace("\\\n", "").splitlines())
    pieces = (*lines, *(found.group() for found in _LONG_F_STRING.finditer(code)))
    return sum(piece.count("{") * len(piece) for piece in pieces) > MAX_FIELD_WORK


def plain_text(code: str) -> str:
    """An exact `str`: a subclass could show one text to the parser and another to the rewriter."""
    return str.__str__(code).replace("\r\n", "\n").replace("\r", "\n")


def indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def _printable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
