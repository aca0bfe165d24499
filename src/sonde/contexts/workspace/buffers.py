"""A folder of this machine that an editor has open: its unsaved text is what is read, and it is the editor that writes.

Every path is judged as on disk before the editor is asked, and a file that disk would refuse (a secret, a link out, a binary file) is
not asked for. What the editor answers is a stranger's: text of a bounded size or a refusal. A buffer without unsaved changes reads as
the file does, with its own line endings. A search through many files looks at what is saved, but for files that were read before: an
editor would have to open each of them. New and changed texts are written by the editor; it cannot move or delete, so we do, and only
files without unsaved changes. What this does not promise: that a folder that is swapped for a link between our look and the editor's is
noticed, since editors follow links.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

from sonde.contexts.workspace.base import Action, FileChange, PatchRefused, PathRefused, Plan, WriteNote
from sonde.contexts.workspace.local import LocalWorkspace
from sonde.contexts.workspace.text import MAX_BYTES, plain
from sonde.contexts.workspace.writer import Transaction, write_plan
from sonde.core.canonical import sha256_text
from sonde.errors import ToolFault


class Buffers(Protocol):
    """An editor's files by their path below the root. Both methods raise a ToolFault that says what the editor did not do."""

    def read_buffer(self, path: str) -> str | None:
        """The text as the editor shows it; None if it knows no such file."""
        ...

    def write_buffer(self, path: str, text: str) -> None:
        """Replace the text, or make the file."""
        ...


class BufferedWorkspace(LocalWorkspace):
    """See `Workspace`."""

    def __init__(self, root: str | os.PathLike[str], buffers: Buffers, **options: Any) -> None:
        super().__init__(root, **options)
        self._buffers = buffers
        self._ends: dict[str, bool] = {}
        """The files that were asked for, and whether the editor shows a CR in them."""

    def text(self, path: str) -> str | None:
        """The whole text, unsaved changes included."""
        saved = super().text(path)
        real = self.root.real(path)
        try:
            shown = self._buffers.read_buffer(real)
        except ToolFault:
            if saved is not None:
                raise
            shown = None  # editors have many ways to say that there is no such file
        if shown is None or (saved is None and not shown):
            return saved
        try:
            size = len(shown.encode())
        except UnicodeEncodeError:
            size = MAX_BYTES + 1
        if size > MAX_BYTES or "\0" in shown or ("\ufffd" in shown and "\ufffd" not in (saved or "\ufffd")):
            raise PathRefused(
                f"{path} is not text in the editor, or more than {MAX_BYTES:,} bytes; look at its encoding"
            )
        self._ends[real] = "\r" in shown
        same = saved is not None and _bare(shown) == _bare(saved)
        return saved if same else shown

    def _readable(self, path: str, *, one_of_many: bool = False) -> str | None:
        return super().text(path) if one_of_many and path not in self._ends else super()._readable(path)

    def _write(self, plan: Plan) -> Plan:
        """Look at every base again, then let the editor write, then move and delete. A failure puts back what it can."""
        for change in plan.changes:
            for path in change.touched():
                self.root.check_writable(path)
            now = self.text(change.path)
            if (None if now is None else sha256_text(now)) != change.base_hash:
                raise PatchRefused(f"{change.path} has changed since it was read; read it again and make a new patch")
            if change.target is not None and self.text(change.target) is not None:
                raise PatchRefused(f"{change.target} has appeared since the patch was planned")
            if change.action in (Action.DELETE, Action.MOVE) and super().text(change.path) != now:
                raise PatchRefused(
                    f"{change.path} has unsaved changes in the editor; it can be moved or deleted when saved"
                )
        by_editor = tuple(change for change in plan.changes if change.action in (Action.ADD, Action.UPDATE))
        rest = tuple(change for change in plan.changes if change not in by_editor)
        begun: list[FileChange] = []
        folders: list[str] = []
        noted = False
        moved = Plan(changes=())
        try:
            for change in by_editor:
                with self.root.parent(change.path, create=folders):
                    pass  # not every editor makes folders
            if by_editor:
                self.keep(WriteNote(plan=Plan(changes=by_editor, folders=tuple(folders))))
                noted = True
            for change in by_editor:
                begun.append(change)
                self._write_one(change)
            if rest:
                moved = write_plan(self.root, Plan(changes=rest, folders=plan.folders), self.keep)
        except (OSError, ToolFault) as fault:
            left = [change for change in reversed(begun) if not self._put_back(change)]
            Transaction(self.root).remove_folders(folders)
            if noted:
                as_before = Plan(changes=tuple(change for change in by_editor if change not in left))
                with suppress(OSError, ToolFault):
                    self.keep(WriteNote(plan=as_before.inverse()))
            if left:
                names = ", ".join(change.path for change in left)
                raise ToolFault(f"the patch was not applied as a whole: {fault}. Look at {names}") from fault
            raise PatchRefused(str(fault).removeprefix(PatchRefused("").message)) from fault
        return replace(plan, changes=(*by_editor, *moved.changes), folders=(*folders, *moved.folders))

    def _write_one(self, change: FileChange) -> None:
        """Have a text written with the line endings that the editor shows."""
        text = change.new_text or ""
        self._buffers.write_buffer(change.path, text if self._ends.get(change.path, True) else plain(text))

    def _put_back(self, change: FileChange) -> bool:
        """Undo one file that the editor may have written; False if it has neither text any more or does not answer."""
        with suppress(ToolFault, OSError):
            now, old = self.text(change.path), None if change.action is Action.ADD else change.old_text
            if now == old:
                return True
            if now is not None and _bare(now) == _bare(change.new_text or ""):
                if old is None:
                    write_plan(self.root, Plan(changes=(change.inverse(),)))
                else:
                    self._write_one(change.inverse())
                return self.text(change.path) == old
        return False


def _bare(text: str) -> str:
    """What two texts have in common that differ in the end of lines or in a mark of the encoding only."""
    return plain(text).removeprefix("\ufeff").removesuffix("\n")
