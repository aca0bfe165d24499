"""What a run wrote and what was there before: one line per plan in the run's folder, on disk before the files change.

The way back of an edit and its patches are made of these lines alone, so a killed run has them too. Each line carries a mark by the
user's key: nothing is taken back by what somebody else put into a folder. A plan whose texts must not be kept (the run is masked, a
key of the user stands in a file) is there by its names, and says why.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sonde.contexts.workspace.base import Action, FileChange, Form, PatchRefused, Plan, WriteNote
from sonde.contexts.workspace.match import FileLines, LineBudget, place_hunks
from sonde.contexts.workspace.parse import Hunk, parse_patch
from sonde.contexts.workspace.planner import patched
from sonde.contexts.workspace.text import split
from sonde.core.canonical import sha256_text
from sonde.disk import open_plain, open_to_write, read_plain
from sonde.runs.rundir import SEAL, RunDir, write_atomically

if TYPE_CHECKING:
    from sonde.core.mask import Mask
    from sonde.core.redaction import SecretForms

WRITES, PATCH, UNDO, UNDONE = "writes.jsonl", "edit.patch", "undo.patch", "undone"
MASKED = "the run was masked, and its folder keeps no real values"
HIDDEN_NAME = "a file whose name is masked"
HOLDS_KEY = "a key of yours stands in a file that it wrote, and no run folder keeps one"
MAX_BYTES = 256 << 20
UNSEALED_BYTES = 4 << 20
"""What is read at most of a run without the user's seal."""
SHOWN = 120
NEAR = 200
"""How many lines up and down the lines of a hunk are looked for."""


