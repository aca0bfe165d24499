"""The only writer: a folder of text files, here or behind an editor, changed only by plans that someone approved.

`WorkspaceContext` is the workspace as a context of a run: typed tools over any `Workspace`, with excerpts that can be cited. Reads are
kept small: one of more than 200 lines needs a rationale, and every rationale is shown to the user.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from sonde.contexts.workspace.base import (
    Action,
    Applied,
    Approval,
    Approve,
    CommandResult,
    FileSlice,
    Matches,
    PatchRefused,
    PathRefused,
    Plan,
    Workspace,
    accept,
    reject,
)
from sonde.contexts.workspace.local import PLAIN, LocalWorkspace
from sonde.contexts.workspace.planner import plan_patch
from sonde.contexts.workspace.policy import Policy
from sonde.contexts.workspace.text import visible
from sonde.contexts.workspace.wire import Reply, WireWorkspace
from sonde.core.canonical import hash_value
from sonde.core.evidence import Excerpt, Observed
from sonde.errors import ToolFault
from sonde.tools import Tool, tool

__all__ = [
    "PLAIN",
    "Action",
    "Applied",
    "Approval",
    "Approve",
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


class WorkspaceContext:
    """Tools `list_files`, `read`, `read_file`, `search`, `apply_patch` and, when `commands` are allowed, `execute_command`."""

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
        self._unread: set[str] = set()
        self._listed: tuple[str, ...] | None = None

    def unverified(self) -> list[str]:
        """Files that were changed and not read again since."""
        return sorted(self._unread)

    def tools(self) -> Sequence[Tool]:
        """Everything that code may call; the last two change things and are asked for or listed first."""
        tools = [tool(self.list_files), tool(self.read), tool(self.read_file), tool(self.search)]
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
        """The first files by name, for the prompt."""
        files = self._files()
        shown = ", ".join(files[:40])
        return f"workspace of {len(files)} files: {shown}{', …' if len(files) > 40 else ''}"

    def shared(self) -> Mapping[str, Any]:
        """Nothing is mapped into the sandbox: files change while the run works on them."""
        return {}

    def reread(self, excerpt: Excerpt) -> str | None:
        """The cited lines as they are now."""
        try:
            return self.workspace.read(excerpt.path, excerpt.start_line, excerpt.end_line).content
        except ToolFault:
            return None

    def fingerprint(self) -> str:
        """A hash of the file names; the texts are hashed where they are read."""
        return hash_value(list(self._files()))

    def _files(self) -> tuple[str, ...]:
        """The listing that the run began with; asked for once, since over the wire it is a request that people see."""
        if self._listed is None:
            self._listed = self.workspace.list_files()
        return self._listed

    def list_files(self, root: str = "") -> list[str]:
        """Paths of the files below a folder."""
        return list(self.workspace.list_files(root))

    def read(
        self, path: str, start_line: int | None = None, end_line: int | None = None, *, rationale: str = ""
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
        value = {"content": found.content, "startLine": found.start_line, "endLine": found.end_line}
        seen = Excerpt.of_lines(found.path, found.start_line, found.end_line, found.content)
        return Observed(value, (seen,) if found.total_lines else ())

    def read_file(
        self, path: str, start_line: int | None = None, end_line: int | None = None, *, rationale: str = ""
    ) -> Observed:
        """Lines of a file as {content, startLine, endLine}; over 200 lines need a rationale.
        Example: part = read_file('src/app.py', 10, 40)["content"]
        """
        return self.read(path, start_line, end_line, rationale=rationale)

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
        plan = plan_patch(patch, self.workspace.text)
        with self._waiting():
            done = self.workspace.apply(plan)
        if done.applied:
            written = [change.writes for change in plan.changes if change.action is not Action.DELETE]
            self.changed += [path for change in plan.changes for path in change.touched() if path not in self.changed]
            self._unread.update(written)
        return {"applied": done.applied, "summary": done.summary, "diff": done.diff}

    def execute_command(self, command: str, cwd: str = "") -> dict[str, Any]:
        """Run an allowed command, as {exitCode, stdout, stderr}."""
        done = self.workspace.execute(command, cwd)
        return {"exitCode": done.exit_code, "stdout": done.stdout, "stderr": done.stderr}
