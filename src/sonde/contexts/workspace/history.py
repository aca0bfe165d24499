"""What a run wrote and what was there before: one line per plan in the run's folder, on disk before the files change.

The way back of an edit and its patches are made of these lines alone, so a killed run has them too. Each line carries a mark by the
user's key: nothing is taken back by what somebody else put into a folder. A plan whose texts must not be kept (the run is masked, a
key of the user stands in a file) is there by its names, and says why.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from sonde.disk import open_to_write, read_plain
from sonde.runs.rundir import SEAL, write_atomically

if TYPE_CHECKING:
    from sonde.core.mask import Mask
    from sonde.core.redaction import SecretForms

WRITES, PATCH, UNDO, UNDONE = "writes.jsonl", "edit.patch", "undo.patch", "undone"
MASKED = "the run was masked, and its folder keeps no real values"
HIDDEN_NAME = "a file whose name is masked"
HOLDS_KEY = "a key of yours stands in a file that it wrote, and no run folder keeps one"
MAX_BYTES = 256 << 20
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
            line = msgspec.json.encode(_Entry(msgspec.Raw(body), self._mark(body))) + b"\n"
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

    def _mark(self, body: bytes) -> str:
        if self.key is None:
            return ""
        seal = b""
        with suppress(OSError):  # without a seal the run is a stranger's, whatever its lines say
            seal = read_plain(self.folder / SEAL, 100).strip()
        return hmac.new(self.key, seal + body, hashlib.sha256).hexdigest()

    def _lines(self) -> list[_Entry]:
        try:
            data = read_plain(self.folder / WRITES, MAX_BYTES)
            return [
                msgspec.json.decode(line, type=_Entry) for line in data.split(b"\n")[:-1]
            ]  # a torn line wrote nothing
        except (OSError, msgspec.MsgspecError, RecursionError):
            return []

    def is_own(self) -> bool:
        """Whether every line was written with this key."""
        return all(hmac.compare_digest(each.mark, self._mark(bytes(each.written))) for each in self._lines())

    def read(self) -> list[WriteNote]:
        """What was written, oldest first; nothing if the lines cannot be read."""
        try:
            return [msgspec.json.decode(each.written, type=WriteNote) for each in self._lines()]
        except (msgspec.MsgspecError, RecursionError):
            return []

    def write_patches(self) -> bool:
        """Leave edit.patch and undo.patch in the folder; False if there is nothing for them, or nothing that may be kept."""
        written = self.read()
        plan = net(written)
        if not plan.changes or any(each.withheld for each in written):
            return False
        for name, each in ((PATCH, plan), (UNDO, plan.inverse())):
            write_atomically(self.folder / name, b"".join(change.patch() for change in each.changes))
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
    for path, seen in versions(written).items():
        old, new = seen[0].text, seen[-1].text
        if old != new or any(each.withheld for each in written):
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
