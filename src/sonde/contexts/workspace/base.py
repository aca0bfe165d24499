"""What a workspace is: a folder of text files that may be listed, read and searched, and changed only by an approved plan.

`Workspace` is the seam; `LocalWorkspace` works on a folder of this machine, `WireWorkspace` asks the editor at the other end of
the protocol. Paths are relative to the root and use `/`. Lines are counted from 1, both ends included. A `Plan` holds whole new
texts, so whoever applies it needs no patch logic: it checks path, base hash and policy, and writes all of it or nothing.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Protocol

from sonde.core.canonical import sha256_text
from sonde.core.difference import hunks
from sonde.errors import ToolFault

_STEP = 1 << 14
MARKS = (  # the longer ones first: UTF-32's mark begins with UTF-16's
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


class PathRefused(ToolFault):
    """The path is outside the workspace, protected, or not a regular text file."""


class PatchRefused(ToolFault):
    """The patch cannot be applied as it stands; nothing was changed."""

    def __init__(self, message: str) -> None:
        super().__init__(f"patch refused, nothing was changed: {message}")


class NothingToChange(PatchRefused):
    """What the patch would make is there already. A replay knows it by its words."""

    WORDS = ("would not change", "seems to have been applied")


class Action(StrEnum):
    """What happens to one file."""

    ADD = "add"
    UPDATE = "update"
    DELETE = "delete"
    MOVE = "move"


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How a text is kept on disk: put back as it was found. ValueError for one that no text is read in: a run folder may name any codec."""

    encoding: str = "utf-8"
    bom: bytes = b""
    mode: int = 0o644

    def __post_init__(self) -> None:
        known = (*MARKS, (b"", "utf-8"), (b"", "latin-1"))
        if (self.bom, self.encoding) not in known or not 0 <= self.mode <= 0o177777:
            raise ValueError("no text is kept in this form")


@dataclass(frozen=True, kw_only=True)
class FileChange:
    """One file of a plan. `base_hash` is of the text that the plan was made from, None for a file that must not exist yet."""

    path: str
    action: Action
    base_hash: str | None = None
    new_text: str | None = None
    target: str | None = None  # where a moved file goes
    form: Form | None = None  # only when the text had another form on disk than a new file would get
    old_text: str = ""  # for the diff and for undo; not sent over the wire

    @property
    def writes(self) -> str:
        """The path that has the new text afterwards."""
        return self.target or self.path

    def touched(self) -> tuple[str, ...]:
        """Every path that this change creates, replaces or removes."""
        return (self.path, self.target) if self.target else (self.path,)

    def inverse(self) -> FileChange:
        """The change that takes this one back."""
        after = None if self.new_text is None else sha256_text(self.new_text)
        match self.action:
            case Action.ADD:
                return FileChange(
                    path=self.path,
                    action=Action.DELETE,
                    base_hash=after,
                    old_text=self.new_text or "",
                    form=self.form,
                )
            case Action.DELETE:
                return FileChange(path=self.path, action=Action.ADD, new_text=self.old_text, form=self.form)
            case Action.UPDATE | Action.MOVE:
                return FileChange(
                    path=self.writes,
                    action=self.action,
                    base_hash=after,
                    new_text=self.old_text,
                    old_text=self.new_text or "",
                    target=self.path if self.target else None,
                    form=self.form,
                )

    @cached_property
    def diff(self) -> str:
        """Unified diff of this file. Texts that differ have a hunk: the end of a line is left out only where all lines of both end alike,
        so a CR in it means something. A lone CR ends lines only where nothing else does.
        """
        texts = (self.old_text, self.new_text or "")
        crlf, lf = (sum(text.count(end) for text in texts) for end in ("\r\n", "\n"))
        ending = "\n" if crlf != lf else "\r\n" if crlf or "\r" not in self.old_text else "\r"
        old, new = (_diffed(text, ending) for text in texts)
        before = "/dev/null" if self.action is Action.ADD else f"a/{self.path}"
        after = "/dev/null" if self.action is Action.DELETE else f"b/{self.writes}"
        return "\n".join([f"--- {before}", f"+++ {after}", *hunks(old, new)]) + "\n"

    def patch(self) -> bytes:
        """The change as git writes it, with the bytes that the file has on disk: `git apply` takes it."""
        form = self.form or Form()
        old, new = (
            "" if gone else (form.bom + text.encode(form.encoding)).decode("latin-1")
            for gone, text in ((self.action is Action.ADD, self.old_text), (self.new_text is None, self.new_text or ""))
        )
        a, b = (f"{side}/{self.path}".encode().decode("latin-1") for side in "ab")
        if '"' in self.path:
            a, b = ('"' + name.replace('"', '\\"') + '"' for name in (a, b))
        lines = [f"diff --git {a} {b}"]
        if self.action in (Action.ADD, Action.DELETE):
            kind = "new" if self.action is Action.ADD else "deleted"
            lines.append(f"{kind} file mode {'100755' if form.mode & 0o100 else '100644'}")
        if old != new:
            tab = "\t" if " " in self.path else ""  # it ends a name that has spaces
            lines.append(f"--- {'/dev/null' if self.action is Action.ADD else a + tab}")
            lines.append(f"+++ {'/dev/null' if self.action is Action.DELETE else b + tab}")
            lines += hunks(_diffed(old, "\n"), _diffed(new, "\n"))
        return ("\n".join(lines) + "\n").encode("latin-1")

    def summary(self) -> str:
        """One line for people and models, such as `sample.ts: updated +4 -1`."""
        lines = self.diff.split("\n")[2:]
        added = sum(line.startswith("+") for line in lines)
        removed = sum(line.startswith("-") for line in lines)
        done = {"add": "added", "update": "updated", "delete": "deleted", "move": f"moved to {self.target}"}[
            self.action
        ]
        return f"{self.path}: {done} +{added} -{removed}"


