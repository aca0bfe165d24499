"""Writes a plan to a folder: all of it or nothing.

Order: encode everything, stage every new text in a hidden file beside its target, read every base again and compare, only then
rename. A failure at any step puts back what was already renamed. A changed file keeps its owner, where we may give it away, and its
mode, but never runs as that owner: set-user-ID and set-group-ID vouch for the old text only. What this does not promise: that nobody
sees the moment between two renames, or that a machine that loses power in that moment has them all.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from sonde.contexts.workspace.base import (
    Action,
    FileChange,
    Form,
    Keep,
    PatchRefused,
    PathRefused,
    Plan,
    WriteNote,
)
from sonde.contexts.workspace.paths import Root
from sonde.contexts.workspace.text import decode, encode
from sonde.core.canonical import sha256_text


@dataclass(slots=True)
class FileStep:
    """One file on its way to disk."""

    change: FileChange
    before: bytes | None  # the bytes to put back
    form: Form
    status: os.stat_result | None = None  # of the file as it was
    staged: str | None = None  # name of the hidden file, beside the file that it will be
    written: bool = False
    removed: bool = False
    held: dict[str, int] = field(default_factory=dict[str, int])
    """Open folders by path: the way back, wherever they went."""


@dataclass(slots=True)
class Transaction:
    """The steps of one plan and the folders made for them, for taking it back."""

    root: Root
    steps: list[FileStep] = field(default_factory=list[FileStep])
    folders: list[str] = field(default_factory=list[str])
    done: list[FileStep] = field(default_factory=list[FileStep])

    def stage(self, plan: Plan) -> None:
        """Everything that can fail without having changed a file."""
        for change in plan.changes:
            self.steps.append(self._checked(change))
        for step in self.steps:
            if step.change.new_text is not None:
                data = encode(step.change.path, step.change.new_text, step.form)
                with self.root.parent(step.change.writes, create=self.folders) as (folder, _):
                    step.held[step.change.writes] = os.dup(folder)
                    step.staged = _hidden(folder, data, step.form.mode & 0o777, step.status)

    def _checked(self, change: FileChange) -> FileStep:
        """The step for a change whose base is still what the plan was made from."""
        for path in change.touched():
            self.root.check_writable(path)
        if change.target is not None and self.root.read(change.target) is not None:
            raise PatchRefused(f"{change.target} has appeared since the patch was planned")
        found = self.root.read(change.path)
        if found is None or change.action is Action.ADD:
            if found is not None or change.action is not Action.ADD:
                raise PatchRefused(f"{change.path} has {'appeared' if found else 'gone'} since the patch was planned")
            return FileStep(change, None, change.form or Form())
        text, form = decode(change.path, *found)
        if sha256_text(text) != change.base_hash:
            raise PatchRefused(f"{change.path} has changed since it was read; read it again and make a new patch")
        with self.root.parent(change.path) as (folder, name):
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        return FileStep(change, found[0], change.form or form, status)

    def commit(self) -> None:
        """Check each base once more right before its rename; put everything back if one fails."""
        try:
            for step in self.steps:
                self._checked(step.change)
                self.done.append(step)
                self._commit(step)
        except BaseException:
            self._put_back()
            raise

    def _commit(self, step: FileStep) -> None:
        change = step.change
        if step.staged is not None:
            with self.root.parent(change.writes) as (folder, name):
                if change.action is Action.UPDATE:
                    os.rename(step.staged, name, src_dir_fd=folder, dst_dir_fd=folder)
                else:  # a link, not a rename: a new file never replaces one that has just appeared
                    os.link(step.staged, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
                    os.unlink(step.staged, dir_fd=folder)
            step.staged, step.written = None, True
        if change.action in (Action.DELETE, Action.MOVE):
            with self.root.parent(change.path) as (folder, name):
                step.held[change.path] = os.dup(folder)
                os.unlink(name, dir_fd=folder)
            step.removed = True

    def _put_back(self) -> None:
        for step in reversed(self.done):
            change = step.change
            if step.written and change.action is not Action.UPDATE:
                with suppress(FileNotFoundError):
                    os.unlink(_name(change.writes), dir_fd=step.held[change.writes])
            if step.before is not None and (step.removed or (step.written and change.action is Action.UPDATE)):
                folder = step.held[change.path]
                mode = stat.S_IMODE(step.status.st_mode) if step.status else step.form.mode
                hidden = _hidden(folder, step.before, mode, step.status)
                os.rename(hidden, _name(change.path), src_dir_fd=folder, dst_dir_fd=folder)

    def clear(self, *, failed: bool) -> None:
        """Remove hidden files that were not used, and after a failure the folders made for them."""
        for step in self.steps:
            if step.staged is not None:
                with suppress(OSError):
                    os.unlink(step.staged, dir_fd=step.held[step.change.writes])
            while step.held:
                os.close(step.held.popitem()[1])
        if failed:
            self.remove_folders(self.folders)

    def remove_folders(self, folders: Sequence[str]) -> None:
        """Remove folders that are empty, the deepest first."""
        for path in reversed(folders):
            with suppress(OSError, PathRefused), self.root.parent(path) as (folder, name):
                os.rmdir(name, dir_fd=folder)


def _name(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _hidden(folder: int, data: bytes, mode: int, like: os.stat_result | None) -> str:
    """The name of a new file with these bytes in an open folder, owned as another one; none is left where they do not fit."""
    name = f".sonde-{secrets.token_hex(6)}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(name, flags, 0o600, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if like is not None:
                with suppress(PermissionError):  # only root may give a file away
                    os.fchown(file.fileno(), like.st_uid, like.st_gid)
            os.fchmod(file.fileno(), mode)
    except BaseException:
        os.unlink(name, dir_fd=folder)
        raise
    return name


def write_plan(root: Root, plan: Plan, keep: Keep = lambda _: None) -> Plan:
    """Apply the plan; on any error nothing has changed. Returns it with the forms of the files and the folders that were made.

    `keep` hears of it before the first file changes, and of its inverse if it was put back.
    """
    transaction = Transaction(root)
    failed, kept = True, None
    try:
        transaction.stage(plan)
        changes = tuple(replace(step.change, form=step.form) for step in transaction.steps)
        full = replace(plan, changes=changes, folders=tuple(transaction.folders))
        keep(WriteNote(plan=full))
        kept = full
        transaction.commit()
        failed = False
    except OSError as error:
        raise PatchRefused(f"the files could not be written: {error.strerror or error}") from error
    finally:
        transaction.clear(failed=failed)
        if failed and kept is not None:
            with suppress(PatchRefused):
                keep(WriteNote(plan=kept.inverse()))
    transaction.remove_folders(plan.folders)
    return full
