"""A runner that follows the words of its task instead of a model, so that a host can be tested against any behaviour.

`python tests/server/double.py` serves it over stdio. The first word of the prompt chooses: demo, echo, wait, deaf, crash, fail, print,
flood N, many N, silent, long, command N. No model and no sandbox are involved.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from sonde.contexts.workspace import Workspace, WorkspaceContext
from sonde.errors import ToolFault
from sonde.server.connection import Emit
from sonde.server.messages import (
    AssistantMessage,
    Completion,
    Hello,
    NewTask,
    SubcallEnd,
    SubcallStart,
    WireCitation,
    WireProgress,
    WireUsage,
)
from sonde.server.stdio import serve_stdio

DEMO_PATCH = """*** Begin Patch
*** Update File: sample.ts
@@
   return `${text.slice(0, limit - 1)}…`;
 }
+
+/** Joins the words of a text by single spaces. */
+export function normalizeWhitespace(text: string): string {
+  return text.trim().replace(/\\s+/g, " ");
+}
*** Update File: sample.test.ts
@@
-import { shorten } from "./sample";
+import { normalizeWhitespace, shorten } from "./sample";
@@
+describe("normalizeWhitespace", () => {
+  it("joins words by single spaces", () => {
+    expect(normalizeWhitespace("  a \\n b ")).toBe("a b");
+  });
+});
+
 describe("shorten", () => {
*** End Patch"""


class Told:
    """See the module docstring."""

    def run(self, task: NewTask, workspace: Workspace, emit: Emit, cancelled: threading.Event) -> Completion:
        word, _, rest = task.prompt.partition(" ")
        acts: dict[str, Callable[[], str]] = {
            "wait": lambda: self.wait(cancelled),
            "deaf": lambda: self.wait(threading.Event()),
            "crash": lambda: os._exit(3),
            "print": lambda: print("stray output\n{}") or "printed",
            "long": lambda: "x" * int(rest),
            "flood": lambda: self.flood(emit, int(rest)),
            "many": lambda: self.many(emit, task.id, int(rest)),
            "fail": lambda: self.fail(rest),
            "echo": lambda: rest,
            "command": lambda: workspace.execute("x" * int(rest)).stdout,
            "silent": lambda: "no citation",
        }
        summary = acts[word]() if word in acts else self.demo(workspace, emit, task)
        cited = () if word == "silent" else (WireCitation(path="sample.ts", start_line=1, end_line=7),)
        usage = WireUsage(iterations=4, tool_calls=5, subcalls=1, tokens=1234, cost_usd=0.0, seconds=0.1)
        status = "partial" if summary.startswith("not done") else "succeeded"
        return Completion(id=task.id, status=status, summary=summary, citations=cited, usage=usage)

    def demo(self, workspace: Workspace, emit: Emit, task: NewTask) -> str:
        context = WorkspaceContext(workspace)
        emit(WireProgress(id=task.id, note="reading", usage=WireUsage(iterations=1)))
        context.list_files()
        context.read("sample.ts", 1, 7)
        context.search("describe")
        emit(SubcallStart(id=f"{task.id}.s1", intent="plan the change", scope="sample.ts:1-7"))
        emit(AssistantMessage(id=f"{task.id}.m1", content="Add normalizeWhitespace ", partial=True))
        emit(AssistantMessage(id=f"{task.id}.m1", content="and test it.", partial=True))
        emit(
            SubcallEnd(
                id=f"{task.id}.s1",
                summary="add one function",
                citations=(WireCitation(path="sample.ts", start_line=1, end_line=7),),
            )
        )
        done = context.apply_patch(DEMO_PATCH)
        if not done["applied"]:
            return f"not done: {done['summary']}"
        checked = context.read("sample.ts", 8, 12).value["content"]
        return (
            "added normalizeWhitespace and its test"
            if "normalizeWhitespace" in checked
            else "not done: the check failed"
        )

    def wait(self, until: threading.Event) -> str:
        until.wait(60)
        return "stopped"

    def flood(self, emit: Emit, count: int) -> str:
        for number in range(count):
            emit(WireProgress(id="flood", note=str(number)))
        return f"{count} events"

    def many(self, emit: Emit, task_id: str, count: int) -> str:
        for number in range(count):
            emit(AssistantMessage(id=f"{task_id}.m{number}", content=f"event {number}"))
        return f"{count} nodes"

    def fail(self, message: str) -> str:
        raise ToolFault(message)


if __name__ == "__main__":
    raise SystemExit(serve_stdio(Told(), Hello(version="double", capabilities=("edit",))))
