// The extension's side of the protocol against a Python runtime in a process of its own.
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import type { NewTask } from "../src/protocol";
import { benches, until } from "./bench";

const begin = benches();

describe("a task", () => {
  it("reads, plans, patches, verifies and completes with citations", async () => {
    const { run, root, host, trace } = await begin();

    const done = await run("demo");

    expect(done).toMatchObject({ status: "succeeded", summary: "added normalizeWhitespace and its test" });
    expect(done.citations?.[0]).toMatchObject({ path: "sample.ts", startLine: 1, endLine: 7 });
    expect(await readFile(join(root, "sample.ts"), "utf8")).toContain("export function normalizeWhitespace");
    expect(await readFile(join(root, "sample.test.ts"), "utf8")).toContain('describe("normalizeWhitespace"');
    expect(host.results.map((result) => result.id)).toEqual(host.requests.map((request) => request.id));
    expect(host.results.every((result) => result.ok)).toBe(true);
    const kinds = trace.roots[0]?.children.map((node) => node.kind);
    expect(kinds).toEqual(["tool", "read", "search", "subcall", "tool", "tool", "tool", "read", "completion"]);
    expect(trace.roots[0]?.state).toBe("ok");
  });

  it("hears the reason of a rejection and changes nothing", async () => {
    const { run, root } = await begin({ approve: async () => ({ accepted: false, reason: "use trimEnd" }) });
    const before = await readFile(join(root, "sample.ts"), "utf8");

    const done = await run("demo");

    expect(done.status).toBe("partial");
    expect(done.summary).toContain("use trimEnd");
    expect(await readFile(join(root, "sample.ts"), "utf8")).toBe(before);
  });

  it("can be cancelled while it works", async () => {
    const { run, tasks, bridge } = await begin();
    await bridge.start();
    const done = run("wait");
    await bridge.start(); // the task has been sent by now

    tasks.cancel(tasks.active[0] ?? "");

    expect((await done).status).toBe("cancelled");
    expect(bridge.pid).toBeDefined();
  });

  it("can be cancelled while the user is asked, and the question gets its one answer", async () => {
    const { run, tasks, host, root } = await begin({ approve: () => new Promise(() => undefined) });
    const before = await readFile(join(root, "sample.ts"), "utf8");
    const done = run("demo");
    await until(() =>
      host.requests.some((request) => request.type === "tool.request" && request.name === "apply_patch"),
    );

    tasks.cancel(tasks.active[0] ?? "");

    expect((await done).status).toBe("cancelled");
    expect(host.results).toHaveLength(host.requests.length);
    expect(host.results.at(-1)?.error?.code).toBe("CANCELLED");
    expect(await readFile(join(root, "sample.ts"), "utf8")).toBe(before);
  });

  it("that does not stop when asked to is stopped with its runtime, and the next one works", async () => {
    const { run, tasks, bridge } = await begin({ killMs: 100 });
    await bridge.start();
    const done = run("deaf");
    await bridge.start(); // the task has been sent by now
    const pid = bridge.pid;

    tasks.cancel(tasks.active[0] ?? "");

    expect((await done).status).toBe("cancelled");
    expect((await run("echo again")).summary).toBe("again");
    expect(bridge.pid).not.toBe(pid);
  });

  it("ends as failed when the runtime crashes, and the next one works", async () => {
    const { run } = await begin();

    const done = await run("crash");

    expect(done.status).toBe("failed");
    expect(done.summary).toContain("exit code 3");
    expect((await run("echo again")).summary).toBe("again");
  });

  it("is followed by another one in the same runtime", async () => {
    const { run, bridge } = await begin();

    expect((await run("echo one")).summary).toBe("one");
    const pid = bridge.pid;
    expect((await run("echo two")).summary).toBe("two");
    expect(bridge.pid).toBe(pid);
  });

  it("is not disturbed by stray output", async () => {
    const { run, logged } = await begin();

    expect((await run("print")).summary).toBe("printed");
    await until(() => logged.some((line) => line.includes("stray output")));
  });
});

