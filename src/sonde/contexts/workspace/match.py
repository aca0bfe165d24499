"""Finds where the hunks of a patch belong in a file. Pure: lines in, places out, refusal where it is not certain.

Exact context comes first. Only where a hunk has no exact place are differences in white space forgiven, and then there must be one
place in the whole file, which is reported. Hunks are in the order of the file, so two hunks with the same context find two places.
"""

from __future__ import annotations

import difflib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import nlargest
from itertools import accumulate, pairwise

from sonde.contexts.workspace.base import NothingToChange, PatchRefused
from sonde.contexts.workspace.parse import Hunk

CLOSERS = ("}", ")", "]", "{", "end")


@dataclass(frozen=True, slots=True)
class HunkPlace:
    """Where a hunk goes: before line `start` (from 0), replacing `len(hunk.old)` lines; `loose` if white space differed."""

    start: int
    loose: bool = False


class LineBudget:
    """The lines that may be compared for one patch. A file of equal lines and a patch of equal lines fit together in too many ways."""

    def __init__(self, limit: int = 5_000_000) -> None:
        self._left = limit

    def spend(self, path: str, lines: int) -> None:
        """PatchRefused when the patch has cost too much."""
        self._left -= lines
        if self._left < 0:
            raise PatchRefused(
                f"its lines fit at too many places of {path}; send fewer hunks at once, each with lines around it that stand there once"
            )


class FileLines:
    """The lines of one file, with an index so that each hunk is found without a scan."""

    def __init__(self, path: str, lines: Sequence[str], effort: LineBudget | None = None) -> None:
        self.path = path
        self.lines = lines
        self.effort = effort or LineBudget()
        self._indexes: dict[str, tuple[list[int], dict[str, int], list[list[int]]]] = {}

    def _index(self, key: Callable[[str], str]) -> tuple[list[int], dict[str, int], list[list[int]]]:
        """A number for each line, equal for lines that are equal by `key`; the numbers by key; the lines by number."""
        if key.__name__ not in self._indexes:
            numbers: dict[str, int] = {}
            numbered = [numbers.setdefault(key(line), len(numbers)) for line in self.lines]
            where: list[list[int]] = [[] for _ in numbers]
            for n, number in enumerate(numbered):
                where[number].append(n)
            self._indexes[key.__name__] = numbered, numbers, where
        return self._indexes[key.__name__]

    def occurrences(self, block: Sequence[str], key: Callable[[str], str] = str) -> list[int]:
        """Every line at which the block begins, compared by `key`; looked for by the line of it that is rarest in the file."""
        numbered, numbers, where = self._index(key)
        wanted = [numbers.get(key(line), -1) for line in block]
        if -1 in wanted:
            return []
        rarest = min(range(len(wanted)), key=lambda n: len(where[wanted[n]]))
        last = len(numbered) - len(wanted)
        starts = [n - rarest for n in where[wanted[rarest]] if 0 <= n - rarest <= last]
        self.effort.spend(self.path, len(where[wanted[rarest]]) + len(starts) * len(wanted))
        found = [start for start in starts if numbered[start : start + len(wanted)] == wanted]
        self.effort.spend(self.path, 10 * len(found))  # a place costs more than a comparison
        return found

    def blocks(self, number: int, anchors: Sequence[str]) -> list[tuple[int, int]]:
        """Where the block of the innermost anchor may be: from its line to the next line indented no deeper. An anchor is a whole line,
        or else the beginning of one; white space is ignored.
        """
        blocks = [(0, len(self.lines))]
        _, numbers, where = self._index(squeezed)
        for anchor in anchors:
            wanted = squeezed(anchor)
            equal = where[numbers[wanted]] if wanted in numbers else []
            self.effort.spend(self.path, 2 * len(numbers))
            begun = sorted(n for key, number in numbers.items() if key.startswith(wanted) for n in where[number])
            self.effort.spend(self.path, 10 * len(begun))
            lines: set[int] = set()
            for begin, end in blocks:
                inside = _between(equal, begin, end) or _between(begun, begin, end)
                self.effort.spend(self.path, 10 + len(inside))
                lines.update(inside)
            if not lines:
                raise PatchRefused(
                    f"{self.path}, hunk {number}: no line matches the anchor `@@ {anchor[:120]}`{_nearest(self, anchor)}"
                )
            blocks = [(n, self.block_ends[n]) for n in sorted(lines)]
        return blocks

    @cached_property
    def block_ends(self) -> list[int]:
        """For each line, where the block that it opens ends: at the next line indented no deeper that closes nothing."""
        ends = [len(self.lines)] * len(self.lines)
        places: list[int] = []  # lines below that may end a block, the nearest last and indented deepest
        depths: list[int] = []
        for n in range(len(self.lines) - 1, -1, -1):
            depth = _indent(self.lines[n])
            at = bisect_right(depths, depth)
            if at:
                ends[n] = places[at - 1]
            text = self.lines[n].strip()
            if text and not text.startswith(CLOSERS):
                at = bisect_left(depths, depth)
                places[at:], depths[at:] = [n], [depth]
        return ends


