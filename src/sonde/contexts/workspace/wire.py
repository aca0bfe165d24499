"""A workspace at the other end of the protocol: every operation is a request that the editor answers.

Patches are planned here and applied there. The editor gets whole new texts with base hashes and makes its own checks; this side
trusts it only with its own user's files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from sonde.contexts.workspace.base import Applied, CommandResult, FileChange, Found, Match, Passage, Plan
from sonde.contexts.workspace.paths import clean, clean_folder
from sonde.errors import ToolCallFailed, ToolFault

NOT_FOUND = "NOT_FOUND"


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one request; `code` is the editor's word for what went wrong, `NOT_FOUND` for a missing file."""

    ok: bool
    output: Mapping[str, Any] = field(default_factory=dict[str, Any])
    code: str = ""
    message: str = ""


class Ask(Protocol):
    """Sends one request and waits for its one answer. `kind` is `context.read`, `context.search` or the name of a tool."""

    def __call__(self, kind: str, fields: Mapping[str, Any]) -> Reply: ...


class WireWorkspace:
    """See `Workspace`."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._applied: list[Plan] = []

    def list_files(self, root: str = "") -> tuple[str, ...]:
        """Paths as the editor lists them."""
        files = self._get("list_files", {"root": clean_folder(root)})["files"]
        return tuple(str(path) for path in files)

    def read(
        self, path: str, start_line: int | None = None, end_line: int | None = None, *, rationale: str = ""
    ) -> Passage:
        """Lines of a file as the editor shows them, unsaved changes included."""
        path = clean(path)
        output = self._get(
            "context.read", _given(path=path, startLine=start_line, endLine=end_line, rationale=rationale or None)
        )
        lines = (output["startLine"], output["endLine"])
        total = output.get("totalLines", lines[1])
        return Passage(path=path, content=output["content"], start_line=lines[0], end_line=lines[1], total_lines=total)

    def text(self, path: str) -> str | None:
        """The whole text with its own line endings."""
        reply = self._ask("read_file", {"path": clean(path)})
        if not reply.ok and reply.code == NOT_FOUND:
            return None
        return str(_output(reply)["content"])

    def search(self, query: str, path: str | None = None) -> Found:
        """Lines that contain the text."""
        output = self._get("context.search", _given(query=query, path=clean_folder(path or "") or None))
        matches = tuple(Match(path=row["path"], line=row["line"], text=row["text"]) for row in output["matches"])
        return Found(matches=matches, truncated=output.get("truncated"))

    def apply(self, plan: Plan) -> Applied:
        """Send the plan; the editor asks its user and applies all of it or nothing."""
        done = self._propose(plan)
        if done.applied:
            self._applied.append(plan)
        return done

    def _propose(self, plan: Plan) -> Applied:
        fields = {"patch": plan.diff(), "summary": plan.summary(), "plan": [_change(change) for change in plan.changes]}
        output = self._get("apply_patch", fields)
        done = bool(output["applied"])
        return Applied(applied=done, summary=str(output["summary"]), diff=plan.diff() if done else "")

    def undo(self) -> str:
        """Propose the way back; the editor's own undo does the same."""
        if not self._applied:
            raise ToolFault("there is nothing to undo")
        done = self._propose(self._applied[-1].inverse())
        if done.applied:
            self._applied.pop()
        return done.summary

    def execute(self, command: str, cwd: str = "") -> CommandResult:
        """Run a command where the editor is, when its policy lists it."""
        output = self._get("execute_command", _given(command=command, cwd=clean_folder(cwd) or None))
        return CommandResult(exit_code=output["exitCode"], stdout=output["stdout"], stderr=output["stderr"])

    def _get(self, kind: str, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        return _output(self._ask(kind, fields))


def _output(reply: Reply) -> Mapping[str, Any]:
    if not reply.ok:
        raise ToolFault(reply.message or reply.code or "the editor refused without a reason")
    return _Answer(reply.output)


class _Answer(dict[str, Any]):
    """An answer whose missing field is the editor's fault, not the model's."""

    def __missing__(self, key: str) -> Any:
        raise ToolCallFailed(f"the editor's answer lacks the field {key!r}; its version may not fit this one")


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _change(change: FileChange) -> dict[str, Any]:
    return _given(
        path=change.path,
        action=change.action.value,
        baseHash=change.base_hash,
        newText=change.new_text,
        target=change.target,
    )