describe("the runtime", () => {
  it("answers every one of 1,000 random lines and still works", async () => {
    const { run, bridge, heard } = await begin();
    await bridge.start();
    const random = mulberry(7);
    const lines = Array.from({ length: 1000 }, () => randomLine(random));

    for (const line of lines) {
      bridge.send(line as unknown as NewTask);
    }

    expect((await run("echo fine")).summary).toBe("fine");
    const errors = heard.filter((message) => message.type === "error");
    expect(errors).toHaveLength(lines.length);
    expect(errors.every((message) => message.type === "error" && message.recoverable)).toBe(true);
  });

  it("gets a flood of 10,000 events across, none lost", async () => {
    const { run, heard } = await begin();

    await run("flood 10000");

    expect(heard.filter((message) => message.type === "progress")).toHaveLength(10_000);
  });

  it("sends its first event before the task is done", async () => {
    const { run, heard, tasks, bridge } = await begin();
    await bridge.start();
    const done = run("demo");

    await until(() => heard.length > 0);

    expect(tasks.active).toHaveLength(1);
    tasks.cancel(tasks.active[0] ?? "");
    await done;
  });

  it("is restarted once, however often that is asked for at once", async () => {
    const { bridge, run } = await begin();
    await bridge.start();
    const pid = bridge.pid;

    await Promise.all([bridge.restart(), bridge.restart(), bridge.restart()]);

    expect(bridge.pid).not.toBe(pid);
    expect((await run("echo up")).summary).toBe("up");
  });

  it("sees a filtered environment", async () => {
    process.env.SONDE_TEST_SECRET = "s3cret";
    const print = "import os, sys; sys.stderr.write(repr(sorted(os.environ))); sys.exit(7)";
    const { run } = await begin({ args: ["-c", print], environment: { OPENAI_API_KEY: "k" } });

    const done = await run("echo");

    expect(done.summary).not.toContain("SONDE_TEST_SECRET");
    expect(done.summary).toContain("OPENAI_API_KEY");
    delete process.env.SONDE_TEST_SECRET;
  });

  it("that cannot be started is explained", async () => {
    const { run } = await begin({ command: "/no/such/python" });

    const done = await run("echo");

    expect(done.status).toBe("failed");
    expect(done.summary).toContain("/no/such/python could not be started");
  });

  it("that says nothing is given up", async () => {
    const { run } = await begin({ args: ["-c", "input()"], timing: { helloMs: 200, killMs: 200 } });

    expect((await run("echo")).summary).toContain("said nothing");
  });

  it("that speaks another protocol is refused", async () => {
    const hello = `print('{"type":"hello","protocol":"9.0","version":"x"}', flush=True); input()`;
    const { run } = await begin({ args: ["-c", hello] });

    expect((await run("echo")).summary).toContain("protocol 9.0");
  });

  it("that talks nonsense does no harm", async () => {
    const script = [
      "import sys, random",
      `print('{"type":"hello","protocol":"1.0","version":"x"}')`,
      "random.seed(5)",
      "out = sys.stdout.buffer",
      "out.flush()",
      "for _ in range(1000): out.write(bytes(random.choices(range(256), k=40)) + b'\\n')",
      `out.write(b'{"type":"unknown"}\\n[]\\nnull\\n{"type":"completion"}\\n{"type":"tool.request","id":"x","taskId":"y","name":"z"}\\n')`,
      "out.flush()",
      "sys.stdin.readline()",
    ].join("\n");
    const { run } = await begin({ args: ["-c", script] });

    expect((await run("echo")).status).toBe("failed");
  });

  it("is gone after dispose", async () => {
    const { bridge } = await begin();
    await bridge.start();
    const pid = bridge.pid ?? 0;

    await bridge.dispose();

    expect(() => process.kill(pid, 0)).toThrow();
  });
});

/** A small random generator with a seed, so that a failure can be repeated. */
function mulberry(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

function randomLine(random: () => number): unknown {
  const values = [
    null,
    1,
    "text",
    [],
    [[]],
    {},
    { type: 1 },
    { type: "hello" },
    { type: "nope", id: "x" },
    { id: "t" },
  ];
  return random() < 0.5
    ? values[Math.floor(random() * values.length)]
    : String.fromCharCode(...Array.from({ length: 20 }, () => 32 + random() * 1000));
}
