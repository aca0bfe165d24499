"""Makes a `Plan` of a patch: every file's new text, in memory, before anything is written.

The planner sees files only through `text(path)` of a workspace, so it works the same on a folder and over the wire. Endings of lines,
a missing final newline, and the indentation of a file that differs from the patch by white space only are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from sonde.contexts.workspace.base import Action, FileChange, NothingToChange, PatchRefused, Plan
from sonde.contexts.workspace.match import FileLines, HunkPlace, LineBudget, place_hunks
from sonde.contexts.workspace.parse import FilePatch, Hunk, parse_patch
from sonde.contexts.workspace.paths import clean, folded
from sonde.contexts.workspace.text import TextLine, join, plain, split
from sonde.core.canonical import plural, sha256_text
from sonde.core.deadline import deadline_in_force

MAX_LINES = 1_000_000
TextOf = Callable[[str], str | None]


def plan_patch(patch: str, text_of: TextOf) -> Plan:
    """What the patch would do; PatchRefused or PathRefused when any part of it is not certain."""
    notes: list[str] = []
    effort = LineBudget()
    changes = tuple(_change(file, text_of, notes, effort) for file in parse_patch(patch))
    seen: dict[str, str] = {}
    for path in (path for change in changes for path in change.touched()):
        parts = path.split("/")
        for name in ("/".join(parts[:depth]) for depth in range(1, len(parts) + 1)):  # the folders above it, and itself
            other = seen.setdefault(folded(name), name)
            if other != name:
                raise PatchRefused(f"{other} and {name} differ in case only, which is one file on many machines")
    written = [change.writes for change in changes] + [change.path for change in changes if change.target]
    path, times = Counter(written).most_common(1)[0]
    if times > 1:
        raise PatchRefused(f"{path} is changed twice; say once what shall happen to it")
    return Plan(changes=changes, notes=tuple(notes))


def _change(file: FilePatch, text_of: TextOf, notes: list[str], effort: LineBudget) -> FileChange:
    """The new text of one file, made from the one that is there."""
    path = clean(file.path)
    if (run := deadline_in_force()) is not None and run.is_over():
        raise PatchRefused(f"the run had to end before {path} was looked at")
    if file.action is Action.ADD:
        hunk = file.hunks[0]
        if len(file.hunks) > 1 or hunk.old:
            raise PatchRefused(f"{path} is to be created, so it can have added lines only")
        new = join([TextLine(text, "\n") for _, text in hunk.lines], hunk.final_newline is None, "\n")
        return FileChange(path=_free(path, text_of), action=Action.ADD, new_text=new)
    text = text_of(path)
    if text is None:
        raise PatchRefused(f"{path} does not exist; to create it use `*** Add File: {path}`")
    if (count := plain(text).count("\n")) > MAX_LINES:
        raise PatchRefused(f"{path} has {count:,} lines; only files of up to {MAX_LINES:,} are changed")
    base = sha256_text(text)
    if file.action is Action.DELETE:  # a unified diff says what it deletes; that must be all that is there
        left = len(split(patched(path, text, file.hunks, [], effort))) if file.hunks else 0
        if left:
            raise PatchRefused(
                f"{path} would keep {plural(left, 'line')} that the diff does not name; remove them all, or use `*** Delete File: {path}`"
            )
        return FileChange(path=path, action=Action.DELETE, base_hash=base, old_text=text)
    new = patched(path, text, file.hunks, notes, effort)
    target = None if file.target is None else _free(clean(file.target), text_of)
    if new == text and target is None:
        raise NothingToChange(f"{path} would not change; leave it out")
    return FileChange(path=path, action=file.action, base_hash=base, new_text=new, old_text=text, target=target)


def _free(path: str, text_of: TextOf) -> str:
    if text_of(path) is not None:
        raise PatchRefused(f"{path} exists already; to change it use `*** Update File: {path}`")
    return path


def patched(path: str, text: str, hunks: Sequence[Hunk], notes: list[str], effort: LineBudget) -> str:
    """The text with all hunks applied; what was matched loosely is added to `notes`."""
    lines = split(text)
    endings = Counter(line.ending for line in lines if line.ending)
    ending = endings.most_common(1)[0][0] if endings else "\n"
    places = place_hunks(FileLines(path, [line.text for line in lines], effort), hunks)
    final_newline = not lines or bool(lines[-1].ending)
    whole: list[TextLine] = []
    done = 0
    located = sorted(enumerate(zip(hunks, places, strict=True)), key=lambda each: (each[1][1].start, each[0]))
    for _, (hunk, place) in located:
        old = lines[place.start : place.start + len(hunk.old)]
        if hunk.final_newline is not None and place.start + len(old) == len(lines):
            final_newline = hunk.final_newline
        before = lines[place.start - 1].ending if place.start else ""
        whole += lines[done : place.start] + _replaced(hunk, old, place, before or ending)
        done = place.start + len(old)
    loose = [place.start + 1 for _, (_, place) in reversed(located) if place.loose]
    notes += [f"{path} line {line}: matched with white space ignored" for line in loose]
    return join(whole + lines[done:], final_newline, ending)


def _replaced(hunk: Hunk, old: Sequence[TextLine], place: HunkPlace, ending: str) -> list[TextLine]:
    """Kept lines stay as the file has them; added ones take the ending of the line above and, after a loose match, its indentation. A line
    that is removed and added again keeps its ending: nobody would see that change.
    """
    known: dict[str, str] = {}  # indentation in the file by that in the patch
    if place.loose:
        pairs = {(_indent(text), _indent(line.text)) for text, line in zip(hunk.old, old, strict=True) if text.strip()}
        if len(dict(pairs)) == len(pairs):  # else one indentation of the patch stands for two
            known = dict(pairs)
    indents: dict[str, str] = {}
    for indent in {_indent(text) for mark, text in hunk.lines if mark == "+"}:
        longest = max((each for each in known if indent.startswith(each)), key=len, default="")
        indents[indent] = known.get(longest, "") + indent[len(longest) :]
    result: list[TextLine] = []
    removed: dict[str, list[str]] = {}
    for (mark, _), line in zip((each for each in hunk.lines if each[0] != "+"), old, strict=True):
        if mark == "-" and line.ending:
            removed.setdefault(line.text, []).append(line.ending)
    for endings in removed.values():
        endings.reverse()
    remaining = iter(old)
    for mark, text in hunk.lines:
        if mark == "+":
            kept = text.lstrip()
            written = indents[_indent(text)] + kept if kept else text
            endings = removed.get(written)
            result.append(TextLine(written, endings.pop() if endings else ending))
            continue
        line = next(remaining)
        ending = line.ending or ending
        if mark == " ":
            result.append(line)
    return result


def _indent(text: str) -> str:
    return text[: len(text) - len(text.lstrip())]
