"""The one line diff of Sonde: difflib's where that is quick, and never much longer than the texts deserve.

difflib's time grows with the cube of the lines where they repeat. Here every step is counted, so the same texts always give the same
diff, on any machine.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

MAX_STEPS = 5_000_000


class Effort:
    """How many steps the diffs that share it may take in all; about two million per second."""

    def __init__(self, steps: int = MAX_STEPS) -> None:
        self.left = steps


class TooRepetitive(Exception):  # no error: whoever asked makes a simpler diff
    """The lines repeat so much that the best diff would take too long."""


def hunks(old: Sequence[str], new: Sequence[str], context: int = 3) -> list[str]:
    """The hunks of a unified diff; where they would take too long, one hunk from the first difference to the last."""
    try:
        return best_hunks(old, new, Effort(), context)
    except TooRepetitive:
        most = min(len(old), len(new))
        same = next((n for n in range(most) if old[n] != new[n]), most)
        tail = next((n for n in range(most - same) if old[-1 - n] != new[-1 - n]), most - same)
        a, b = len(old) - tail, len(new) - tail
        head, foot = min(context, same), min(context, tail)
        between = [
            ("equal", same - head, same, same - head, same),
            ("replace", same, a, same, b),
            ("equal", a, a + foot, b, b + foot),
        ]
        return _hunk(old, new, between)


def best_hunks(old: Sequence[str], new: Sequence[str], effort: Effort, context: int = 3) -> list[str]:
    """The hunks that difflib makes; TooRepetitive when the effort is used up."""
    groups = _CountedMatcher(old, new, effort).get_grouped_opcodes(context)
    return [line for group in groups for line in _hunk(old, new, group)]


def _hunk(old: Sequence[str], new: Sequence[str], group: Sequence[tuple[str, int, int, int, int]]) -> list[str]:
    lines = [f"@@ -{_span(group[0][1], group[-1][2])} +{_span(group[0][3], group[-1][4])} @@"]
    for kind, a, a_end, b, b_end in group:
        if kind == "equal":
            lines += [f" {line}" for line in old[a:a_end]]
        else:
            lines += [f"-{line}" for line in old[a:a_end]] + [f"+{line}" for line in new[b:b_end]]
    return lines


def _span(start: int, end: int) -> str:
    """Lines as a unified diff names them: counted from 1, an empty span by the line before it."""
    length = end - start
    return str(start + 1) if length == 1 else f"{start + 1 if length else start},{length}"


class _CountedMatcher(difflib.SequenceMatcher[str]):
    def __init__(self, old: Sequence[str], new: Sequence[str], effort: Effort) -> None:
        super().__init__(None, old, new)
        counts = Counter(new)
        # difflib leaves out lines that are more frequent than this
        popular = len(new) // 100 + 1 if len(new) >= 200 else len(new)
        self._steps = [0, *accumulate(1 + (counts[line] if counts[line] <= popular else 0) for line in old)]
        self._effort = effort

    def find_longest_match(
        self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None
    ) -> difflib.Match:
        ahi = len(self._steps) - 1 if ahi is None else ahi
        self._effort.left -= self._steps[ahi] - self._steps[alo]
        if self._effort.left < 0:
            raise TooRepetitive
        return super().find_longest_match(alo, ahi, blo, bhi)
