"""The only writer: a folder of text files, here or behind an editor, changed only by plans that someone approved.

`WorkspaceContext` is the workspace as a context of a run: typed tools over any `Workspace`, with excerpts that can be cited. Reads are
kept small: one of more than 200 lines needs a rationale, and every rationale is shown to the user.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sonde.contexts.workspace.base import (
    Action,
    Applied,
    Approval,
    Approve,
    CommandResult,
    FileSlice,
    Matches,
    NothingToChange,
    PatchRefused,
    PathRefused,
    Plan,
    Workspace,
    WriteNote,
    accept,
    reject,
)
from sonde.contexts.workspace.buffers import BufferedWorkspace
from sonde.contexts.workspace.history import WriteLog
from sonde.contexts.workspace.local import NOT_ENDED, PLAIN, LocalWorkspace
from sonde.contexts.workspace.masked import MaskedWorkspace
from sonde.contexts.workspace.parse import parse_patch
from sonde.contexts.workspace.paths import clean
from sonde.contexts.workspace.planner import plan_patch
from sonde.contexts.workspace.policy import Policy
from sonde.contexts.workspace.reach import CLOSED_HINT
from sonde.contexts.workspace.scope import Place, ScopedWorkspace, read_places
from sonde.contexts.workspace.text import visible
from sonde.contexts.workspace.wire import Reply, WireWorkspace
from sonde.core.canonical import clip, hash_value
from sonde.core.deadline import deadline_in_force
from sonde.core.evidence import Excerpt, Observed
from sonde.errors import ToolFault
from sonde.tools import Tool, tool

if TYPE_CHECKING:
    from sonde.core.mask import Mask

__all__ = [
    "PLAIN",
    "Action",
    "Applied",
    "Approval",
    "Approve",
    "BufferedWorkspace",
    "CommandResult",
    "FileSlice",
    "LocalWorkspace",
    "Matches",
    "PatchRefused",
    "PathRefused",
    "Plan",
    "Policy",
    "Reply",
    "WireWorkspace",
    "Workspace",
    "WorkspaceContext",
    "accept",
    "plan_patch",
    "reject",
    "visible",
]
FREE_LINES = 200
MAX_OUTPUT = 20_000
"""Characters of what a command printed last."""
FIRST_LOOKS = 3


class WorkspaceContext:
    """Tools `list_files`, `read`, `read_file`, `search`, `apply_patch` and, when `commands` are allowed, `execute_command`.

    A part of it (`narrowed`) has the first four only. `rejected` has why proposed patches were not applied, `ran` each command line
    with the exit code of its last run, None if that was stopped; the latest comes last.
    """

    def __init__(
        self,
        workspace: Workspace,
        *,
        commands: Sequence[str] = (),
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,  # entered while somebody is asked
    ) -> None:
        self.workspace = workspace
        self._waiting = waiting
        self.commands = tuple(commands)
        self.changed: list[str] = []
        self.rejected: list[str] = []
        self.by_user = False  # whether the last of them was the user's no
        self.ran: dict[str, int | None] = {}
        self._denied: dict[str, bool] = {}
        self.judges_commands = True  # not in a replay of a run whose version did not
        self.rehearsal = False  # a replay by words alone: nobody is asked, so a no means nothing
        self._unread: set[str] = set()
        self._listed: tuple[str, ...] | None = None
        self.written_before: Sequence[WriteNote] = ()  # of a run that is done again: no change of the workspace
        self._places: tuple[Place, ...] = ()
        self._part = False

    def mask_with(self, mask: Mask | None) -> None:
        """Show only masked text; patches are written with the real values. None: as it is."""
        real = self.workspace.inner if isinstance(self.workspace, MaskedWorkspace) else self.workspace
        self.workspace = real if mask is None else MaskedWorkspace(real, mask, self._waiting)
        self._listed = None if mask is not None else self._listed

    @property
    def real(self) -> Workspace:
        """The workspace that writes, below those that show it in another way."""
        found: Any = self.workspace
        while hasattr(found, "inner"):
            found = found.inner
        return found

    def keep_in(self, log: WriteLog) -> None:
        """Note what is written, before it is."""
        real = self.real
        if isinstance(real, LocalWorkspace | WireWorkspace):
            real.keep = log.append

    @property
    def places(self) -> tuple[str, ...]:
        """Where a part may look; empty: everywhere."""
        return tuple(map(str, self._places))

    @property
    def first_looks(self) -> list[dict[str, Any]]:
        """What a part reads before its model says anything: the lines that it was given, if they are few."""
        looks = [(place.path, place.start_line, place.end_line) for place in self._places if place.end_line]
        few = len(looks) <= FIRST_LOOKS and all(end - start < FREE_LINES for _, start, end in looks)
        return [{"path": path, "start_line": start, "end_line": end} for path, start, end in looks] if few else []

    def narrowed(self, paths: Sequence[str]) -> WorkspaceContext:
        """The workspace of a child: it only reads, and only at these places; without any, where this one may."""
        places = read_places(paths)
        part = WorkspaceContext(ScopedWorkspace(self.workspace, places or (Place(""),)))
        part._part, part._listed, part._places = True, None if places else self._listed, places or self._places
        return part

    def unverified(self) -> list[str]:
        """Files that were changed and not read again since."""
        return sorted(self._unread)

    def tools(self) -> Sequence[Tool]:
        """Everything that code may call; the last two change things and are asked for or listed first."""
        tools = [tool(self.list_files), tool(self.read), tool(self.read_file), tool(self.search)]
        if self._part:
            return tools
        tools.append(tool(self.apply_patch, read_only=False))
        if self.commands:  # its text names those that are allowed
            beginnings = ", ".join(repr(command) for command in self.commands if not command.startswith("="))
            exact = " or ".join(repr(command[1:]) for command in self.commands if command.startswith("="))
            ways = [f"a command that begins with {beginnings}"] if beginnings else []
            ways += [f"exactly {exact}"] if exact else []
            doc = f"Run {', or '.join(ways)}, as {{exitCode, stdout, stderr}}"
            doc += f".\nExample: result = execute_command({self.commands[0].removeprefix('=')!r})"
            tools.append(replace(tool(self.execute_command, read_only=False), doc=doc))
        return tools

    def describe(self) -> str:
        """The first files by name, for the prompt; for a part its places."""
        if self._places:
            return f"of the workspace you may see only {', '.join(self.places)}"
        files = self._files()
        shown = ", ".join(files[:40])
        return f"workspace of {len(files)} files: {shown}{', …' if len(files) > 40 else ''}"

    def shared(self) -> Mapping[str, Any]:
        """Nothing is mapped into the sandbox: files change while the run works on them."""
        return {}

    def reread(self, excerpt: Excerpt) -> str | None:
        """The cited lines as they are now."""
        run, work = deadline_in_force(), "cited lines were still being read again"
        try:
            since = 0.0 if run is None else run.check(run.clock.now(), work)
            content = self.workspace.read(excerpt.path, excerpt.start_line, excerpt.end_line).content
            if run is not None:
                run.check(since, work)
        except ToolFault:
            return None
        return content

    def fingerprint(self) -> str:
        """A hash of the file names; the texts are hashed where they are read."""
        return hash_value(list(self._files()))

    def _files(self) -> tuple[str, ...]:
        """The listing that the run began with; asked for once, since over the wire it is a request that people see."""
        if self._listed is None:
            files = set(self.workspace.list_files())
            for change in (
                each for written in reversed(self.written_before) for each in reversed(written.plan.changes)
            ):
                files -= {change.writes} if change.action in (Action.ADD, Action.MOVE) else set()
                files |= {change.path} if change.action in (Action.DELETE, Action.MOVE) else set()
            self._listed = tuple(sorted(files))
        return self._listed

    def list_files(self, root: str = "") -> list[str]:
        """Paths of the files below a folder."""
        return list(self.workspace.list_files(root))

    def read(
        self,
        path: str,
        start_line: int | None = None,
        end_line: int | None = None,
        *,
        rationale: str = "",
        numbered: bool = False,
    ) -> Observed:
        """The same as read_file."""
        found = self.workspace.read(path, start_line, end_line, rationale=rationale.strip())
        lines = found.end_line - found.start_line + 1
        if lines > FREE_LINES and not rationale.strip():
            raise ToolFault(
                f"{path} lines {found.start_line}-{found.end_line} are {lines} lines; read at most {FREE_LINES}, or say why. "
                f"Example: part = read({path!r}, {found.start_line}, {found.end_line}, rationale='the whole class is to be renamed')"
            )
        self._unread.discard(found.path)
        content = found.content
        if numbered and found.total_lines:
            content = "\n".join(f"{at}: {line}" for at, line in enumerate(content.split("\n"), found.start_line))
        value = {"content": content, "startLine": found.start_line, "endLine": found.end_line}
        seen = Excerpt.of_lines(found.path, found.start_line, found.end_line, found.content)
        return Observed(value, (seen,) if found.total_lines else ())

    def read_file(
        self,
        path: str,
        start_line: int | None = None,
        end_line: int | None = None,
        *,
        rationale: str = "",
        numbered: bool = False,
    ) -> Observed:
        """Lines of a file as {content, startLine, endLine}; over 200 lines need a rationale.
        Example: part = read_file('src/app.py', 10, 40)["content"]
        """
        return self.read(path, start_line, end_line, rationale=rationale, numbered=numbered)

    def search(self, query: str, path: str | None = None) -> Observed:
        """Lines that contain the text query, as [{path, line, text}].
        Example: hits = search('def main', 'src')
        """
        found = self.workspace.search(query, path)
        rows = [{"path": match.path, "line": match.line, "text": match.text} for match in found.matches]
        seen = (
            Excerpt.of_lines(m.path, m.line, m.line, m.text) for m in found.matches if len(m.text) < 300
        )  # 300: clipped
        return Observed(rows, tuple(seen), found.truncated)

    def apply_patch(self, patch: str) -> dict[str, Any]:
        r"""Change files by one patch, all or nothing, as {applied, summary, diff}; the user may refuse it (applied is False).
        Example: result = apply_patch('*** Begin Patch\n*** Update File: a.py\n@@ def f():\n-    x = 1\n+    x = 2\n*** End Patch')
        """
        try:
            plan = plan_patch(patch, self.workspace.text)
            masked = isinstance(self.workspace, MaskedWorkspace)  # which does work of its own, and waits by itself
            with nullcontext() if masked else self._waiting():
                done = self.workspace.apply(plan)
        except NothingToChange:
            raise
        except ToolFault as fault:
            self._not_applied(fault.message)
            raise
        if done.applied:
            written = [change.writes for change in plan.changes if change.action is not Action.DELETE]
            self.changed += [path for change in plan.changes for path in change.touched() if path not in self.changed]
            self._unread.update(written)
        else:
            self._not_applied(done.summary, by_user=True)
        return {"applied": done.applied, "summary": done.summary, "diff": done.diff}

    def _not_applied(self, reason: str, *, by_user: bool = False) -> None:
        if not self.rehearsal:
            first = re.split(r"\n?Signature:|Example:", reason)[
                0
            ]  # not how to do it: the reader of the run made no patch
            self.rejected.append(clip(" ".join(first.split()), 300))
            self.by_user = by_user

    def recall(self, name: str, args: Mapping[str, Any], result: Any, error: str | None) -> None:
        """Take note of a recorded call: a replay makes none, and judges its final value by what was changed and read."""
        if name in ("read", "read_file") and error is None:
            self._unread.discard(clean(str(args.get("path"))))
        if name == "execute_command":
            with suppress(KeyError, TypeError, ValueError):  # a record that somebody has changed
                if error is None or NOT_ENDED in error:
                    code, errors = (None, "") if error else (int(result["exitCode"]), str(result["stderr"]))
                    self._note_run(str(args.get("command")), str(args.get("cwd") or ""), code, errors)
        if name != "apply_patch":
            return
        if error is not None:
            if not any(words in error for words in NothingToChange.WORDS):
                self._not_applied(error.removeprefix("apply_patch: "))
        elif not result.get("applied"):
            self._not_applied(str(result.get("summary")), by_user=True)
        else:
            with suppress(ToolFault):  # a patch so long that the record does not have all of it
                for file in parse_patch(str(args.get("patch"))):
                    touched = [clean(path) for path in (file.path, file.target) if path]
                    if isinstance(self.workspace, MaskedWorkspace):
                        self.workspace.recall(str(args.get("patch")), touched)
                    self.changed += [path for path in touched if path not in self.changed]
                    self._unread.update(touched[-1:] if file.action is not Action.DELETE else ())

    def execute_command(self, command: str, cwd: str = "") -> dict[str, Any]:
        """Run an allowed command, as {exitCode, stdout, stderr}."""
        Policy(commands=self.commands).check_command(command)  # before anybody is asked; who runs it checks it again
        try:
            done = self.workspace.execute(command, cwd)
        except ToolFault as fault:
            if NOT_ENDED in fault.message:
                self._note_run(command, cwd, None)
            raise
        self._note_run(command, cwd, done.exit_code, done.stderr)
        return {"exitCode": done.exit_code, "stdout": done.stdout[-MAX_OUTPUT:], "stderr": done.stderr[-MAX_OUTPUT:]}

    def _note_run(self, command: str, cwd: str, code: int | None, errors: str = "") -> None:
        line = " ".join(command.split()) + (f" in {cwd}" if cwd else "")
        self.ran.pop(line, None)  # the latest comes last
        self.ran[line] = code
        self._denied[line] = CLOSED_HINT in errors

    def failed_runs(self) -> list[str]:
        """Commands whose last run in this task failed, in words. The same line that ran again and succeeded is none of them."""
        failed = {line: code for line, code in self.ran.items() if code != 0 and self.judges_commands}
        said = {line: "was stopped" if code is None else f"exited {code}" for line, code in failed.items()}
        opens = "; something was closed to it, and --command-read DIR or --command-write DIR opens a place"
        return [
            f"the last run of `{clip(line, 200)}` {how}{opens if self._denied[line] else ''}"
            for line, how in said.items()
        ]
