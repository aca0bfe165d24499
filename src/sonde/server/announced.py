"""A workspace that says aloud what is looked at, for hosts that see the files themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from sonde.contexts.workspace import Applied, CommandResult, FileSlice, Matches, Plan, Workspace

Kind = Literal["read", "search", "execute"]


class AnnouncedWorkspace:
    """Another workspace; `announce(kind, title, path)` is called before each look at it. Changes announce themselves by asking."""

    def __init__(self, workspace: Workspace, announce: Callable[[Kind, str, str], None]) -> None:
        self._workspace = workspace
        self._announce = announce

    def list_files(self, root: str = "") -> tuple[str, ...]:
        """As the workspace does."""
        self._announce("search", f"list files {root}".strip(), root)
        return self._workspace.list_files(root)

    def read(
        self, path: str, start_line: int | None = None, end_line: int | None = None, *, rationale: str = ""
    ) -> FileSlice:
        """As the workspace does."""
        lines = f":{start_line or 1}-{end_line or ''}" if start_line or end_line else ""
        why = f" ({rationale})" if rationale else ""
        self._announce("read", f"read {path}{lines}{why}", path)
        return self._workspace.read(path, start_line, end_line, rationale=rationale)

    def search(self, query: str, path: str | None = None) -> Matches:
        """As the workspace does."""
        self._announce("search", f"search {query!r}", path or "")
        return self._workspace.search(query, path)

    def text(self, path: str) -> str | None:
        """As the workspace does."""
        self._announce("read", f"read {path}", path)
        return self._workspace.text(path)

    def execute(self, command: str, cwd: str = "") -> CommandResult:
        """As the workspace does."""
        self._announce("execute", command, cwd)
        return self._workspace.execute(command, cwd)

    def apply(self, plan: Plan) -> Applied:
        """As the workspace does."""
        return self._workspace.apply(plan)

    def undo(self) -> str:
        """As the workspace does."""
        return self._workspace.undo()