def _diffed(text: str, ending: str) -> list[str]:
    """The lines, the last one marked where nothing ends it."""
    *lines, last = text.split(ending)
    return [*lines, f"{last}\n\\ No newline at end of file"] if last else lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Every change of one patch, made wholly in memory, and what is worth knowing about how it matched."""

    changes: tuple[FileChange, ...]
    notes: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    """Folders that were made for it; its inverse removes those that are empty."""

    def inverse(self) -> Plan:
        """The plan that takes this one back."""
        return Plan(changes=tuple(change.inverse() for change in reversed(self.changes)), folders=self.folders)

    def diff(self) -> str:
        """Unified diff of all files."""
        return "".join(change.diff for change in self.changes)

    def summary(self) -> str:
        """One line per file, then the notes."""
        return "\n".join([change.summary() for change in self.changes] + [f"note: {note}" for note in self.notes])


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteNote:
    """What a run is about to write, or what its commands have changed: whatever is kept of it is on disk before the files change."""

    plan: Plan = Plan(changes=())
    by_commands: tuple[str, ...] = ()
    withheld: str = ""
    """Why the plan is kept without its texts."""


Keep = Callable[[WriteNote], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSlice:
    """Lines of a file as they are now; `content` has them joined by newlines, without a final one."""

    path: str
    content: str
    start_line: int
    end_line: int
    total_lines: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A line that contains what was searched for."""

    path: str
    line: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Matches:
    """What a search found, and what was left out to keep it short."""

    matches: tuple[Match, ...]
    truncated: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What became of a plan. `applied` is False when the user said no; then `summary` carries the reason."""

    applied: bool
    summary: str
    diff: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """How an allowed command ended."""

    exit_code: int
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True)
class Approval:
    """The user's word on a plan; the reason for a no goes back to the model. `asked` is False where nobody could be asked."""

    accepted: bool
    reason: str = ""
    asked: bool = True


Approve = Callable[[Plan], Approval | bool]
"""Asks the user; True and False will do."""


class Workspace(Protocol):
    """A folder of text files; see the module docstring."""

    def list_files(self, root: str = "") -> tuple[str, ...]:
        """Paths of the files below a folder, sorted; protected and generated ones are left out."""
        ...

    def read(
        self, path: str, start_line: int | None = None, end_line: int | None = None, *, rationale: str = ""
    ) -> FileSlice:
        """Lines of a file; a missing or refused file raises a ToolFault. The rationale is for whoever watches."""
        ...

    def search(self, query: str, path: str | None = None) -> Matches:
        """Lines that contain the text `query`, in one file or folder or everywhere."""
        ...

    def text(self, path: str) -> str | None:
        """The whole text of a file with its own line endings, None where there is no such file."""
        ...

    def apply(self, plan: Plan) -> Applied:
        """Ask for approval, check everything again, write all or nothing."""
        ...

    def undo(self) -> str:
        """Take the last applied plan back in one step; says what was restored."""
        ...

    def execute(self, command: str, cwd: str = "") -> CommandResult:
        """Run an allowed command; refused unless the policy lists it."""
        ...


def accept(plan: Plan) -> Approval:
    """The approval of `--yes`."""
    del plan
    return Approval(accepted=True)


def reject(plan: Plan) -> Approval:
    """The default: nobody was asked, so nothing is written."""
    del plan
    return Approval(accepted=False, reason="there is nobody to ask; give an approve function", asked=False)


def rejected(decision: Approval) -> Applied:
    """What the model hears after a no."""
    reason = decision.reason.strip() or "no reason given"
    said = "the user rejected this change" if decision.asked else "not approved"
    return Applied(applied=False, summary=f"{said}: {reason}")


def passage(path: str, text: str, start_line: int | None, end_line: int | None) -> FileSlice:
    """Cut lines out of a text whose lines end with LF, clamped to what there is; an empty file is lines 0 to 0."""
    total = text.count("\n") + (not text.endswith("\n") and bool(text))
    start = max(1, start_line or 1)
    end = min(total, end_line if end_line is not None else total)
    if total and start > total:
        raise ToolFault(f"{path} has {total} lines; line {start} does not exist. Example: read({path!r}, 1, {total})")
    if total and end < start:
        raise ToolFault(
            f"end line {end_line} is before start line {start}. Example: read({path!r}, {start}, {start + 20})"
        )
    first = _after(text, 0, start - 1)
    content = text[first : _after(text, first, end - start + 1)].removesuffix("\n")
    return FileSlice(path=path, content=content, start_line=start if total else 0, end_line=end, total_lines=total)


def _after(text: str, at: int, lines: int) -> int:
    """Where the text goes on after this many lines. A file may have millions of them, so they are counted and not cut apart."""
    while lines > 0 and at < len(text):
        step = min(len(text), at + _STEP)
        here = text.count("\n", at, step)
        if here >= lines:
            for _ in range(lines):
                at = text.index("\n", at) + 1
            break
        at, lines = step, lines - here
    return at


def matching_lines(path: str, text: str, query: str, most: int) -> list[Match]:
    """The first lines that contain the query, clipped to 300 characters, in a text whose lines end with LF."""
    found: list[Match] = []
    line, at = 1, 0
    while len(found) < most and "\n" not in query and (hit := text.find(query, at)) >= 0:
        line += text.count("\n", at, hit)
        start = text.rfind("\n", at, hit) + 1 or at
        end = text.find("\n", hit)
        end = len(text) if end < 0 else end
        found.append(Match(path=path, line=line, text=text[start : min(end, start + 300)]))
        line, at = line + 1, end + 1
    return found
