"""Reads a patch: the V4A envelope (`*** Begin Patch`) or a unified diff. Knows nothing of files.

Lenient where a model's habit is harmless (a code fence around the patch, wrong line counts, an empty line for an empty context
line), strict where a guess could change meaning. Line numbers of a unified diff are kept as a hint only. The text is a model's, and the
parent reads it: size and number of files are capped, and every step is linear.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
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
    lines = _unfenced(re.split(r"\r?\n", patch))
    if not any(line.strip() for line in lines):
        raise PatchRefused(f"it is empty. {EXAMPLE}")
    files = _envelope(lines) if any(line.rstrip() == "*** Begin Patch" for line in lines) else _unified(lines)
    if not files:
        raise PatchRefused(f"it names no file. {EXAMPLE}")
    if len(files) > MAX_FILES:
        raise PatchRefused(f"it names {len(files):,} files; the most is {MAX_FILES}. Send it in several patches")
    return _merged(files)


def _unfenced(lines: list[str]) -> list[str]:
    start = next((n for n, line in enumerate(lines) if line.strip()), len(lines))
    del lines[:start]
    while lines and not lines[-1].strip() and lines[-1] != " ":  # one space is an empty line of context
        lines.pop()
    if len(lines) > 1 and lines[0].startswith("```") and lines[-1].strip() == "```":
        return lines[1:-1]
    return lines


def _merged(files: list[FilePatch]) -> list[FilePatch]:
    """Several updates of one file become one; anything else said twice about a file is refused."""
    seen: dict[str, FilePatch] = {}
    hunks: dict[str, list[Hunk]] = {}
    for file in files:
        known = seen.setdefault(file.path, file)
        if known is not file and not (known.action is file.action is Action.UPDATE):
            raise PatchRefused(
                f"{file.path} appears twice ({known.action} and {file.action}); say once what shall happen to it"
            )
        hunks.setdefault(file.path, []).extend(file.hunks)
    return [replace(file, hunks=tuple(hunks[path])) for path, file in seen.items()]


def _envelope(lines: list[str]) -> list[FilePatch]:
    start = next(n for n, line in enumerate(lines) if line.rstrip() == "*** Begin Patch")
    end = next((n for n, line in enumerate(lines) if line.rstrip() == "*** End Patch"), None)
    if end is None:
        raise PatchRefused(f"`*** End Patch` is missing, so it may have been cut off. {EXAMPLE}")
    if any(line.startswith("***") for line in lines[:start] + lines[end + 1 :]):
        raise PatchRefused(
            f"there is more than one `*** Begin Patch` … `*** End Patch`; put all files into one. {EXAMPLE}"
        )
    return [_section(head, body) for head, body in _sections(lines, start + 1, end)]


def _sections(lines: list[str], start: int, end: int) -> Iterator[tuple[re.Match[str], list[tuple[int, str]]]]:
    """Each `*** … File:` header with its numbered lines."""
    head: re.Match[str] | None = None
    body: list[tuple[int, str]] = []
    for number in range(start, end):
        found = HEADER.fullmatch(lines[number].rstrip())
        if found is None:
            body.append((number + 1, lines[number]))
            continue
        yield from [(head, body)] if head else _nothing(body)
        head, body = found, []
    yield from [(head, body)] if head else _nothing(body)


def _nothing(body: list[tuple[int, str]]) -> Iterator[tuple[re.Match[str], list[tuple[int, str]]]]:
    for number, line in body:
        if line.strip():
            raise PatchRefused(f"line {number} comes before any `*** Update File:` header: {line[:80]!r}. {EXAMPLE}")
    return iter(())


def _section(head: re.Match[str], body: list[tuple[int, str]]) -> FilePatch:
    path = head[2].strip()
    while body and not body[-1][1]:  # empty lines before the next header are layout, not context
        body.pop()
    match head[1]:
        case "Add":
            return FilePatch(path=path, action=Action.ADD, hunks=(_added(path, body),))
        case "Delete":
            if body:
                raise PatchRefused(f"line {body[0][0]}: `*** Delete File: {path}` takes no lines after it")
            return FilePatch(path=path, action=Action.DELETE)
        case _:
            return _update(path, body)


def _added(path: str, body: list[tuple[int, str]]) -> Hunk:
    for number, line in body:
        if not line.startswith("+"):
            raise PatchRefused(
                f"line {number}: every line of the new file {path} begins with +, this one does not: {line[:80]!r}"
            )
    return Hunk(lines=tuple(("+", line[1:]) for _, line in body))


def _update(path: str, body: list[tuple[int, str]]) -> FilePatch:
    target = None
    if body and body[0][1].startswith("*** Move to:"):
        target = body[0][1].removeprefix("*** Move to:").strip()
        body = body[1:]
    hunks = tuple(_hunks(body))
    if not hunks and target is None:
        raise PatchRefused(f"`*** Update File: {path}` has no lines. {EXAMPLE}")
    return FilePatch(path=path, action=Action.MOVE if target else Action.UPDATE, hunks=hunks, target=target)


def _hunks(body: list[tuple[int, str]]) -> Iterator[Hunk]:
    anchors: list[str] = []
    lines: list[tuple[str, str]] = []
    for number, line in body:
        if line.startswith("@@"):
            if lines:
                yield Hunk(lines=tuple(lines), anchors=tuple(anchors))
                anchors, lines = [], []
            anchors += _anchor(line)
        elif line.rstrip() == "*** End of File":
            yield Hunk(lines=tuple(lines), anchors=tuple(anchors), at_end=True)
            anchors, lines = [], []
        else:
            lines.append(_marked(number, line))
    if lines:
        yield Hunk(lines=tuple(lines), anchors=tuple(anchors))
    elif anchors:
        raise PatchRefused(f"`@@ {anchors[-1]}` has no lines after it. {EXAMPLE}")


def _anchor(line: str) -> list[str]:
    """The text of `@@ def f():`; a range of a unified diff inside the envelope says nothing reliable."""
    text = line[2:].strip()
    ranged = RANGE.match(line)
    if ranged:
        text = ranged[5].strip()
    return [text] if text and text != "@@" else []


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
    starts = _headers(lines)
    copy = next((line for line in lines if line.startswith("copy from ")), None)
    if copy:
        raise PatchRefused(f"copies are not made ({copy[:80]!r}); use `*** Add File:` with the whole new text")
    files = [_file(lines[start:end]) for start, end in pairwise([*starts, len(lines)])]
    named = {file.path for file in files}
    files += [FilePatch(path=old, action=Action.MOVE, target=new) for old, new in _renames(lines) if old not in named]
    files += _without_hunks(lines, starts)
    if not files:
        raise PatchRefused(
            f"it is neither a `*** Begin Patch` envelope nor a unified diff with --- and +++ lines. {EXAMPLE}"
        )
    return files


def _without_hunks(lines: list[str], starts: list[int]) -> list[FilePatch]:
    """What git says about a file in headers alone: an empty one that comes or goes. Nothing of a patch is left out in silence."""
    heads = [n for n, line in enumerate(lines) if line.startswith("diff --git ")]
    found: list[FilePatch] = []
    for start, end in pairwise([*heads, len(lines)]):
        told = {action for line in lines[start:end] for mark, action in BY_HEADER.items() if line.startswith(mark)}
        has_hunks = bisect_right(starts, start) < bisect_left(starts, end)
        if Action.MOVE in told or has_hunks:
            continue
        name = _git_name(lines[start])
        if not name or len(told) != 1:
            raise PatchRefused(f"{lines[start][:80]!r} has no lines to change; binary files and modes are not patched")
        action = told.pop()
        hunks = (Hunk(lines=()),) if action is Action.ADD else ()
        found.append(FilePatch(path=name, action=action, hunks=hunks))
    return found


def _git_name(line: str) -> str | None:
    """The name in `diff --git a/NAME b/NAME` or `diff --git NAME NAME`; names may hold spaces, so its length says where it ends."""
    both = line.removeprefix("diff --git ")
    half = len(both) // 2
    old, gap, new = both[:half], both[half : half + 1], both[half + 1 :]
    if gap != " " or len(old) != len(new):
        return None
    if old.startswith("a/") and new.startswith("b/") and old[2:] == new[2:]:
        return old[2:]
    return old if old == new else None


def _headers(lines: list[str]) -> list[int]:
    """Where `--- a/x`, `+++ b/x` stand, unless they are a removed `-- a` and an added `++ b` inside a hunk that counts them."""
    found: list[int] = []
    old = new = 0  # lines that the hunk around still expects
    for n, (line, following) in enumerate(pairwise(lines)):
        ranged = RANGE.match(line)
        if ranged or line.startswith("diff "):
            old, new = (int(ranged[2] or 1), int(ranged[4] or 1)) if ranged else (0, 0)
            continue
        if line.startswith("--- ") and following.startswith("+++ ") and not (old > 0 and new > 0):
            found.append(n)
        old -= line[:1] in (" ", "-", "")
        new -= line[:1] in (" ", "+", "")
    return found


def _renames(lines: list[str]) -> list[tuple[str, str]]:
    old = [line.removeprefix("rename from ") for line in lines if line.startswith("rename from ")]
    new = [line.removeprefix("rename to ") for line in lines if line.startswith("rename to ")]
    return list(zip(old, new, strict=False))


def _file(lines: list[str]) -> FilePatch:
    old, new = _names(lines[0], lines[1])
    hunks = tuple(_ranged(lines[2:]))
    if old is None and new is None:
        raise PatchRefused("both sides of a file are /dev/null")
    if new is None:
        return FilePatch(path=old or "", action=Action.DELETE, hunks=hunks)
    if not hunks:
        raise PatchRefused(f"{new} has --- and +++ lines but no @@ hunk. {EXAMPLE}")
    if old is None:
        return FilePatch(path=new, action=Action.ADD, hunks=hunks)
    return FilePatch(
        path=old, action=Action.MOVE if old != new else Action.UPDATE, hunks=hunks, target=new if old != new else None
    )


def _names(before: str, after: str) -> tuple[str | None, str | None]:
    """Both names of a file, without the `a/` and `b/` that git puts before them; folders may have these names too."""
    old, new = _name(before), _name(after)
    if old == new:
        return old, new
    bare = (old and old.removeprefix("a/"), new and new.removeprefix("b/"))
    marked = (old is None or old.startswith("a/")) and (new is None or new.startswith("b/"))
    return bare if marked or bare[0] == bare[1] else (old, new)


def _name(line: str) -> str | None:
    name = line[4:].split("\t", maxsplit=1)[0].strip()
    if name.startswith('"') and name.endswith('"'):
        raise PatchRefused(f"quoted file names are not read: {name}; use a `*** Begin Patch` envelope instead")
    return None if name == "/dev/null" else name


def _ranged(lines: list[str]) -> Iterator[Hunk]:
    """The hunks of one file; header lines of git before and after them are skipped."""
    hint: int | None = None
    body: list[str] | None = None
    for line in lines:
        found = RANGE.match(line)
        if found or line.startswith("@@"):
            yield from [] if body is None else [_hunk(body, hint)]
            hint, body = (int(found[1]) if found else None), []
        elif body is not None and line.startswith(GIT_LINES):
            yield _hunk(body, hint)
            body = None
        elif body is not None:
            body.append(line)
        elif line.strip() and not line.startswith(GIT_LINES):
            raise PatchRefused(f"this line belongs to no @@ hunk: {line[:80]!r}. {EXAMPLE}")
    yield from [] if body is None else [_hunk(body, hint)]


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
