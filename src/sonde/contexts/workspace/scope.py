"""A part of a workspace, for a sub-call: it reads there and nowhere else, and changes nothing.

The guard is here and not in the prompt. What a host sends beyond the scope is dropped before anybody sees it. Scopes nest: the part of
a part holds no more than either. What this does not promise: a link inside the scope is read where it leads, as for the parent.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sonde.contexts.workspace.base import (
    Applied,
    CommandResult,
    FileSlice,
    Match,
    Matches,
    PathRefused,
    Plan,
    Workspace,
)
from sonde.contexts.workspace.paths import clean, clean_folder
from sonde.errors import ToolFault

MAX_PLACES = 20
EXAMPLE = "Example: context={'paths': ['src/app.py:10-60', 'docs']}"
_LINES = re.compile(r"(.+?):(\d{1,9})(?:-(\d{1,9}))?")


@dataclass(frozen=True, slots=True)
class Place:
    """A file, a folder, or lines of a file; the empty path is the whole workspace."""

    path: str
    start_line: int = 1
    end_line: int | None = None

    @classmethod
    def read(cls, text: str) -> Place:
        """`src`, `src/app.py` or `src/app.py:10-60`; a ToolFault for what is none of them."""
        found = _LINES.fullmatch(text.strip())
        if found is None:
            return cls(clean_folder(text))
        start, end = int(found[2]), int(found[3] or found[2])
        if start < 1 or end < start:
            raise ToolFault(f"{text!r} is not a range of lines; they count from 1. {EXAMPLE}")
        return cls(clean(found[1]), start, end)

    def __str__(self) -> str:
        return (self.path or "the workspace") + ("" if self.end_line is None else f":{self.start_line}-{self.end_line}")

    def holds(self, path: str) -> bool:
        """Whether a file or folder lies here, perhaps with some of its lines only."""
        return self.path in ("", path) or path.startswith(f"{self.path}/")

    def within(self, start_line: int, end_line: int | None) -> bool:
        """Whether these lines lie here; None is the end of the file."""
        return self.start_line <= start_line and (
            self.end_line is None or (end_line is not None and end_line <= self.end_line)
        )


def read_places(paths: Sequence[str]) -> tuple[Place, ...]:
    """The places that a sub-call is given; a ToolFault where there are too many or one makes no sense."""
    if len(paths) > MAX_PLACES:
        raise ToolFault(f"a sub-call takes at most {MAX_PLACES} paths, not {len(paths)}; name folders. {EXAMPLE}")
    return tuple(dict.fromkeys(map(Place.read, paths)))


class ScopedWorkspace:
    """See `Workspace`."""

    def __init__(self, workspace: Workspace, places: Sequence[Place]) -> None:
        self._workspace = workspace
        self._places = tuple(places)

    def list_files(self, root: str = "") -> tuple[str, ...]:
        """Paths in the scope."""
        listed = self._workspace.list_files(root)
        return tuple(path for path in listed if any(place.holds(path) for place in self._places))

    def read(
        self, path: str, start_line: int | None = None, end_line: int | None = None, *, rationale: str = ""
    ) -> FileSlice:
        """Lines in the scope; without numbers all lines of the file that are in it."""
        path = clean(path)
        places = [place for place in self._places if place.holds(path)]
        wanted = [
            (place, start_line or place.start_line, place.end_line if end_line is None else end_line)
            for place in places
        ]
        fitting = next((each for each in wanted if each[0].within(*each[1:])), None)
        if fitting is None:
            raise self._outside(path if not places else f"{path}:{start_line or 1}-{end_line or 'end'}")
        place, first, last = fitting
        whole = place.end_line is None and start_line is None and end_line is None
        found = self._workspace.read(path, None if whole else first, last, rationale=rationale)
        if place.within(found.start_line, found.end_line) or not found.total_lines:
            return found
        # The host sent more than it was asked for.
        lines = found.content.split("\n")[max(0, first - found.start_line) :][: (last or found.end_line) - first + 1]
        if found.start_line > first or not lines:
            raise self._outside(f"{path}:{found.start_line}-{found.end_line}")
        end = first + len(lines) - 1
        return FileSlice(
            path=path, content="\n".join(lines), start_line=first, end_line=end, total_lines=max(end, found.total_lines)
        )

    def search(self, query: str, path: str | None = None) -> Matches:
        """Matches in the scope; each place of it is searched by itself."""
        folder = clean_folder(path or "")
        below = [place for place in self._places if Place(folder).holds(place.path)]
        if any(place.holds(folder) for place in self._places):
            below = [Place(folder)]
        if not below:
            raise self._outside(folder)
        found = [self._workspace.search(query, place.path or None) for place in below]
        rows = dict.fromkeys(match for each in found for match in each.matches if self._sees(match))
        return Matches(matches=tuple(rows), truncated=next((each.truncated for each in found if each.truncated), None))

    def _sees(self, match: Match) -> bool:
        return any(place.holds(match.path) and place.within(match.line, match.line) for place in self._places)

    def _outside(self, what: str) -> PathRefused:
        return PathRefused(f"{what} is outside of what this sub-call may see: {', '.join(map(str, self._places))}")

    def text(self, path: str) -> str | None:
        """The whole text is for planning changes."""
        raise self._read_only(path)

    def apply(self, plan: Plan) -> Applied:
        """Never."""
        raise self._read_only(plan.summary())

    def undo(self) -> str:
        """Never."""
        raise self._read_only("undo")

    def execute(self, command: str, cwd: str = "") -> CommandResult:
        """Never."""
        del cwd
        raise self._read_only(command)

    def _read_only(self, what: str) -> ToolFault:
        return ToolFault(f"{what}: a sub-call only reads; say in the result what to change")