class _Entry(msgspec.Struct):
    written: msgspec.Raw
    mark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A file at one time: None where there was none, and no form where an editor wrote it."""

    text: str | None
    form: Form | None


@dataclass(frozen=True, slots=True)
class WriteLog:
    """The lines of one run folder. `mask` and `keys` say what must not get into it."""

    folder: Path
    key: bytes | None = None
    mask: Mask | None = None
    keys: SecretForms | None = None

    def append(self, written: WriteNote) -> None:
        """One line, synced to disk; PatchRefused if it cannot be, and then nothing may be written."""
        try:
            body = msgspec.json.encode(self._kept(written))
            line = msgspec.json.encode(_Entry(msgspec.Raw(body), self._marks()(body))) + b"\n"
            with os.fdopen(open_to_write(self.folder / WRITES, append=True), "ab") as file:
                if file.tell() + len(line) > MAX_BYTES:
                    raise PatchRefused(
                        f"the way back of this run has reached {MAX_BYTES >> 20} MB, the most that is kept"
                    )
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except (OSError, ValueError) as error:  # ValueError: half a character, which an editor may send
            why = getattr(error, "strerror", None) or error
            raise PatchRefused(f"the way back could not be kept: {why}") from error

    def _kept(self, written: WriteNote) -> WriteNote:
        texts = [text for change in written.plan.changes for text in (change.old_text, change.new_text or "")]
        why = MASKED if self.mask is not None else ""
        if self.keys is not None and any(self.keys.remove(text) != text for text in texts):
            why = HOLDS_KEY
        if not why:
            return written

        def name(
            path: str,
        ) -> str:  # beside other words a value may be found in part only, so such a name is left out whole
            return path if self.mask is None or self.mask.hidden_name(path) == path else HIDDEN_NAME

        changes = tuple(
            FileChange(path=name(each.path), action=each.action, target=each.target and name(each.target))
            for each in written.plan.changes
        )
        return WriteNote(
            plan=Plan(changes=changes),
            by_commands=tuple(map(name, written.by_commands)),
            withheld=why if changes else "",
        )

    def _marks(self) -> Callable[[bytes | memoryview], str]:
        """What gives the mark of a line."""
        if self.key is None:
            return lambda _: ""
        seal = b""
        with suppress(OSError):  # without a seal the run is a stranger's, whatever its lines say
            seal = read_plain(self.folder / SEAL, 100).strip()
        begun = hmac.new(self.key, seal, hashlib.sha256)

        def mark(body: bytes | memoryview) -> str:
            ended = begun.copy()
            ended.update(body)
            return ended.hexdigest()

        return mark

    def _lines(self) -> Iterator[tuple[msgspec.Raw, bool]]:
        """What each line says, not decoded yet, and whether it was written with this key; MsgspecError if a line is none of its run."""
        mark = self._marks()
        sealed = self.key is not None and RunDir(self.folder).is_sealed(self.key)
        with suppress(OSError), open_plain(self.folder / WRITES) as file:
            if os.fstat(file.fileno()).st_size > (MAX_BYTES if sealed else UNSEALED_BYTES):
                return
            for line in file:
                if line.endswith(b"\n"):  # a torn line wrote nothing
                    each = msgspec.json.decode(line, type=_Entry)
                    own = hmac.compare_digest(each.mark.encode(), mark(memoryview(each.written)).encode())
                    if sealed and not own:
                        raise msgspec.ValidationError("somebody else added to it")
                    yield each.written, own

    def is_own(self) -> bool:
        """Whether every line was written with this key."""
        try:
            return all(own for _, own in self._lines())
        except (msgspec.MsgspecError, RecursionError):
            return False

    def read(self, *, strangers: bool = False) -> list[WriteNote]:
        """What was written with this key, or also what `strangers` wrote, oldest first; nothing if a line cannot be read."""
        try:
            lines = (written for written, own in self._lines() if own or strangers)
            return [msgspec.json.decode(written, type=WriteNote) for written in lines]
        except (msgspec.MsgspecError, RecursionError):
            return []

    def write_patches(self) -> bool:
        """Leave edit.patch and undo.patch in the folder; False if there is nothing for them, or nothing that may be kept."""
        written = self.read()
        plan = net(written)
        if not plan.changes or any(each.withheld for each in written):
            return False
        try:
            for name, each in ((PATCH, plan), (UNDO, plan.inverse())):
                write_atomically(self.folder / name, b"".join(change.patch() for change in each.changes))
        except UnicodeEncodeError:  # a file that was made anew with signs that its old encoding lacks
            return False
        return True


def by_commands(written: Iterable[WriteNote]) -> tuple[str, ...]:
    """The files that commands changed, each once."""
    return tuple(dict.fromkeys(path for each in written for path in each.by_commands))


def versions(written: Iterable[WriteNote]) -> Mapping[str, Sequence[Version]]:
    """Each file as the run found it, and as it left it each time."""
    found: dict[str, list[Version]] = {}
    for change in (change for each in written for change in each.plan.changes):
        before = Version(text=None if change.action is Action.ADD else change.old_text, form=change.form)
        after = Version(text=change.new_text, form=change.form)
        gone = Version(text=None, form=None)
        for path, old, new in (
            ((change.path, before, gone), (change.target, gone, after))
            if change.target
            else ((change.path, before, after),)
        ):
            found.setdefault(path, [old]).extend((old, new))
    return found


def net(written: Sequence[WriteNote]) -> Plan:
    """All that was written and not taken back, as one plan; of texts that were not kept, the names."""
    changes: list[FileChange] = []
    withheld = any(each.withheld for each in written)
    for path, seen in versions(written).items():
        old, new = seen[0].text, seen[-1].text
        if old != new or withheld:
            action = Action.ADD if old is None else Action.DELETE if new is None else Action.UPDATE
            form = seen[-1].form if old is None else seen[0].form
            changes.append(FileChange(path=path, action=action, new_text=new, old_text=old or "", form=form))
    folders = dict.fromkeys(folder for each in written for folder in each.plan.folders)
    return Plan(changes=tuple(changes), folders=tuple(folders))


def way_back(written: Sequence[WriteNote], text_of: Callable[[str], str | None]) -> Plan:
    """The plan that puts the files back as the run found them. In a file that has changed since, only the run's own lines are taken
    back; PatchRefused says which of them is another one now.
    """
    changes: list[FileChange] = []
    notes: list[str] = []
    for path, seen in versions(written).items():
        now, new = text_of(path), seen[0].text
        if now == new:
            continue
        if all(now != each.text for each in seen):
            new = _merged(path, now, seen[-1].text, new, notes)
        action = Action.ADD if now is None else Action.DELETE if new is None else Action.UPDATE
        change = FileChange(path=path, action=action, new_text=new, old_text=now or "")
        base = None if now is None else sha256_text(now)
        changes.append(replace(change, base_hash=base, form=seen[0].form if now is None else None))
    return Plan(changes=tuple(changes), notes=tuple(notes), folders=net(written).folders)


def _merged(path: str, now: str | None, left: str | None, before: str | None, notes: list[str]) -> str:
    """A text that has changed since, without the lines that lead from `before` to what was `left`."""
    if now is None:
        raise PatchRefused(f"{path} was deleted since")
    if left is None:
        raise PatchRefused(f"{path} is there again, with another text")
    if before is None:
        what = _difference(left.splitlines(keepends=True), now.splitlines(keepends=True))
        raise PatchRefused(f"{path} was new and has changed since: {what}")
    hunks: Sequence[Hunk] = ()
    try:
        back = FileChange(path="file", action=Action.UPDATE, old_text=left, new_text=before)
        hunks = parse_patch(back.diff)[0].hunks
        return patched(path, now, hunks, notes, LineBudget())
    except PatchRefused:
        lines = [line.text for line in split(now)]
        raise PatchRefused(f"{path} has changed since: {_misfit(lines, hunks)}") from None


def _misfit(lines: Sequence[str], hunks: Sequence[Hunk]) -> str:
    """Why hunks do not fit: the first line that is not what they remove or keep, near the place where it was."""
    for hunk in hunks:
        with suppress(PatchRefused):
            place_hunks(FileLines("", lines), [hunk])
            continue
        at = max(0, (hunk.hint or 1) - 1)
        near = range(max(0, at - NEAR), min(len(lines), at + NEAR) + 1)
        fits = {start: sum(map(str.__eq__, hunk.old, lines[start:])) for start in near}
        start = max(near, key=lambda each: (fits[each], -abs(each - at)))
        return _difference(hunk.old, lines[start : start + len(hunk.old)], start + 1)
    return "its lines stand at several places"


def _difference(left: Sequence[str], now: Sequence[str], first: int = 1) -> str:
    """The first line that is not the one that was left, with both as they are."""
    for number, pair in enumerate(zip_longest(left, now), first):
        if pair[0] != pair[1]:
            texts = enumerate(zip(*(each or "" for each in pair), strict=False))
            same = next((at for at, (then, here) in texts if then != here), 0)
            begin = max(0, same - SHOWN // 2)
            then, here = ("nothing" if each is None else repr(each[begin : begin + SHOWN]) for each in pair)
            return f"the edit left {then} in line {number}, which is now {here}"
    return "its lines stand at several places"
