"""Writes a plan to a folder: all of it or nothing.

Order: encode everything, stage every new text in a hidden file beside its target, read every base again and compare, only then
rename. A failure at any step puts back what was already renamed. What this does not promise: that nobody sees the moment between two
renames, or that a machine that loses power in that moment has them all.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from dataclasses import dataclass, field, replace

from sonde.contexts.workspace.base import Action, FileChange, Form, PatchRefused, Plan
from sonde.contexts.workspace.paths import Root
from sonde.contexts.workspace.text import decode, encode
from sonde.core.canonical import sha256_text


@dataclass(slots=True)
class Step:
    """One file on its way to disk."""

    change: FileChange
    before: bytes | None  # the bytes to put back
    form: Form
    staged: str | None = None  # path of the hidden file


@dataclass(slots=True)
class Transaction:
    """The steps of one plan and the folders made for them, for taking it back."""

    root: Root
    steps: list[Step] = field(default_factory=list[Step])
    folders: list[str] = field(default_factory=list[str])
    done: list[Step] = field(default_factory=list[Step])

    def stage(self, plan: Plan) -> None:
        """Everything that can fail without having changed a file."""
        for change in plan.changes:
            self.steps.append(self._checked(change))
        for step in self.steps:
            if step.change.new_text is not None:
                step.staged = self._stage(
                    step.change.writes, encode(step.change.path, step.change.new_text, step.form), step.form
                )

    def _checked(self, change: FileChange) -> Step:
        """The step for a change whose base is still what the plan was made from."""
        for path in change.touched():
            self.root.check_writable(path)
        if change.target is not None and self.root.read(change.target) is not None:
            raise PatchRefused(f"{change.target} has appeared since the patch was planned")
        found = self.root.read(change.path)
        if found is None or change.action is Action.ADD:
            if found is not None or change.action is not Action.ADD:
                raise PatchRefused(f"{change.path} has {'appeared' if found else 'gone'} since the patch was planned")
            return Step(change, None, change.form or Form())
        text, form = decode(change.path, *found)
        if sha256_text(text) != change.base_hash:
            raise PatchRefused(f"{change.path} has changed since it was read; read it again and make a new patch")
        return Step(change, found[0], change.form or form)

    def _stage(self, path: str, data: bytes, form: Form) -> str:
        with self.root.parent(path, create=self.folders) as (folder, _):
            name = f".sonde-{secrets.token_hex(6)}.tmp"
            descriptor = os.open(
                name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder
            )
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                os.fchmod(file.fileno(), form.mode)
        return "/".join([*path.split("/")[:-1], name])

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

    def _commit(self, step: Step) -> None:
        change = step.change
        if step.staged is not None:
            self._rename(step.staged, change.writes, fresh=change.action in (Action.ADD, Action.MOVE))
            step.staged = None
        if change.action in (Action.DELETE, Action.MOVE):
            self._remove(change.path)

    def _rename(self, staged: str, path: str, *, fresh: bool) -> None:
        """Into place in one move; a new file never replaces one that has just appeared."""
        with self.root.parent(path) as (folder, name):
            source = staged.rsplit("/", 1)[-1]
            if fresh:
                os.link(source, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
                os.unlink(source, dir_fd=folder)
            else:
                os.rename(source, name, src_dir_fd=folder, dst_dir_fd=folder)

    def _remove(self, path: str) -> None:
        with self.root.parent(path) as (folder, name):
            os.unlink(name, dir_fd=folder)

    def _put_back(self) -> None:
        for step in reversed(self.done):
            change = step.change
            if step.staged is None and change.new_text is not None and change.action is not Action.UPDATE:
                with suppress(FileNotFoundError):
                    self._remove(change.writes)
            if step.before is not None:
                with self.root.parent(change.path) as (folder, name):
                    os.rename(
                        self._stage(change.path, step.before, step.form).rsplit("/", 1)[-1],
                        name,
                        src_dir_fd=folder,
                        dst_dir_fd=folder,
                    )

    def clear(self, *, failed: bool) -> None:
        """Remove hidden files that were not used, and after a failure the folders made for them."""
        for step in self.steps:
            if step.staged is not None:
                with suppress(OSError):
                    self._remove(step.staged)
        if failed:
            self.remove_folders(self.folders)

    def remove_folders(self, folders: list[str]) -> None:
        """Remove folders that are empty, the deepest first."""
        for path in reversed(folders):
            with suppress(OSError), self.root.parent(path) as (folder, name):
                os.rmdir(name, dir_fd=folder)


def write_plan(root: Root, plan: Plan) -> Transaction:
    """Apply the plan; on any error nothing has changed. Returns what `undo` needs."""
    transaction = Transaction(root)
    failed = True
    try:
        transaction.stage(plan)
        transaction.commit()
        failed = False
    except OSError as error:
        raise PatchRefused(f"the files could not be written: {error.strerror or error}") from error
    finally:
        transaction.clear(failed=failed)
    return transaction


def inverse(transaction: Transaction) -> Plan:
    """The plan that takes a written one back, with the forms that the files had."""
    changes = tuple(replace(step.change, form=step.form) for step in transaction.steps)
    return Plan(changes=changes).inverse()
