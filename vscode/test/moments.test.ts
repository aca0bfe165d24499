// What a user does at an odd moment: cancelling while the runtime starts, running a task while the old runtime goes.
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { filteredEnvironment } from "../src/environment";
import { NodeTexts } from "../src/nodetexts";
import { Policy } from "../src/policy";
import { ToolHost } from "../src/toolhost";
import { benches, PYTHON } from "./bench";

const begin = benches();

describe("a task", () => {
  it("is under way while the runtime starts, and can be cancelled then", async () => {
    const { run, tasks, heard } = await begin();
    const done = run("wait");

    expect(tasks.active).toHaveLength(1);
    tasks.cancel(tasks.active[0] ?? "");

    expect((await done).status).toBe("cancelled");
    expect(tasks.active).toHaveLength(0);
    expect(heard).toHaveLength(0);
    expect((await run("echo again")).summary).toBe("again");
  });

  it("that is started while the old runtime goes waits for a new one", async () => {
    const { run, bridge } = await begin();
    await run("echo one");
    const pid = bridge.pid;

    const stopped = bridge.stop();
    const done = await run("echo two");
    await stopped;

    expect(done.summary).toBe("two");
    expect(bridge.pid).not.toBe(pid);
  });
});

describe("a command", () => {
  it("may print letters in pieces", async () => {
    const { root } = await begin();
    await writeFile(
      join(root, "halves.mjs"),
      "process.stdout.write(Buffer.from([0xc3]));setTimeout(() => process.stdout.write(Buffer.from([0xa9])), 100);",
    );
    const command = `${process.execPath} halves.mjs`;
    const runner = { python: PYTHON, environment: filteredEnvironment(process.env, [], {}) };
    const accept = async () => ({ accepted: true });
    const host = new ToolHost(root, new NodeTexts(root), new Policy([command]), accept, runner);

    const result = await host.answer(
      { type: "tool.request", id: "r1", name: "execute_command", params: { command } },
      new AbortController().signal,
    );

    expect(result.output).toMatchObject({ exitCode: 0, stdout: "é" });
  });
});
