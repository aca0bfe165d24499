"""Finds where the hunks of a patch belong in a file. Pure: lines in, places out, refusal where it is not certain.

Exact context comes first. Only where a hunk has no exact place are differences in white space forgiven, and then there must be one
place in the whole file, which is reported. Hunks are in the order of the file, so two hunks with the same context find two places.
"""

from __future__ import annotations

import difflib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sonde.contexts.workspace.base import PatchRefused
from sonde.contexts.workspace.parse import Hunk

CLOSERS = ("}", ")", "]", "{", "end")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a hunk goes: before line `start` (from 0), replacing `len(hunk.old)` lines; `loose` if white space differed."""

    start: int
    loose: bool = False


class FileLines:
    """The lines of one file, with an index so that each hunk is found without a scan."""

    def __init__(self, path: str, lines: Sequence[str]) -> None:
        self.path = path
        self.lines = lines
        self._where: dict[str, dict[str, list[int]]] = {}

    def occurrences(self, block: Sequence[str], key: Callable[[str], str] = str) -> list[int]:
        """Every line at which the block begins, compared by `key`."""
        wanted = [key(line) for line in block]
        if key.__name__ not in self._where:
            index: dict[str, list[int]] = {}
            for number, line in enumerate(self.lines):
                index.setdefault(key(line), []).append(number)
            self._where[key.__name__] = index
        starts = self._where[key.__name__].get(wanted[0], [])
        return [n for n in starts if len(self.lines) - n >= len(wanted) and self._same(n, wanted, key)]

    def _same(self, start: int, wanted: list[str], key: Callable[[str], str]) -> bool:
        return all(key(self.lines[start + i]) == line for i, line in enumerate(wanted))


def squeezed(line: str) -> str:
    """A line without the white space around it and with single spaces inside."""
    return " ".join(line.split())


def place_hunks(file: FileLines, hunks: Sequence[Hunk]) -> list[Place]:
    """One place for every hunk, or PatchRefused with the candidates."""
    options = [_candidates(file, number, hunk) for number, hunk in enumerate(hunks, 1)]
    if all(len(places) == 1 for places in options):
        return _apart(file, hunks, [places[0] for places in options])
    return _in_order(file, hunks, options)


def _candidates(file: FileLines, number: int, hunk: Hunk) -> list[Place]:
    if not hunk.old:
        return [Place(_insertion(file, number, hunk))]
    exact = _narrowed(file, number, hunk, file.occurrences(hunk.old))
    if exact:
        return [Place(start) for start in exact]
    loose = _narrowed(file, number, hunk, file.occurrences(hunk.old, squeezed)) if any(map(str.strip, hunk.old)) else []
    if len(loose) > 1:
        raise _ambiguous(file, number, loose, "when white space is ignored, its context")
    if not loose:
        raise _absent(file, number, hunk)
    return [Place(loose[0], loose=True)]


def _narrowed(file: FileLines, number: int, hunk: Hunk, starts: list[int]) -> list[int]:
    """The starts that also fit the anchors, the end-of-file mark and, in a unified diff, the stated line."""
    if hunk.at_end:
        starts = [start for start in starts if start + len(hunk.old) == len(file.lines)]
    if hunk.anchors and starts:
        starts = _anchored(file, number, hunk, starts)
    if hunk.hint is not None and len(starts) > 1 and hunk.hint - 1 in starts:
        return [hunk.hint - 1]
    return starts


def _anchored(file: FileLines, number: int, hunk: Hunk, starts: list[int]) -> list[int]:
    """Starts inside the block that the anchors open; failing that, the starts after it."""
    blocks = _blocks(file, number, hunk.anchors)
    inside = sorted({s for s in starts if any(begin <= s < end for begin, end in blocks)})
    return inside or [start for start in starts if start >= blocks[0][0]]


def _blocks(file: FileLines, number: int, anchors: Sequence[str]) -> list[tuple[int, int]]:
    """Where the innermost anchor's block may be: from its line to the next line indented no deeper."""
    blocks = [(0, len(file.lines))]
    for anchor in anchors:
        lines = [n for begin, end in blocks for n in _anchor_lines(file, anchor, begin, end)]
        if not lines:
            raise PatchRefused(
                f"{file.path}, hunk {number}: no line matches the anchor `@@ {anchor}`{_nearest(file, anchor)}"
            )
        blocks = [(n, _block_end(file, n)) for n in lines]
    return blocks


def _anchor_lines(file: FileLines, anchor: str, begin: int, end: int) -> list[int]:
    wanted = squeezed(anchor)
    inside = range(begin, end)
    equal = [n for n in inside if squeezed(file.lines[n]) == wanted]
    return equal or [n for n in inside if squeezed(file.lines[n]).startswith(wanted)]


def _block_end(file: FileLines, start: int) -> int:
    depth = _indent(file.lines[start])
    for n in range(start + 1, len(file.lines)):
        line = file.lines[n]
        if line.strip() and _indent(line) <= depth and not line.strip().startswith(CLOSERS):
            return n
    return len(file.lines)


