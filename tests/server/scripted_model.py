"""A program that plays a model for the demo task: `--model "command:python tests/server/scripted_model.py"`.

It reads the conversation from standard input and prints the next reply. Which one follows from what the conversation already holds, so it
needs no memory. A task that begins with `wait: ` gets no plan for a minute; a rejected patch is accepted as the user's last word.
"""

from __future__ import annotations

import re
import sys
import threading

READ = (
    'print("STEP 1")\nprint(list_files())\nprint(read_file("sample.ts", 1, 7)["content"])\nprint(search("describe")[0])'
)
PLAN = 'print("STEP 2")\nplan = llm_query("Plan the change: add normalizeWhitespace to sample.ts and test it.")\nprint(plan)'
PATCH = r'''print("STEP 3")
result = apply_patch("""*** Begin Patch
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
*** End Patch""")
print("APPLIED" if result["applied"] else "REFUSED", result["summary"])'''
VERIFY = 'print("STEP 4")\nprint(read_file("sample.ts", 8, 12)["content"])\nprint(read_file("sample.test.ts", 1, 9)["content"])'
FINISH = 'FINAL("Added normalizeWhitespace and its test. [sample.ts:9-12] [sample.test.ts:4-8]")'


def reply(conversation: str) -> str:
    """What the model says next."""
    if "Plan the change" in conversation and "apply_patch" not in conversation:
        if "slowly" in conversation:
            threading.Event().wait(60)
        return "Add one exported function after shorten, then one test for it."
    refused = re.search(r"^REFUSED .*?: (.*)$", conversation, re.MULTILINE)
    if refused:
        return fenced(f'FINAL("Not done, the user said: {refused[1]} [sample.ts:1-7]")')
    plan = PLAN.replace("Plan the change", "Plan the change slowly") if "wait: " in conversation else PLAN
    steps = [READ, plan, PATCH, VERIFY, FINISH]
    seen = {int(number) for number in re.findall(r"^STEP (\d)$", conversation, re.MULTILINE)}
    return fenced(steps[max(seen, default=0)])


def fenced(code: str) -> str:
    return f"```python\n{code}\n```"


if __name__ == "__main__":
    print(reply(sys.stdin.read()))
