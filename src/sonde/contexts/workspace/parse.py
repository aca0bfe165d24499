"""Reads a patch: the V4A envelope (`*** Begin Patch`) or a unified diff. Knows nothing of files.

Lenient where a model's habit is harmless (a code fence around the patch, wrong line counts, an empty line for an empty context
line), strict where a guess could change meaning. Line numbers of a unified diff are kept as a hint only. The text is a model's, and the
parent reads it: size and number of files are capped, and every step is linear.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from sonde.contexts.workspace.base import Action, PatchRefused

EXAMPLE = """Example:
*** Begin Patch
*** Update File: src/app.py
@@ def greet(name):
-    return "hi"
+    return f"hi {name}"
*** End Patch"""

MAX_CHARS = 2_000_000
MAX_FILES = 500
HEADER = re.compile(r"\*\*\* (Add|Update|Delete) File: ?(.*)")
GIT_LINES = (
    *("diff --git ", "index ", "new file mode ", "deleted file mode ", "similarity ", "dissimilarity "),
    *("rename ", "old mode ", "new mode "),
)
BY_HEADER = {"new file mode ": Action.ADD, "deleted file mode ": Action.DELETE, "rename from ": Action.MOVE}
RANGE = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@(.*)")


@dataclass(frozen=True, kw_only=True)
class Hunk:
    """Lines with their mark (' ', '-' or '+'), and where to look for them."""

    lines: tuple[tuple[str, str], ...]
    anchors: tuple[str, ...] = ()
    at_end: bool = False
    hint: int | None = None  # first line by the header of a unified diff, counted from 1
    final_newline: bool | None = None  # set by `\ No newline at end of file`: the state after the patch

    @cached_property
    def old(self) -> list[str]:
        """What must be in the file."""
        return [text for mark, text in self.lines if mark != "+"]

    @cached_property
    def new(self) -> list[str]:
        """What will be there instead."""
        return [text for mark, text in self.lines if mark != "-"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePatch:
    """What the patch wants of one file."""

    path: str
    action: Action
    hunks: tuple[Hunk, ...] = ()
    target: str | None = None


def parse_patch(patch: str) -> list[FilePatch]:
    """The patch file by file, in its order; PatchRefused with the line and an example where it has no form."""
    if len(patch) > MAX_CHARS:
        raise PatchRefused(f"it has {len(patch):,} characters; the most is {MAX_CHARS:,}. Send it in several patches")
    lines = [line.rstrip("\r") for line in patch.split("\n")]  # the file says how its lines end
    del lines[: next((n for n, line in enumerate(lines) if line.strip()), len(lines))]
    while lines and not lines[-1].strip() and lines[-1] != " ":  # one space is an empty line of context
        lines.pop()
    if len(lines) > 1 and lines[0].startswith("```") and lines[-1].strip() == "```":
        lines = lines[1:-1]
    if not any(line.strip() for line in lines):
        raise PatchRefused(f"it is empty. {EXAMPLE}")
    files = _envelope(lines) if any(line.rstrip() == "*** Begin Patch" for line in lines) else _unified(lines)
    if not files:
        raise PatchRefused(f"it names no file. {EXAMPLE}")
    if len(files) > MAX_FILES:
        raise PatchRefused(f"it names {len(files):,} files; the most is {MAX_FILES}. Send it in several patches")
    seen: dict[str, FilePatch] = {}
    hunks: dict[str, list[Hunk]] = {}
    for file in files:  # several updates of one file become one; anything else said twice about a file is refused
        known = seen.setdefault(file.path, file)
        if known is not file and not (known.action is file.action is Action.UPDATE):
            raise PatchRefused(
                f"{file.path} appears twice ({known.action} and {file.action}); say once what shall happen to it"
            )
        hunks.setdefault(file.path, []).extend(file.hunks)
    return [replace(file, hunks=tuple(hunks[path])) for path, file in seen.items()]


def _envelope(lines: list[str]) -> list[FilePatch]:
    """The files of a V4A patch, each under its `*** … File:` header."""
    start = next(n for n, line in enumerate(lines) if line.rstrip() == "*** Begin Patch")
    end = next((n for n, line in enumerate(lines) if line.rstrip() == "*** End Patch"), None)
    if end is None:
        raise PatchRefused(f"`*** End Patch` is missing, so it may have been cut off. {EXAMPLE}")
    if any(line.startswith("***") for line in lines[:start] + lines[end + 1 :]):
        raise PatchRefused(
            f"there is more than one `*** Begin Patch` … `*** End Patch`; put all files into one. {EXAMPLE}"
        )
    sections: list[tuple[re.Match[str], list[tuple[int, str]]]] = []
    for number, line in enumerate(lines[start + 1 : end], start + 2):
        head = HEADER.fullmatch(line.rstrip())
        if head is not None:
            sections.append((head, []))
        elif sections:
            sections[-1][1].append((number, line))
        elif line.strip():
            raise PatchRefused(f"line {number} comes before any `*** Update File:` header: {line[:80]!r}. {EXAMPLE}")
    return [_section(head, body) for head, body in sections]


def _section(head: re.Match[str], body: list[tuple[int, str]]) -> FilePatch:
    """What one header and its numbered lines want."""
    path = head[2].strip()
    while body and not body[-1][1]:  # empty lines before the next header are layout, not context
        body.pop()
    if head[1] == "Delete":
        if body:
            raise PatchRefused(f"line {body[0][0]}: `*** Delete File: {path}` takes no lines after it")
        return FilePatch(path=path, action=Action.DELETE)
    if head[1] == "Add":
        for number, line in body:
            if not line.startswith("+"):
                raise PatchRefused(
                    f"line {number}: every line of the new file {path} begins with +, this one does not: {line[:80]!r}"
                )
        return FilePatch(path=path, action=Action.ADD, hunks=(Hunk(lines=tuple(("+", line[1:]) for _, line in body)),))
    target = None
    if body and body[0][1].startswith("*** Move to:"):
        target = body[0][1].removeprefix("*** Move to:").strip()
        body = body[1:]
    hunks: list[Hunk] = []
    anchors: list[str] = []
    lines: list[tuple[str, str]] = []
    for number, line in body:
        at_end = line.rstrip() == "*** End of File"
        if at_end or (line.startswith("@@") and lines):
            hunks.append(Hunk(lines=tuple(lines), anchors=tuple(anchors), at_end=at_end))
            anchors, lines = [], []
        if line.startswith("@@"):
            ranged = RANGE.match(line)  # a range of a unified diff says nothing reliable inside the envelope
            anchor = (ranged[5] if ranged else line[2:]).strip()
            anchors += [anchor] if anchor and anchor != "@@" else []
        elif not at_end:
            lines.append(_marked(number, line))
    if lines:
        hunks.append(Hunk(lines=tuple(lines), anchors=tuple(anchors)))
    elif anchors:
        raise PatchRefused(f"`@@ {anchors[-1]}` has no lines after it. {EXAMPLE}")
    if not hunks and target is None:
        raise PatchRefused(f"`*** Update File: {path}` has no lines. {EXAMPLE}")
    return FilePatch(path=path, action=Action.MOVE if target else Action.UPDATE, hunks=tuple(hunks), target=target)


def _marked(number: int, line: str) -> tuple[str, str]:
    if not line:
        return (" ", "")
    if line[0] not in " -+":
        raise PatchRefused(
            f"line {number} begins with {line[0]!r}; a context line begins with a space, a removed one with -, "
            f"an added one with +: {line[:80]!r}. {EXAMPLE}"
        )
    return (line[0], line[1:])


def _unified(lines: list[str]) -> list[FilePatch]:
    """The files of a unified diff: those with hunks first, then what git says about a file in headers alone."""
    starts: list[int] = []  # `--- a/x`, `+++ b/x`, unless a hunk that counts them removes `-- a` and adds `++ b`
    removed = added = 0  # lines that the hunk around still expects
    for n, (line, following) in enumerate(pairwise(lines)):
        ranged = RANGE.match(line)
        if ranged or line.startswith("diff "):
            removed, added = (int(ranged[2] or 1), int(ranged[4] or 1)) if ranged else (0, 0)
            continue
        if line.startswith("--- ") and following.startswith("+++ ") and not (removed > 0 and added > 0):
            starts.append(n)
        removed -= line[:1] in (" ", "-", "")
        added -= line[:1] in (" ", "+", "")
    copy = next((line for line in lines if line.startswith("copy from ")), None)
    if copy:
        raise PatchRefused(f"copies are not made ({copy[:80]!r}); use `*** Add File:` with the whole new text")
    files = [_file(lines[start:end]) for start, end in pairwise([*starts, len(lines)])]
    named = {file.path for file in files}
    moved = [line.removeprefix("rename from ") for line in lines if line.startswith("rename from ")]
    targets = [line.removeprefix("rename to ") for line in lines if line.startswith("rename to ")]
    for old, new in zip(moved, targets, strict=False):
        if old not in named:
            files.append(FilePatch(path=old, action=Action.MOVE, target=new))
    heads = [n for n, line in enumerate(lines) if line.startswith("diff --git ")]
    for start, end in pairwise([*heads, len(lines)]):  # empty files that come or go; nothing is left out in silence
        told = {action for line in lines[start:end] for mark, action in BY_HEADER.items() if line.startswith(mark)}
        has_hunks = bisect_right(starts, start) < bisect_left(starts, end)
        if Action.MOVE in told or has_hunks:
            continue
        both = lines[start].removeprefix("diff --git ")  # `a/NAME b/NAME` or `NAME NAME`; names may hold spaces,
        half = len(both) // 2  # so the length says where the first one ends
        old, gap, new = both[:half], both[half : half + 1], both[half + 1 :]
        if old.startswith("a/") and new.startswith("b/"):
            old, new = old[2:], new[2:]
        if not old or gap != " " or old != new or len(told) != 1:
            raise PatchRefused(f"{lines[start][:80]!r} has no lines to change; binary files and modes are not patched")
        action = told.pop()
        files.append(FilePatch(path=old, action=action, hunks=(Hunk(lines=()),) if action is Action.ADD else ()))
    if not files:
        raise PatchRefused(
            f"it is neither a `*** Begin Patch` envelope nor a unified diff with --- and +++ lines. {EXAMPLE}"
        )
    return files


def _file(lines: list[str]) -> FilePatch:
    """One file of a unified diff. Git puts `a/` and `b/` before the names, but folders may have these names too. Header lines of git
    before and after the hunks are skipped.
    """
    old, new = _name(lines[0]), _name(lines[1])
    if old != new:
        bare = (old and old.removeprefix("a/"), new and new.removeprefix("b/"))
        marked = (old is None or old.startswith("a/")) and (new is None or new.startswith("b/"))
        old, new = bare if marked or bare[0] == bare[1] else (old, new)
    hunks: list[Hunk] = []
    hint: int | None = None
    body: list[str] | None = None
    for line in lines[2:]:
        found = RANGE.match(line)
        is_git = line.startswith(GIT_LINES)
        if found or is_git or line.startswith("@@"):
            hunks += [] if body is None else [_hunk(body, hint)]
            hint, body = (int(found[1]) if found else None), (None if is_git else [])
        elif body is not None:
            body.append(line)
        elif line.strip():
            raise PatchRefused(f"this line belongs to no @@ hunk: {line[:80]!r}. {EXAMPLE}")
    hunks += [] if body is None else [_hunk(body, hint)]
    if old is None and new is None:
        raise PatchRefused("both sides of a file are /dev/null")
    if new is None:
        return FilePatch(path=old or "", action=Action.DELETE, hunks=tuple(hunks))
    if not hunks:
        raise PatchRefused(f"{new} has --- and +++ lines but no @@ hunk. {EXAMPLE}")
    if old is None:
        return FilePatch(path=new, action=Action.ADD, hunks=tuple(hunks))
    if old != new:
        return FilePatch(path=old, action=Action.MOVE, hunks=tuple(hunks), target=new)
    return FilePatch(path=old, action=Action.UPDATE, hunks=tuple(hunks))


def _name(line: str) -> str | None:
    name = line[4:].split("\t", maxsplit=1)[0].strip()
    if name.startswith('"') and name.endswith('"'):
        raise PatchRefused(f"quoted file names are not read: {name}; use a `*** Begin Patch` envelope instead")
    return None if name == "/dev/null" else name


def _hunk(body: list[str], hint: int | None) -> Hunk:
    marked: list[tuple[str, str]] = []
    final_newline = None
    while len(body) > 1 and not body[-1]:  # a stray empty line; an empty line of context has its space
        body.pop()
    for line in body:
        if line.startswith("\\"):  # the line before has no newline: the new side loses it, the old side alone gains one
            final_newline = bool(marked) and marked[-1][0] == "-"
        else:
            marked.append(_marked(len(marked) + 1, line))
    if not marked:
        raise PatchRefused(f"a hunk has no lines. {EXAMPLE}")
    return Hunk(lines=tuple(marked), hint=hint, final_newline=final_newline)
