"""A workspace at the other end of the protocol: every operation is a request that the editor answers.

Patches are planned here and applied there. The editor gets whole new texts with base hashes and makes its own checks; this side
trusts it only with its own user's files. Secrets and what starts programs are not asked for, whatever the editor's own policy says.
A host that knows no more than the source document will do: it may send text with its line ends, bare lists and texts, and errors
without a code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, cast

from sonde.contexts.workspace.base import (
    Applied,
    CommandResult,
    FileChange,
    FileSlice,
    Keep,
    Match,
    Matches,
    PatchRefused,
    PathRefused,
    Plan,
    WriteNote,
)
from sonde.contexts.workspace.paths import clean, clean_folder
from sonde.contexts.workspace.policy import Policy
from sonde.errors import ToolCallFailed, ToolFault

NOT_FOUND = "NOT_FOUND"
TOOL_FAILED = "TOOL_FAILED"  # also what an error without a code becomes
BARE = "value"
"""The name of an output that came without one: a bare text or list."""
MISSING = re.compile(r"not found|no such|not exist|enoent|filenotfound", re.IGNORECASE)
MAX_LINE = 1_000_000_000
FOUND = ("matches", "results", "hits")
FILE, LINE, TEXT = ("path", "file"), ("line", "lineNumber", "startLine"), ("text", "content", "preview", "snippet")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one request; `code` is the editor's word for what went wrong, `NOT_FOUND` for a missing file."""

    ok: bool
    output: Mapping[str, Any] = field(default_factory=dict[str, Any])
    code: str = ""
    message: str = ""


class AskEditor(Protocol):
    """Sends one request and waits for its one answer. `kind` is `context.read`, `context.search` or the name of a tool."""

    def __call__(self, kind: str, fields: Mapping[str, Any]) -> Reply: ...


class WireWorkspace:
    """See `Workspace`."""

    def __init__(self, ask: AskEditor, folder: str = "") -> None:
        self.folder = folder  # as the editor calls it
        self.keep: Keep = lambda _: None  # hears of what is written before it is
        self._ask = ask
        self._policy = Policy()
        self._applied: list[Plan] = []

    def list_files(self, root: str = "") -> tuple[str, ...]:
        """Paths as the editor lists them."""
        files: list[str] = self._get("list_files", {"root": clean_folder(root)}).each("files", str)
        return tuple(path for path in files if self._readable(path))

    def _readable(self, path: str) -> bool:
        try:
            self._policy.check_read(path)
        except PathRefused:
            return False
        return True

    def read(
        self, path: str, start_line: int | None = None, end_line: int | None = None, *, rationale: str = ""
    ) -> FileSlice:
        """Lines of a file as the editor shows them, unsaved changes included."""
        path = clean(path)
        self._policy.check_read(path)
        output = self._get(
            "context.read", _given(path=path, startLine=start_line, endLine=end_line, rationale=rationale or None)
        )
        start, end = output.line("startLine", start_line or 1), output.line("endLine", 0)
        lines = re.split(r"\r\n|\n|\r", output.bare("content", str))
        # Joined lines or a piece of the text: only the count tells whether a last line end belongs to the last line.
        if lines[-1] == "" and len(lines) != end - start + 1:
            lines.pop()
        if not lines and start > 1:
            raise ToolFault(f"{path} has no line {start}; read it from line 1 to see how long it is")
        if not any(lines) and not end:
            return FileSlice(path=path, content="", start_line=0, end_line=0, total_lines=0)
        start = max(1, start)
        end = start + len(lines) - 1
        total = max(end, output.line("totalLines", end))
        return FileSlice(path=path, content="\n".join(lines), start_line=start, end_line=end, total_lines=total)

    def text(self, path: str) -> str | None:
        """The whole text with its own line endings."""
        self._policy.check_read(clean(path))
        reply = self._ask("read_file", {"path": clean(path)})
        coded = reply.code not in ("", TOOL_FAILED)  # a host without codes says it in words
        if not reply.ok and (reply.code == NOT_FOUND if coded else MISSING.search(reply.message)):
            return None
        return _output(reply).bare("content", str)

    def search(self, query: str, path: str | None = None) -> Matches:
        """Lines that contain the text. The document does not name the fields of a match, so usual names will do."""
        output = self._get("context.search", _given(query=query, path=clean_folder(path or "") or None))
        rows = [_Answer(row) for row in output.each(next((key for key in FOUND if key in output), "matches"), dict)]
        matches = [
            Match(path=row.first(FILE, str), line=row.first(LINE, int), text=row.first(TEXT, str)[:300]) for row in rows
        ]
        cut = output.get("truncated")
        seen = tuple(match for match in matches if self._readable(match.path))
        return Matches(matches=seen, truncated=cut if isinstance(cut, str) else None)

    def apply(self, plan: Plan) -> Applied:
        """Send the plan; the editor asks its user and applies all of it or nothing."""
        self.keep(WriteNote(plan=plan))  # the editor asks and writes in one
        applied = False
        try:
            done = self._propose(plan)
            applied = done.applied
        finally:
            if not applied:
                with suppress(PatchRefused):
                    self.keep(WriteNote(plan=plan.inverse()))
        if applied:
            self._applied.append(plan)
        return done

    def _propose(self, plan: Plan) -> Applied:
        for change in plan.changes:
            for path in change.touched():
                self._policy.check_write(clean(path))
        changes = [
            _given(
                path=change.path,
                action=change.action.value,
                baseHash=change.base_hash,
                newText=change.new_text,
                target=change.target,
            )
            for change in plan.changes
        ]
        patch = "".join(map(_exact_diff, plan.changes))
        output = self._get("apply_patch", {"patch": patch, "summary": plan.summary(), "plan": changes})
        done = output.of("applied", bool)
        said = output.of("summary", str, plan.summary() if done else "the editor did not apply it and gave no reason")
        return Applied(applied=done, summary=said, diff=plan.diff() if done else "")

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
        self._policy.check_folder(clean_folder(cwd))  # the runtime knows of no other folder that the user allows
        output = self._get("execute_command", _given(command=command, cwd=clean_folder(cwd) or None))
        return CommandResult(
            exit_code=output.of("exitCode", int), stdout=output.of("stdout", str), stderr=output.of("stderr", str)
        )

    def _get(self, kind: str, fields: Mapping[str, Any]) -> _Answer:
        return _output(self._ask(kind, fields))


