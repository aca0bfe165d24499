"""Calls of the user's own tools as evidence: how a call is named, what text it showed, how to cite it.

A ref is `tool:NAME:ARGS-TEXT`: the tool, and the first eight hex digits of the hashes of its arguments and of the text it returned. So it
names one call and one result: the same call with another result has another ref, and so does the same call in another run unless it
returned the same text. `:3-5` after it means lines of the text. Nothing here reads the text again; the run's record does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from pydantic import ConfigDict

from sonde.core.canonical import canonical_json, sha256_text
from sonde.core.evidence import Citation, EvidenceKind, Excerpt

_REF = re.compile(r"(tool:(\w+):[0-9a-f]{8}-[0-9a-f]{8})(?::(\d{1,9})(?:-(\d{1,9}))?)?")
_EXAMPLE = "[tool:{name}:0a1b2c3d-4e5f6071]"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRef:
    """A ref taken apart. Without lines, `start_line` and `end_line` are 0 and the whole text is meant."""

    base: str
    tool: str
    start_line: int = 0
    end_line: int = 0

    @classmethod
    def read(cls, ref: str) -> Self | None:
        """The parts of a ref; None for anything else."""
        found = _REF.fullmatch(ref)
        if found is None:
            return None
        start = int(found[3] or 0)
        return cls(base=found[1], tool=found[2], start_line=start, end_line=int(found[4] or start))

    @property
    def whole(self) -> bool:
        """Whether it means all of the text."""
        return not self.start_line and not self.end_line

    @property
    def ref(self) -> str:
        """As it is written in a citation."""
        return self.base if self.whole else f"{self.base}:{self.start_line}-{self.end_line}"

    def cut(self, text: str) -> str | None:
        """The part of a call's text that it means; None for lines that the text does not have."""
        lines = text.split("\n")
        if self.whole:
            return text
        fits = 0 < self.start_line <= self.end_line <= len(lines)
        return "\n".join(lines[self.start_line - 1 : self.end_line]) if fits else None


class CallCitation(Citation):
    """A proved pointer at what a tool of the user returned: the tool, its arguments, and lines of its text (0: all of it)."""

    model_config = ConfigDict(frozen=True)

    path: str = ""
    start_line: int = 0
    end_line: int = 0
    kind: EvidenceKind = EvidenceKind.TOOL_IO
    tool: str
    arguments: dict[str, Any]

    @property
    def place(self) -> str:
        """The call as code would write it, and the lines."""
        return call_text(self.tool, self.arguments, self.start_line, self.end_line)


def call_text(tool: str, arguments: dict[str, Any], start_line: int = 0, end_line: int = 0) -> str:
    """A call in one line: `price(fruit='apple')`."""
    given = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    lines = f" line {start_line}" if start_line == end_line else f" lines {start_line}-{end_line}"
    return f"{tool}({given})" + (lines if start_line else "")


def shown_text(result: Any) -> str:
    """The text of a result, as it is hashed: the text itself, or canonical JSON of anything else."""
    return result if isinstance(result, str) else canonical_json(result)


def excerpt_of_call(tool: str, args_hash: str, result: Any) -> Excerpt:
    """What a call returned, in citable form."""
    hashed = sha256_text(shown_text(result))
    return Excerpt(kind=EvidenceKind.TOOL_IO, ref=f"{call_prefix(tool, args_hash)}-{hashed[:8]}", hash=hashed)


def call_prefix(tool: str, args_hash: str) -> str:
    """The common beginning of the refs of all results of a call."""
    return f"tool:{tool}:{args_hash[:8]}"


def how_to_cite(names: Sequence[str], known: Sequence[str] = ()) -> str:
    """How the user's tools are cited, with a ref of this run as the example where there is one."""
    mine = [ref for ref in known if (read := CallRef.read(ref)) is not None and read.tool in names]
    example = f"[{mine[-1]}]" if mine else _EXAMPLE.format(name=names[0] if names else "NAME")
    write = "write" if mine else "call it, look at what it returns, then write"
    return (
        f"what {' or '.join(names) or 'a tool'} returned is cited by the ref that is noted under the turn that called it: "
        f"{write} {example}, with :3-5 before the bracket for lines of a long text"
    )