def squeezed(line: str) -> str:
    """A line without the white space around it and with single spaces inside."""
    return " ".join(line.split())


def place_hunks(file: FileLines, hunks: Sequence[Hunk]) -> list[HunkPlace]:
    """One place for every hunk, or PatchRefused with the candidates."""
    options = [_candidates(file, number, hunk) for number, hunk in enumerate(hunks, 1)]
    if all(len(places) == 1 for places in options):
        places = [place for (place,) in options]
        spans = sorted((place.start, place.start + len(hunks[n].old), n + 1) for n, place in enumerate(places))
        for (_, end, first), (start, _, second) in pairwise(spans):
            if start < end:
                raise PatchRefused(
                    f"{file.path}: hunks {first} and {second} change the same lines (line {start + 1}); join them"
                )
        return places
    # There must be only one way to put them one after the other: the earliest and the latest way are the same.
    earliest: list[HunkPlace | None] = []
    free = 0
    for hunk, places in zip(hunks, options, strict=True):
        at = bisect_left(places, free, key=lambda place: place.start)
        place = places[at] if at < len(places) else None
        free = place.start + len(hunk.old) if place else free
        earliest.append(place)
    latest: list[HunkPlace | None] = []
    free = max(place.start + len(hunk.old) for hunk, places in zip(hunks, options, strict=True) for place in places)
    for hunk, places in zip(reversed(hunks), reversed(options), strict=True):
        at = bisect_right(places, free - len(hunk.old), key=lambda place: place.start)
        place = places[at - 1] if at else None
        free = place.start if place else free
        latest.append(place)
    for number, (first, last, places) in enumerate(zip(earliest, reversed(latest), options, strict=True), 1):
        if first is None or last is None or first.start != last.start:
            raise _ambiguous(file, number, [place.start for place in places], "its context")
    return [place for place in earliest if place is not None]


