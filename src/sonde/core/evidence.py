"""Evidence: pointers into text that a tool really returned in this run, with the hash of that text.

A tool that shows citable text returns `Observed(value, excerpts)`. The run keeps every excerpt in one `EvidenceLog`. `prove` checks a
citation: it must lie inside logged excerpts whose text, read again now, still has the logged hash. Hashes are computed here, never by a
model. This does not promise that the cited text supports the claim, only that it was seen and is unchanged.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Protocol, Self, TypeVar, cast

from pydantic import BaseModel, ConfigDict

from sonde.core.canonical import sha256_text


class EvidenceKind(StrEnum):
    """What a pointer points at. FILE is ours; the others are the runtime contract's."""

    SPAN = "SPAN"
    TOOL_IO = "TOOL_IO"
    RETRIEVAL_CHUNK = "RETRIEVAL_CHUNK"
    MESSAGE = "MESSAGE"
    CONFIG_DIFF = "CONFIG_DIFF"
    FILE = "FILE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """One piece of text that a tool returned: where it is and what it hashed to."""

    kind: EvidenceKind
    ref: str
    hash: str
    trace_id: str = ""
    span_id: str = ""
    path: str = ""
    start_line: int = 0
    end_line: int = 0
    ts: str | None = None

    @classmethod
    def of_lines(cls, path: str, start_line: int, end_line: int, text: str) -> Excerpt:
        """Lines of a file, 1-based and inclusive; `text` is exactly those lines joined by newlines."""
        return cls(
            kind=EvidenceKind.FILE,
            ref=f"{path}:{start_line}-{end_line}",
            hash=sha256_text(text),
            path=path,
            start_line=start_line,
            end_line=end_line,
        )


@dataclass(frozen=True, slots=True)
class Observed:
    """What a tool returns when its value holds citable text."""

    value: Any
    excerpts: tuple[Excerpt, ...] = ()
    truncated: str | None = None
    citable: bool = True
    """False: the call itself proves nothing, because the caller could have put any words into its result."""
    ranked: bool = False
    """True: the order of the rows says something, so they are not sorted by time."""


class EvidenceRef(BaseModel):
    """A proved pointer as reports carry it (contracts 2.1); the file fields are set for kind FILE only."""

    model_config = ConfigDict(frozen=True)

    trace_id: str = ""
    span_id: str = ""
    kind: EvidenceKind
    ref: str
    excerpt_hash: str
    ts: str | None = None

    @classmethod
    def of(cls, proved: Excerpt) -> Self:
        """The reference to an excerpt that was proved."""
        return cls(
            trace_id=proved.trace_id,
            span_id=proved.span_id,
            kind=proved.kind,
            ref=proved.ref,
            excerpt_hash=proved.hash,
            ts=proved.ts,
        )

    @property
    def key(self) -> tuple[str, str]:
        """What makes two references the same one."""
        return (self.kind.value, self.ref)


class Citation(BaseModel):
    """A proved pointer into lines of a file, as answers carry it."""

    model_config = ConfigDict(frozen=True)

    path: str
    start_line: int
    end_line: int
    excerpt_hash: str
    signal: str = "reference"
    snippet: str = ""
    kind: EvidenceKind = EvidenceKind.FILE
    ref: str = ""
    fallback: bool = False

    @property
    def place(self) -> str:
        """Where it points, in one line."""
        return f"{self.path}:{self.start_line}-{self.end_line}" if self.path else f"{self.kind.value} {self.ref}"

    @property
    def heading(self) -> str:
        """The same for a person: `path:12` for a single line."""
        if not self.path:
            return self.place
        last = f"-{self.end_line}" if self.end_line > self.start_line else ""
        return " ".join(f"{self.path}:{self.start_line}{last}".split())

    @property
    def key(self) -> tuple[str, str]:
        """What makes two citations the same one."""
        return (self.kind.value, self.ref or self.place)


class SpanCitation(Citation):
    """A proved pointer at a span, at something inside one, or at a group of failures."""

    model_config = ConfigDict(frozen=True)

    path: str = ""
    start_line: int = 0
    end_line: int = 0
    kind: EvidenceKind = EvidenceKind.SPAN
    trace_id: str = ""
    span_id: str = ""

    @property
    def place(self) -> str:
        """As it is written in an answer."""
        return f"span:{self.ref}" if self.kind is EvidenceKind.SPAN else self.ref


class Keyed(Protocol):
    """Anything with an identity to merge by."""

    @property
    def key(self) -> tuple[str, str]:
        """(kind, ref)."""
        ...


K = TypeVar("K", bound=Keyed)


def merge(*groups: Iterable[K]) -> list[K]:
    """All of them in order, each (kind, ref) once; the first one wins. Merging twice changes nothing."""
    seen: dict[tuple[str, str], K] = {}
    for group in groups:
        for item in group:
            seen.setdefault(item.key, item)
    return list(seen.values())


def pointers(value: Any) -> Iterator[Mapping[str, Any]]:
    """Everything in a value that can be a citation: a final value may hold anything under the same names."""
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        lines = (fields.get(name, 0) for name in ("start_line", "end_line"))
        sound = all(isinstance(line, int) for line in lines) and isinstance(fields.get("path", ""), str)
        if isinstance(fields.get("excerpt_hash"), str) and sound:
            yield fields
        else:
            for item in fields.values():
                yield from pointers(item)
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from pointers(item)


def independent(refs: Iterable[EvidenceRef]) -> int:
    """How many references are independent: another kind, or the same kind with another ref."""
    return len({ref.key for ref in refs})


Reread = Callable[[Excerpt], str | None]
MOST_PIECES = 1_000
"""A citation may lie in at most so many excerpts."""


@dataclass(frozen=True, slots=True)
class Refuted:
    """Why a citation is not accepted, for people; `told` says it to the model where that needs other words. `unseen`: no tool has
    returned that place at all. `blank`: nothing is there. `confirmable`: `told` shows the place, so the same citation holds when it
    is sent again.
    """

    reason: str
    told: str = ""
    unseen: bool = False
    blank: bool = False
    confirmable: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "told", self.told or self.reason)


class ExcerptIndex:
    """Excerpts of one file, found by a line without a look at all the others.

    An excerpt of up to 2**n lines is kept under (n, its first line // 2**n), so those that hold a line are in two cells per n.
    """

    def __init__(self, excerpts: Iterable[Excerpt] = ()) -> None:
        self._cells: dict[int, dict[int, dict[str, Excerpt]]] = {}
        for excerpt in excerpts:
            self.add(excerpt)

    def add(self, excerpt: Excerpt) -> None:
        """Keep an excerpt; one with the same ref and lines is replaced."""
        size = (excerpt.end_line - excerpt.start_line).bit_length()
        cell = self._cells.setdefault(size, {}).setdefault(excerpt.start_line >> size, {})
        cell[excerpt.ref] = excerpt

    def at(self, line: int) -> list[Excerpt]:
        """Those that hold a line; the one that goes on longest is first."""
        found = [
            excerpt
            for size, cells in self._cells.items()
            for place in ((line >> size) - 1, line >> size)
            for excerpt in cells.get(place, {}).values()
            if excerpt.start_line <= line <= excerpt.end_line
        ]
        return sorted(found, key=lambda each: (-each.end_line, each.start_line))


class EvidenceLog:
    """Every excerpt that a session has seen, safe to use from threads.

    A child starts with what its parent has seen, and the parent gets what the child saw together with the child's result. Parallel
    children do not see each other's evidence, so what one of them may cite does not depend on who was first.
    """

    def __init__(self) -> None:
        self._by_ref: dict[tuple[str, str], Excerpt] = {}
        self._lines: dict[str, ExcerptIndex] = {}
        self._calls: dict[str, None] = {}
        self._shown: set[tuple[str, str]] = set()
        self._shown_lines: dict[str, list[tuple[int, int]]] = {}  # by path: ranges in order that do not touch
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._by_ref)

    def is_shown(self, excerpt: Excerpt) -> bool:
        """Whether somebody read it, not only code."""
        return (excerpt.kind.value, excerpt.ref) in self._shown

    def shows(self, path: str, start_line: int, end_line: int) -> bool:
        """Whether all these lines were read by somebody, not only by code."""
        with self._lock:
            shown = self._shown_lines.get(path, [])
            at = bisect_left(shown, start_line, key=lambda lines: lines[1])
            return at < len(shown) and shown[at][0] <= start_line and end_line <= shown[at][1]

    def note(self, excerpts: Iterable[Excerpt], *, shown: bool = False) -> None:
        """Remember what a tool has returned to code, or what was `shown` in a prompt or to a sub-call; a later look at the same place
        replaces the earlier one.
        """
        with self._lock:
            for excerpt in excerpts:
                self._by_ref[(excerpt.kind.value, excerpt.ref)] = excerpt
                if excerpt.kind is EvidenceKind.TOOL_IO:
                    self._calls[excerpt.ref] = None
                if excerpt.kind is EvidenceKind.FILE:
                    self._lines.setdefault(excerpt.path, ExcerptIndex()).add(excerpt)
                if shown:
                    self._show(excerpt)

    def _show(self, excerpt: Excerpt) -> None:
        self._shown.add((excerpt.kind.value, excerpt.ref))
        if excerpt.kind is not EvidenceKind.FILE:
            return
        lines, start, end = self._shown_lines.setdefault(excerpt.path, []), excerpt.start_line, excerpt.end_line
        first = last = bisect_left(lines, start - 1, key=lambda each: each[1])
        while last < len(lines) and lines[last][0] <= end + 1:
            start, end = min(start, lines[last][0]), max(end, lines[last][1])
            last += 1
        lines[first:last] = [(start, end)]

    def copy(self) -> EvidenceLog:
        """A copy that can grow without changing this one."""
        other = EvidenceLog()
        other.note(self.excerpts(), shown=True)  # a sub-call may rest on what its parent has read
        return other

    def since(self, before: EvidenceLog) -> list[Excerpt]:
        """The excerpts that `before` does not have, or has with another text."""
        return [each for each in self.excerpts() if before.find(each.kind.value, each.ref) != each]

    def excerpts(self) -> list[Excerpt]:
        """Everything seen so far."""
        with self._lock:
            return list(self._by_ref.values())

    def find(self, kind: str, ref: str) -> Excerpt | None:
        """The excerpt with exactly this pointer."""
        return self._by_ref.get((kind, ref))

    def find_ref(self, ref: str, *, files: bool = True) -> Excerpt | None:
        """The excerpt with this ref, of whatever kind."""
        kinds = (kind for kind in EvidenceKind if files or kind is not EvidenceKind.FILE)
        return next((found for kind in kinds if (found := self.find(kind.value, ref)) is not None), None)

    def call_refs(self) -> list[str]:
        """The refs of calls, in order."""
        with self._lock:
            return list(self._calls)

    def has_path(self, path: str) -> bool:
        """Whether the session has seen something of this file."""
        return path in self._lines

    def paths(self) -> list[str]:
        """Files of which the session has seen something."""
        return sorted(self._lines)

    def covering(self, path: str, start_line: int, end_line: int, reread: Reread) -> list[Excerpt] | Refuted:
        """Logged and still unchanged excerpts that together hold these lines, or the reason why not."""
        chosen: list[Excerpt] = []
        line = start_line
        while line <= end_line:
            with self._lock:  # only for the look: reading again takes longer
                seen = self._lines.get(path)
                fitting = [] if seen is None else seen.at(line)
            if not fitting and chosen and reread(Excerpt.of_lines(path, line, line, "")) is None:
                return Refuted(f"{path} ends at line {line - 1}; lines {start_line}-{end_line} are not all there")
            if not fitting:
                reason = f"lines {start_line}-{end_line} of {path} were not returned by any tool in this run"
                how = f"call read_file({path!r}, {start_line}, {end_line}) and look at them first"
                return Refuted(reason, f"{reason}; {how}", unseen=True)
            if len(chosen) == MOST_PIECES:
                reason = f"lines {start_line}-{end_line} of {path} were read in more than {MOST_PIECES:,} pieces"
                return Refuted(reason, f"{reason}; cite fewer lines, or read them in one call")
            best = next((e for e in fitting if self.prove(e, reread) is None), None)
            if best is None:
                reason = f"the text at {fitting[0].ref} has changed since it was read"
                return Refuted(reason, f"{reason}; read it again")
            chosen.append(best)
            line = best.end_line + 1
        return chosen

    def prove(self, excerpt: Excerpt, reread: Reread) -> Refuted | None:
        """None when the text behind a logged excerpt, read again, still hashes the same."""
        text = reread(excerpt)
        if text is None:
            return Refuted(f"{excerpt.ref} cannot be read again")
        if sha256_text(text) != excerpt.hash:
            return Refuted(f"the text at {excerpt.ref} has changed since it was read")
        return None

    def prove_lines(self, path: str, start_line: int, end_line: int, reread: Reread) -> Excerpt | Refuted:
        """The proved excerpt of exactly these lines, or the reason why not."""
        if start_line < 1 or end_line < start_line:
            return Refuted(f"{path}:{start_line}-{end_line} is not a range of lines")
        covering = self.covering(path, start_line, end_line, reread)
        if isinstance(covering, Refuted):
            return covering
        exact = replace(covering[0], ref=f"{path}:{start_line}-{end_line}", start_line=start_line, end_line=end_line)
        text = reread(exact)
        if text is None:
            return Refuted(f"{path}:{start_line}-{end_line} cannot be read again")
        return replace(exact, hash=sha256_text(text))

    def prove_ref(self, kind: str, ref: str, reread: Reread) -> Excerpt | Refuted:
        """The proved excerpt behind a pointer, or the reason why not."""
        excerpt = self.find(kind, ref)
        if excerpt is None:
            reason = f"{kind} {ref} was not returned by any tool in this run"
            return Refuted(
                reason, f"{reason}; look at it first, for example get_span({ref!r})" if kind == "SPAN" else ""
            )
        return self.prove(excerpt, reread) or excerpt
