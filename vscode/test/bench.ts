// What the tests share: a copy of the demo workspace, a runtime behind a bridge, and a user who answers.
import { cp, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { afterEach } from "vitest";
import { Bridge, type Timing } from "../src/bridge";
import { filteredEnvironment } from "../src/environment";
import { NodeTexts } from "../src/nodetexts";
import { Policy } from "../src/policy";
import type { RuntimeMessage, ToolResult } from "../src/protocol";
import { Tasks } from "../src/tasks";
import { type Approve, type Request, ToolHost } from "../src/toolhost";
import { Trace } from "../src/trace";

export const REPOSITORY = resolve(import.meta.dirname, "../..");
export const PYTHON = process.env.SONDE_PYTHON ?? join(REPOSITORY, ".venv/bin/python");
export const DOUBLE = [join(REPOSITORY, "tests/server/double.py")];

export async function demoWorkspace(): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), "sonde-"));
  await cp(join(REPOSITORY, "examples/demo-workspace"), folder, { recursive: true });
  return folder;
}

/** A host that remembers what it was asked and what it answered. */
class Recorded extends ToolHost {
  readonly requests: Request[] = [];
  readonly results: ToolResult[] = [];

  override async answer(request: Request, signal: AbortSignal): Promise<ToolResult> {
    this.requests.push(request);
    const result = await super.answer(request, signal);
    this.results.push(result);
    return result;
  }
}

export interface Bench {
  readonly root: string;
  readonly bridge: Bridge;
  readonly tasks: Tasks;
  readonly trace: Trace;
  readonly host: Recorded;
  readonly heard: RuntimeMessage[];
  readonly logged: string[];
  run(prompt: string): ReturnType<Tasks["run"]>;
  close(): Promise<void>;
}

export interface BenchOptions {
  readonly args?: readonly string[];
  readonly command?: string;
  readonly approve?: Approve;
  readonly killMs?: number;
  readonly timing?: Timing;
  readonly environment?: Record<string, string>;
}

export async function bench(options: BenchOptions = {}): Promise<Bench> {
  const root = await demoWorkspace();
  const [heard, logged]: [RuntimeMessage[], string[]] = [[], []];
  const trace = new Trace();
  const tasks = new Tasks(
    () => bridge,
    trace,
    (text) => logged.push(text),
    options.killMs ?? 60_000,
  );
  const listener = {
    message: (message: RuntimeMessage) => {
      heard.push(message);
      tasks.message(message);
    },
    ended: (reason: string) => tasks.ended(reason),
    log: (text: string) => tasks.log(text),
  };
  const environment = filteredEnvironment(process.env, [], options.environment ?? {});
  const launch = () => ({ command: options.command ?? PYTHON, args: options.args ?? DOUBLE, cwd: root, environment });
  const bridge = new Bridge(launch, listener, options.timing ?? { helloMs: 60_000, killMs: 5_000 });
  const host = new Recorded(
    root,
    new NodeTexts(root),
    new Policy(),
    options.approve ?? (async () => ({ accepted: true })),
  );
  const run = (prompt: string) => tasks.run(prompt, host, { workspace: root });
  const close = async () => {
    await bridge.dispose();
    await rm(root, { recursive: true });
  };
  return { root, bridge, tasks, trace, host, heard, logged, run, close };
}

/** Resolves when the condition holds; checked whenever the runtime says something. */
export async function until(condition: () => boolean, withinMs = 60_000): Promise<void> {
  const end = Date.now() + withinMs;
  while (!condition()) {
    if (Date.now() > end) {
      throw new Error("it did not happen in time");
    }
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

/** Makes benches, and closes those of a test when it has ended. */
export function benches(): (options?: BenchOptions) => Promise<Bench> {
  let open: Bench[] = [];
  afterEach(async () => {
    await Promise.all(open.map((made) => made.close()));
    open = [];
  });
  return async (options = {}) => {
    const made = await bench(options);
    open.push(made);
    return made;
  };
}
