"""A host written from the source document alone: it sends and reads only the fields that the document names.

It knows new_task {id, prompt, workspace} and tool.result {id, ok, output, error?}, answers list_files, read_file, apply_patch and
execute_command with the outputs of the document, and ignores every other field and message. Its errors are plain texts.
"""

from __future__ import annotations

import json
import queue
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sonde.api.settings import Settings
from sonde.server.connection import EditorConnection
from sonde.server.edit_tasks import EditRunner
from sonde.server.messages import Hello

REQUESTS = ("context.read", "context.search", "tool.request")
Answer = Callable[[dict[str, Any]], dict[str, Any] | None]


class DocumentHost:
    """One conversation: `write` takes its lines, `lines` gives those of the runtime. `answer` may answer a request in its own way."""

    def __init__(
        self, folder: Path, write: Callable[[bytes], object], read: Callable[[], bytes], answer: Answer | None = None
    ) -> None:
        self.folder = folder
        self.answer = answer
        self.heard: list[dict[str, Any]] = []
        self.commands: list[str] = []
        self._write = write
        self._read = read

    def say(self, **message: Any) -> None:
        self._write(json.dumps(message).encode() + b"\n")

    def hear(self) -> dict[str, Any]:
        self.heard.append(json.loads(self._read()))
        return self.heard[-1]

    def task(self, prompt: str, **more: Any) -> dict[str, Any]:
        """Send a task, answer every request of it, and return its completion."""
        self.say(type="new_task", id="task", prompt=prompt, workspace=str(self.folder), **more)
        return self.serve("task")

    def serve(self, task_id: str) -> dict[str, Any]:
        """Answer every request until this task is complete; its completion."""
        while (message := self.hear())["type"] != "completion" or message["id"] != task_id:
            if message["type"] in REQUESTS:
                self.say(type="tool.result", id=message["id"], **self._answered(message))
        return message

    def _answered(self, request: dict[str, Any]) -> dict[str, Any]:
        own = self.answer(request) if self.answer is not None else None
        return own if own is not None else self.done(request)

    def done(self, request: dict[str, Any]) -> dict[str, Any]:
        """What the document says a tool returns, or why it did not."""
        try:
            return {"ok": True, "output": self._output(request)}
        except (OSError, LookupError, ValueError) as error:
            return {"ok": False, "output": None, "error": f"{type(error).__name__}: {error}"}

    def _output(self, request: dict[str, Any]) -> dict[str, Any]:
        params = request["params"] if request["type"] == "tool.request" else request
        match request.get("name", request["type"]):
            case "list_files":
                files = (self.folder / params["root"]).rglob("*")
                return {"files": sorted(each.relative_to(self.folder).as_posix() for each in files if each.is_file())}
            case "read_file" | "context.read":
                lines = (self.folder / params["path"]).read_text().splitlines(keepends=True)
                start, end = params.get("startLine", 1), min(params.get("endLine", len(lines)), len(lines))
                return {"content": "".join(lines[start - 1 : end]), "startLine": start, "endLine": end}
            case "context.search":
                found = [(path, self.folder / path) for path in self._output(_listing(params))["files"]]
                rows = [
                    (path, n, line) for path, file in found for n, line in enumerate(file.read_text().splitlines(), 1)
                ]
                return {"matches": [{"path": p, "line": n, "text": t} for p, n, t in rows if params["query"] in t]}
            case "apply_patch":
                changed = apply_unified(self.folder, params["patch"])
                return {"applied": True, "summary": f"changed {', '.join(changed)}"}
            case "execute_command":
                self.commands.append(params["command"])
                return {"exitCode": 0, "stdout": "ran", "stderr": ""}
            case name:
                raise LookupError(f"unknown tool {name}")

    def of(self, kind: str) -> list[dict[str, Any]]:
        """All messages of one type."""
        return [each for each in self.heard if each["type"] == kind]


class HostInProcess(DocumentHost):
    """The same door without a process."""

    def __init__(
        self, folder: Path, settings: Settings, *, commands: Sequence[str] = (), answer: Answer | None = None
    ) -> None:
        told: queue.Queue[bytes] = queue.Queue()
        self.connection = EditorConnection(EditRunner(settings, commands), told.put, hello=Hello(version="test"))
        super().__init__(folder, self.connection.feed, lambda: told.get(timeout=60), answer)


class HostOfProcess(DocumentHost):
    """A real `sonde serve --stdio`."""

    def __init__(self, folder: Path, *words: str, environ: dict[str, str]) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-m", "sonde", "serve", "--stdio", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder.parent,
            env=environ,
        )
        assert self.child.stdin
        assert self.child.stdout
        self._input, self._output_pipe = self.child.stdin, self.child.stdout
        super().__init__(folder, self.send, self._output_pipe.readline)

    def send(self, line: bytes) -> None:
        """Bytes as they are."""
        self._input.write(line)
        self._input.flush()

    def close(self) -> int:
        """Hang up; the exit code."""
        self._input.close()
        code = self.child.wait(60)
        self._output_pipe.close()
        return code


def _listing(params: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool.request", "name": "list_files", "params": {"root": params.get("path", "")}}


def apply_unified(folder: Path, patch: str) -> Sequence[str]:
    """Apply a unified diff as any tool would: every context line and every removed line must be there."""
    changed: list[str] = []
    for part in re.split(r"^(?=--- )", patch, flags=re.MULTILINE)[1:]:
        head, *hunks = re.split(r"^(?=@@ )", part, flags=re.MULTILINE)
        name = next(line[6:] for line in head.splitlines() if line.startswith("+++ b/"))
        lines = [] if "/dev/null" in head else (folder / name).read_text().splitlines(keepends=True)
        for hunk in reversed(hunks):
            first, *body = hunk.splitlines(keepends=True)
            numbers = re.match(r"@@ -(\d+)(?:,(\d+))?", first)
            assert numbers is not None
            start, count = int(numbers[1]), int(numbers[2] or 1)
            at = start - 1 if count else start
            if [line[1:] for line in body if line[0] in " -"] != lines[at : at + count]:
                raise ValueError(f"{name}: hunk {first.strip()} does not apply")
            lines[at : at + count] = [line[1:] for line in body if line[0] in " +"]
        (folder / name).write_text("".join(lines))
        changed.append(name)
    return changed