def _exact_diff(change: FileChange) -> str:
    """The diff for a host that applies it as it stands: where every line ends with CRLF, its lines do too."""
    ends = set(re.findall(r"\r\n|\n|\r", change.old_text + (change.new_text or "")))
    if ends != {"\r\n"}:
        return change.diff
    lines = change.diff.split("\n")
    return "\n".join(
        f"{line}\r" if number > 1 and line[:1] in tuple(" +-") and not lines[number + 1].startswith("\\") else line
        for number, line in enumerate(lines)
    )


def _output(reply: Reply) -> _Answer:
    if not reply.ok:
        raise ToolFault(reply.message or reply.code or "the editor refused without a reason")
    return _Answer(reply.output)


class _Answer(dict[str, Any]):
    """An answer in which a missing or odd field is the editor's fault, not the model's."""

    def of(self, key: str, kind: type[T], default: T | None = None) -> T:
        """The field, which must be of this kind."""
        value = self.get(key, default)
        if not isinstance(value, kind):
            raise ToolCallFailed(
                f"the editor's answer has no {kind.__name__} {key!r}; its version may not fit this one"
            )
        return value

    def bare(self, key: str, kind: type[T]) -> T:
        """The field, or the output itself where it came without names."""
        return self.of(key if key in self else BARE if BARE in self else key, kind)

    def first(self, keys: Sequence[str], kind: type[T]) -> T:
        """The first of these fields that is there."""
        return self.of(next((key for key in keys if key in self), keys[0]), kind)

    def line(self, key: str, default: int) -> int:
        """A line number; the default where the answer has none that could be one."""
        value = self.get(key)
        return value if type(value) is int and 0 <= value <= MAX_LINE else default

    def each(self, key: str, kind: type[Any]) -> list[Any]:
        """The items of a list, each of this kind."""
        items = cast("list[Any]", self.bare(key, list))
        return [_Answer({key: item}).of(key, kind) for item in items]


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
