// The real runtime, `sonde serve --stdio`, with a program in the place of the model: the demo task of the source document.
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, describe, expect, it } from "vitest";
import { type Bench, type BenchOptions, bench, PYTHON, REPOSITORY, until } from "./bench";

const DEMO = "Add a function that normalizes whitespace in sample.ts and update its test";
const model = `command:${PYTHON} ${join(REPOSITORY, "tests/server/scripted_model.py")}`;
let runs: string;
let open: Bench | undefined;

beforeAll(async () => {
  runs = await mkdtemp(join(tmpdir(), "sonde-runs-"));
});
afterAll(() => rm(runs, { recursive: true }));
afterEach(() => open?.close());

async function serve(options: BenchOptions = {}): Promise<Bench> {
  open = await bench({ args: ["-m", "sonde", "serve", "--stdio", "--model", model, "--runs-dir", runs], ...options });
  return open;
}

describe("the demo task", () => {
  it("is done with the whole required trace", async () => {
    const { run, root, host, heard } = await serve();

    const done = await run(DEMO);

    expect(done).toMatchObject({ status: "succeeded" });
    expect(await readFile(join(root, "sample.ts"), "utf8")).toContain(
      "export function normalizeWhitespace(text: string): string {",
    );
    expect(await readFile(join(root, "sample.test.ts"), "utf8")).toContain(
      'import { normalizeWhitespace, shorten } from "./sample";',
    );
    expect(done.citations?.map(({ path, startLine, endLine }) => [path, startLine, endLine])).toEqual([
      ["sample.ts", 9, 12],
      ["sample.test.ts", 4, 8],
    ]);
    const order = heard.filter((m) =>
      ["context.read", "subcall.start", "subcall.end", "tool.request"].includes(m.type),
    );
    const steps = order.map((m) => (m.type === "tool.request" ? m.name : m.type));
    const patched = steps.indexOf("apply_patch");
    expect(steps.indexOf("context.read")).toBeLessThan(steps.indexOf("subcall.start"));
    expect(steps.indexOf("subcall.end")).toBeLessThan(patched);
    expect(steps.lastIndexOf("context.read")).toBeGreaterThan(patched);
    expect(host.results.map((result) => result.id)).toEqual(host.requests.map((request) => request.id));
    expect(done.usage?.tokens).toBeLessThanOrEqual(6000);
    expect(done.runDir).toContain(runs);
  });

  it("heeds a rejection", async () => {
    const { run, root } = await serve({ approve: async () => ({ accepted: false, reason: "use trimEnd" }) });

    const done = await run(DEMO);

    expect(done.summary).toContain("use trimEnd");
    expect(await readFile(join(root, "sample.ts"), "utf8")).not.toContain("normalizeWhitespace");
  });

  it("stops in the middle of a turn when it is cancelled, and the next task works", async () => {
    const { run, tasks, heard, bridge } = await serve();
    const done = run(`wait: ${DEMO}`);
    await until(() => heard.some((message) => message.type === "subcall.start"));
    const pid = bridge.pid;

    tasks.cancel(tasks.active[0] ?? "");

    expect((await done).status).toBe("cancelled");
    expect((await run(DEMO)).status).toBe("succeeded");
    expect(bridge.pid).toBe(pid);
  });

  it("does not count the time that the user takes", async () => {
    const approve = () =>
      new Promise<{ accepted: true }>((resolve) => setTimeout(() => resolve({ accepted: true }), 10_500));
    const { tasks, host, root } = await serve({ approve });

    const done = await tasks.run(DEMO, host, { workspace: root, limits: { timeoutSeconds: 10 } });

    expect(done.status).toBe("succeeded");
  });
});
