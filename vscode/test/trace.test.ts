// The tree: what it shows, and that its cost does not grow with the trace.
import { describe, expect, it } from "vitest";
import { LineSplitter } from "../src/lines";
import type { RuntimeMessage } from "../src/protocol";
import { PAGE, Trace, type TraceNode } from "../src/trace";

function read(n: number, parentId = "t"): RuntimeMessage {
  return { type: "context.read", id: `r${n}`, taskId: "t", parentId, path: "a.ts", startLine: n, endLine: n + 1 };
}

describe("the trace", () => {
  it("puts events under their sub-call and shows what was spent", () => {
    const trace = new Trace(undefined, () => 0);
    trace.begin("t", "do it\nnow");
    trace.add({ type: "subcall.start", id: "s", taskId: "t", parentId: "t", intent: "plan", scope: "a.ts" });
    trace.add(read(1, "s"));
    trace.answered({ type: "tool.result", id: "r1", ok: true, output: {} });
    trace.add({
      type: "subcall.end",
      id: "s",
      taskId: "t",
      parentId: "t",
      summary: "planned",
      usage: { tokens: 1200, costUsd: 0.5, seconds: 2 },
    });
    const citations = [{ path: "a.ts", startLine: 1, endLine: 2 }];
    trace.add({ type: "completion", id: "t", taskId: "t", status: "succeeded", summary: "done", citations });

    const task = trace.roots[0];
    expect(outline(task)).toEqual([
      "task do it",
      ["subcall plan", ["read read a.ts:1-2"]],
      ["completion done", ["citation a.ts:1-2"]],
    ]);
    expect(trace.get("s")?.detail).toBe("planned · 1,200 tokens · $0.5000 · 2.0 s");
    expect(task?.state).toBe("ok");
  });

  it("shows what was spent of which limit, and that nobody knows the cost", () => {
    const trace = new Trace();
    trace.begin("t", "x");
    const limits = { maxTotalTokens: 200_000, timeoutSeconds: 600 };
    trace.add({ type: "progress", id: "t", note: "turn 3", usage: { tokens: 1234, seconds: 2 }, limits });

    expect(trace.get("t")?.detail).toBe("turn 3 · 1,234 of 200,000 tokens · cost unknown · 2.0 of 600 s");
  });

  it("does not call a task done that edited nothing", () => {
    const trace = new Trace();
    trace.begin("t", "x");
    trace.add(read(1));
    const summary = "Nothing was edited: max_tokens_total of 900 is used up.";
    trace.add({ type: "completion", id: "t", status: "partial", summary, citations: [] });

    expect([trace.get("t")?.state, trace.get("t.completion")?.state]).toEqual(["partial", "partial"]);
    expect(trace.get("r1")?.state).toBe("cancelled");
  });

  it("joins the parts of one message", () => {
    const trace = new Trace();
    trace.begin("t", "x");
    trace.add({ type: "assistant.message", id: "m", taskId: "t", content: "Hello ", partial: true });
    trace.add({ type: "assistant.message", id: "m", taskId: "t", content: "there", partial: true });

    expect(trace.get("m")?.label).toBe("Hello there");
    expect(trace.roots[0]?.children).toHaveLength(1);
  });

  it("leaves nothing running when a task has ended", () => {
    const trace = new Trace();
    trace.begin("t", "x");
    trace.add(read(1));
    trace.add({ type: "completion", id: "t", status: "cancelled", summary: "", citations: [] });

    expect(trace.get("r1")?.state).toBe("cancelled");
  });

  it("pages 5,000 nodes, in order and none lost", () => {
    const trace = new Trace();
    trace.begin("t", "x");
    let shown = 0;
    for (let n = 0; n < 5_000; n += 1) {
      trace.add(read(n));
      if (n % 50 === 0) {
        shown = Math.max(shown, trace.shown(trace.roots[0]).length); // a refresh
      }
    }

    expect(shown).toBeLessThanOrEqual(PAGE + 5_000 / PAGE);
    const all = trace.shown(trace.roots[0]).flatMap((node) => (node.kind === "page" ? trace.shown(node) : [node]));
    expect(all.map((node) => node.id)).toEqual(Array.from({ length: 5_000 }, (_, n) => `r${n}`));
  });
});

describe("lines", () => {
  it("are put together across chunks, and one that is too long is passed over", () => {
    const lines: string[] = [];
    let long = 0;
    const splitter = new LineSplitter(
      (line) => lines.push(line),
      () => {
        long += 1;
      },
      10,
    );
    for (const chunk of ["ab", "c\nü", "\n\n", "x".repeat(11), "y\nz", "\n"]) {
      splitter.push(Buffer.from(chunk));
    }

    expect(lines).toEqual(["abc", "ü", "z"]);
    expect(long).toBe(1);
  });
});

type Outline = (string | Outline)[];

function outline(node: TraceNode | undefined): Outline {
  return node ? [`${node.kind} ${node.label}`, ...node.children.map(outline)] : [];
}
