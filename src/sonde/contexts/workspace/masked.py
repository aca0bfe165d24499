"""A workspace with people's data behind placeholders: read masked, written with the real values."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from sonde.contexts.workspace.base import (
    Applied,
    CommandResult,
    FileChange,
    FileSlice,
    Match,
    Matches,
    PatchRefused,
    PathRefused,
    Plan,
    Workspace,
    matching_lines,
    passage,
)
from sonde.contexts.workspace.local import DOCUMENTS, MAX_MATCHES
from sonde.contexts.workspace.paths import clean_folder
from sonde.core.canonical import sha256_text
from sonde.errors import ToolFault

if TYPE_CHECKING:
    from sonde.core.mask import Mask

MAX_SEARCHED = 2000
"""Files; each is read and masked as a whole."""


class MaskedWorkspace:
    """See `Workspace`. Whoever approves a plan sees it as it will be written."""

    def __init__(self, inner: Workspace, mask: Mask) -> None:
        self.inner = inner
        self._mask = mask

    def list_files(self, root: str = "") -> tuple[str, ...]:
        """Paths of the files below a folder, masked."""
        with self._behind(root) as real:
            return tuple(sorted(map(self._mask.hidden_name, self.inner.list_files(real))))

    @contextmanager
    def _behind(self, path: str) -> Generator[str]:
        """The path behind one that the run names. The words of a fault may quote it or parts of it, so they are said only if it hides
        nothing; one that holds a value in the clear is a guess, and names nothing.
        """
        real = self._mask.behind(path)
        missing = f"there is no {path}; list_files() shows what there is"
        if real is None:
            raise PathRefused(missing)
        try:
            yield real
        except ToolFault as fault:
            raise PathRefused(self._mask.hidden(fault.message) if real == path else missing) from None

    def read(
        self, path: str, start_line: int | None = None, end_line: int | None = None, *, rationale: str = ""
    ) -> FileSlice:
        """Lines of a file. All of it is read and masked first: a key may begin above them."""
        with self._behind(path) as real:
            whole = self.inner.read(real, rationale=rationale)
        lines = self._mask.hidden(whole.content).split("\n") if whole.total_lines else []
        return passage(self._mask.hidden_name(whole.path), lines, start_line, end_line)

    def search(self, query: str, path: str | None = None) -> Matches:
        """Lines that contain the text `query` as they are masked."""
        if not query:
            raise ToolFault("the query is empty. Example: search('def main')")
        place = clean_folder(path or "")
        names = [each for each in self.list_files() if not place or each == place or each.startswith(f"{place}/")]
        if place and not names:
            return Matches(matches=tuple(matching_lines(place, self.read(place).content.split("\n"), query)))
        rows: list[Match] = []
        for name in names[:MAX_SEARCHED]:
            if len(names) == 1 or not name.lower().endswith(DOCUMENTS):
                with suppress(PathRefused):  # no text
                    rows += matching_lines(name, self.read(name).content.split("\n"), query)
            if len(rows) >= MAX_MATCHES:
                break
        cut = len(rows) >= MAX_MATCHES or len(names) > MAX_SEARCHED
        note = f"only the first {MAX_MATCHES} matches in the first {MAX_SEARCHED:,} files are shown; name a file or a folder"
        return Matches(matches=tuple(rows[:MAX_MATCHES]), truncated=note if cut else None)

    def text(self, path: str) -> str | None:
        """The whole text of a file, masked."""
        if self._mask.behind(path) is None:
            return None
        with self._behind(path) as real:
            whole = self.inner.text(real)
        return None if whole is None else self._mask.hidden(whole)

    def apply(self, plan: Plan) -> Applied:
        """Write the plan with the real values; a placeholder that stands for nothing is refused."""
        unknown = [name for change in plan.changes for name in self._mask.unknown_in(change.new_text or "")]
        if unknown:
            raise PatchRefused(f"{unknown[0]} stands for nothing here; use only placeholders that you have read")
        glued = [
            name for change in plan.changes for name in self._mask.glued_in(change.new_text or "", change.old_text)
        ]
        if glued:
            raise PatchRefused(
                f"{glued[0]} would not be recognised there any more; put a space between it and its neighbours"
            )
        real = replace(plan, changes=tuple(map(self._real, plan.changes)))
        try:
            done = self.inner.apply(real)
        except ToolFault as fault:
            named = [path for change in plan.changes for path in change.touched()]
            raise ToolFault(
                self._mask.NOT_SAID if self._mask.handed(named) else self._mask.hidden(fault.message)
            ) from None
        return replace(done, summary=self._mask.hidden(done.summary), diff=self._mask.hidden(done.diff))

    def _real(self, change: FileChange) -> FileChange:
        restored, old = self._mask.restored, self._mask.restored(change.old_text)
        return replace(
            change,
            path=restored(change.path),
            target=None if change.target is None else restored(change.target),
            new_text=None if change.new_text is None else restored(change.new_text),
            old_text=old,
            base_hash=None if change.base_hash is None else sha256_text(old),
        )

    def undo(self) -> str:
        """Take the last applied plan back."""
        return self._mask.hidden(self.inner.undo())

    def execute(self, command: str, cwd: str = "") -> CommandResult:
        """Run an allowed command with the real values; what it prints is masked."""
        real = self._mask.restored(command)
        try:
            with self._behind(cwd) as folder:
                done = self.inner.execute(real, folder)
        except ToolFault as fault:
            raise ToolFault(fault.message if real == command else self._mask.NOT_SAID) from None
        return replace(done, stdout=self._mask.hidden(done.stdout), stderr=self._mask.hidden(done.stderr))