def _indent(line: str) -> int:
    return len(line.expandtabs(4)) - len(line.expandtabs(4).lstrip())


def _insertion(file: FileLines, number: int, hunk: Hunk) -> int:
    """Where lines go that have no context: the end of the file, an empty file, or right after an unmistakable anchor."""
    if hunk.at_end or not file.lines:
        return len(file.lines)
    blocks = _blocks(file, number, hunk.anchors) if hunk.anchors else []
    if len(blocks) == 1:
        return blocks[0][0] + 1
    if blocks:
        raise _ambiguous(file, number, [begin for begin, _ in blocks], f"the anchor `@@ {hunk.anchors[-1]}`")
    raise PatchRefused(
        f"{file.path}, hunk {number} only adds lines and does not say where; put an unchanged line of the file, "
        "with a space before it, above or below them"
    )


def _in_order(file: FileLines, hunks: Sequence[Hunk], options: list[list[Place]]) -> list[Place]:
    """The only way to put the hunks one after the other; the earliest and the latest way must be the same."""
    earliest = _sweep_down(hunks, options)
    latest = _sweep_up(hunks, options)
    for number, (first, last, places) in enumerate(zip(earliest, latest, options, strict=True), 1):
        if first is None or last is None or first.start != last.start:
            raise _ambiguous(file, number, [place.start for place in places], "its context")
    return [place for place in earliest if place is not None]


def _sweep_down(hunks: Sequence[Hunk], options: list[list[Place]]) -> list[Place | None]:
    chosen: list[Place | None] = []
    free = 0
    for hunk, places in zip(hunks, options, strict=True):
        at = bisect_left(places, free, key=lambda place: place.start)
        place = places[at] if at < len(places) else None
        free = place.start + len(hunk.old) if place else free
        chosen.append(place)
    return chosen


def _sweep_up(hunks: Sequence[Hunk], options: list[list[Place]]) -> list[Place | None]:
    chosen: list[Place | None] = []
    free = max(place.start + len(hunk.old) for hunk, places in zip(hunks, options, strict=True) for place in places)
    for hunk, places in zip(reversed(hunks), reversed(options), strict=True):
        at = bisect_right(places, free - len(hunk.old), key=lambda place: place.start)
        place = places[at - 1] if at else None
        free = place.start if place else free
        chosen.append(place)
    return chosen[::-1]


def _apart(file: FileLines, hunks: Sequence[Hunk], places: list[Place]) -> list[Place]:
    spans = sorted(
        (place.start, place.start + len(hunk.old), n)
        for n, (hunk, place) in enumerate(zip(hunks, places, strict=True), 1)
    )
    for (_, end, first), (start, _, second) in pairwise(spans):
        if start < end:
            raise PatchRefused(
                f"{file.path}: hunks {first} and {second} change the same lines (line {start + 1}); join them"
            )
    return places


def _ambiguous(file: FileLines, number: int, starts: list[int], what: str) -> PatchRefused:
    shown = ", ".join(f"{start + 1} ({_above(file, start)})" for start in starts[:8])
    more = f" and {len(starts) - 8} more" if len(starts) > 8 else ""
    return PatchRefused(
        f"{file.path}, hunk {number}: {what} occurs {len(starts)} times, at lines {shown}{more}. Add unchanged lines around it, "
        "or an anchor above it such as `@@ def name(`, until only one place fits"
    )


def _above(file: FileLines, start: int) -> str:
    """What tells one candidate from another: the nearest line above that is indented less, or the line itself."""
    depth = _indent(file.lines[start])
    for n in range(start - 1, max(-1, start - 400), -1):
        if file.lines[n].strip() and _indent(file.lines[n]) < depth:
            return f"in `{file.lines[n].strip()[:60]}`"
    return f"`{file.lines[start].strip()[:60]}`"


def _absent(file: FileLines, number: int, hunk: Hunk) -> PatchRefused:
    done = file.occurrences(hunk.new) if hunk.new and any(mark == "+" for mark, _ in hunk.lines) else []
    if done:
        return PatchRefused(
            f"{file.path}, hunk {number}: its lines are not there, but what it wants is already at line {done[0] + 1}; it seems to have "
            "been applied. Leave this hunk out"
        )
    first = next((line for line in hunk.old if line.strip()), "")
    return PatchRefused(
        f"{file.path}, hunk {number}: these lines are not in the file: {first[:120]!r}…{_nearest(file, first)}. "
        "Read the file again and copy the lines exactly"
    )


def _nearest(file: FileLines, text: str) -> str:
    """The most similar line, to show what the model may have meant; looks at the first 5,000 lines only."""
    near = difflib.get_close_matches(text, file.lines[:5000], n=1, cutoff=0.6)
    return f"; the nearest is line {file.lines.index(near[0]) + 1}: {near[0][:120]!r}" if near else ""
