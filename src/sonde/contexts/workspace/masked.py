"""A workspace with people's data behind placeholders: read masked, written with the real values."""

from __future__ import annotations

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
    Plan,
    Workspace,
    passage,
)
from sonde.core.canonical import sha256_text
from sonde.errors import ToolFault

if TYPE_CHECKING:
    from sonde.core.mask import Mask

SHOWN_CHARS = 300


class MaskedWorkspace:
    """See `Workspace`. Whoever approves a plan sees it as it will be written."""

    def __init__(self, inner: Workspace, mask: Mask) -> None:
        self.inner = inner
        self._mask = mask

    def list_files(self, root: str = "") -> tuple[str, ...]:
        """Paths of the files below a folder, masked."""
        return tuple(sorted(map(self._mask.hidden_name, self.inner.list_files(self._mask.restored(root)))))

    def read(
        self, path: str, start_line: int | None = None, end_line: int | None = None, *, rationale: str = ""
    ) -> FileSlice:
        """Lines of a file. All of it is read and masked first: a key may begin above them."""
        try:
            whole = self.inner.read(self._mask.restored(path), rationale=rationale)
        except ToolFault as fault:
            raise ToolFault(self._mask.hidden(fault.message)) from None
        lines = self._mask.hidden(whole.content).split("\n") if whole.total_lines else []
        return passage(self._mask.hidden_name(whole.path), lines, start_line, end_line)

    def search(self, query: str, path: str | None = None) -> Matches:
        """Lines that contain the text `query` as they are masked."""
        found = self.inner.search(self._mask.restored(query), None if path is None else self._mask.restored(path))
        texts: dict[str, list[str]] = {}
        rows: list[Match] = []
        for match in found.matches:
            name = self._mask.hidden_name(match.path)
            if name not in texts:
                texts[name] = self.read(name).content.split("\n")
            lines = texts[name]
            line = lines[match.line - 1] if match.line <= len(lines) else ""
            if query in line:
                rows.append(Match(path=name, line=match.line, text=line[:SHOWN_CHARS]))
        return Matches(matches=tuple(rows), truncated=found.truncated)

    def text(self, path: str) -> str | None:
        """The whole text of a file, masked."""
        whole = self.inner.text(self._mask.restored(path))
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
        done = self.inner.apply(real)
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
        done = self.inner.execute(self._mask.restored(command), self._mask.restored(cwd))
        return replace(done, stdout=self._mask.hidden(done.stdout), stderr=self._mask.hidden(done.stderr))