def _candidates(file: FileLines, number: int, hunk: Hunk) -> list[HunkPlace]:
    """The places that a hunk fits by itself: one at least, and one only if white space had to be ignored."""
    if not hunk.old:  # it goes to the end of the file, or right after an unmistakable anchor
        if hunk.at_end or not file.lines:
            return [HunkPlace(len(file.lines))]
        blocks = file.blocks(number, hunk.anchors) if hunk.anchors else []
        if len(blocks) > 1:
            raise _ambiguous(file, number, [begin for begin, _ in blocks], f"the anchor `@@ {hunk.anchors[-1]}`")
        if blocks:
            return [HunkPlace(blocks[0][0] + 1)]
        raise PatchRefused(
            f"{file.path}, hunk {number} only adds lines and does not say where; put an unchanged line of the file, "
            "with a space before it, above or below them"
        )
    exact = _narrowed(file, number, hunk, file.occurrences(hunk.old))
    if exact:
        return [HunkPlace(start) for start in exact]
    loose = _narrowed(file, number, hunk, file.occurrences(hunk.old, squeezed)) if any(map(str.strip, hunk.old)) else []
    if len(loose) > 1:
        raise _ambiguous(file, number, loose, "when white space is ignored, its context")
    if loose:
        return [HunkPlace(loose[0], loose=True)]
    done = file.occurrences(hunk.new) if hunk.new and any(mark == "+" for mark, _ in hunk.lines) else []
    if done:
        raise NothingToChange(
            f"{file.path}, hunk {number}: its lines are not there, but what it wants is already at line {done[0] + 1}; it seems to have "
            "been applied. Leave this hunk out"
        )
    known = set(file.lines)
    lines = [line for line in hunk.old if line.strip()]
    first = next((line for line in lines if line not in known), lines[0] if lines else "")
    raise PatchRefused(
        f"{file.path}, hunk {number}: these lines are not in the file: {first[:120]!r}…{_nearest(file, first)}. "
        "Read the file again and copy the lines exactly"
    )


def _narrowed(file: FileLines, number: int, hunk: Hunk, starts: list[int]) -> list[int]:
    """The starts that also fit the anchors, the end-of-file mark and, in a unified diff, the stated line."""
    if hunk.at_end:
        end = len(file.lines) - len(hunk.old)
        starts = [start for start in starts if start == end]
    if hunk.anchors and starts:  # inside the block that the anchors open; failing that, after it
        blocks = file.blocks(number, hunk.anchors)
        begins = [begin for begin, _ in blocks]
        reach = list(accumulate((end for _, end in blocks), max))  # how far the blocks up to this one go
        inside = [start for start in starts if (at := bisect_right(begins, start)) and start < reach[at - 1]]
        starts = inside or [start for start in starts if start >= blocks[0][0]]
    if hunk.hint is not None and len(starts) > 1 and hunk.hint - 1 in starts:
        return [hunk.hint - 1]
    return starts


def _between(numbers: list[int], begin: int, end: int) -> list[int]:
    return numbers[bisect_left(numbers, begin) : bisect_left(numbers, end)]


def _indent(line: str) -> int:
    return len(line[: len(line) - len(line.lstrip())].expandtabs(4))


def _ambiguous(file: FileLines, number: int, starts: list[int], what: str) -> PatchRefused:
    """Shows the candidates, each with the nearest line above it that is indented less."""
    shown: list[str] = []
    for start in starts[:8]:
        line = file.lines[start]
        near = file.lines[max(0, start - 399) : start]
        above = next((each for each in reversed(near) if each.strip() and _indent(each) < _indent(line)), "")
        shown.append(f"{start + 1} (in `{above.strip()[:60]}`)" if above else f"{start + 1} (`{line.strip()[:60]}`)")
    more = f" and {len(starts) - 8} more" if len(starts) > 8 else ""
    return PatchRefused(
        f"{file.path}, hunk {number}: {what} occurs {len(starts)} times, at lines {', '.join(shown)}{more}. Add unchanged lines around "
        "it, or an anchor above it such as `@@ def name(`, until only one place fits"
    )


def _nearest(file: FileLines, text: str) -> str:
    """The most similar line, to show what the model may have meant. Looks at the beginnings of the first 5,000 lines, and closely at
    the 50 that share most letters with it: comparing is quadratic in the length of both.
    """
    matcher = difflib.SequenceMatcher(b=text[:200], autojunk=False)

    def likeness(line: str, ratio: Callable[[], float]) -> float:
        matcher.set_seq1(line[:200])
        return ratio()

    alike = nlargest(50, file.lines[:5000], key=lambda line: likeness(line, matcher.quick_ratio))
    best = max(alike, key=lambda line: likeness(line, matcher.ratio), default="")
    if likeness(best, matcher.ratio) < 0.6:
        return ""
    return f"; the nearest is line {file.lines.index(best) + 1}: {best[:120]!r}"
