// Answers the runtime's requests: each exactly once, whatever happens, and only within guard and policy. Imports no `vscode`.
import { spawn } from "node:child_process";
import { readdir, stat } from "node:fs/promises";
import { join } from "node:path";
import type { Environment } from "./environment";
import { checkBase, checkPlan, checkPortable, clean, cleanFolder, Guard } from "./guard";
import type { Policy } from "./policy";
import {
  type ContextRead,
  type ContextSearch,
  MAX_LINE_BYTES,
  type PlannedChange,
  type ToolRequest,
  type ToolResult,
} from "./protocol";
import { Refusal } from "./refusal";

export type Request = ContextRead | ContextSearch | ToolRequest;

/** The texts of the workspace as the editor has them, unsaved changes included. Paths are checked before they get here. */
export interface Texts {
  read(path: string): Promise<string | undefined>;
  /** All of it as one edit that one undo takes back; false when nothing was changed. */
  apply(changes: readonly PlannedChange[]): Promise<boolean>;
}

export interface Decision {
  readonly accepted: boolean;
  readonly reason?: string;
}

export interface Proposal {
  readonly taskId: string;
  readonly requestId: string;
  readonly summary: string;
  readonly changes: readonly PlannedChange[];
  readonly before: ReadonlyMap<string, string>;
}

/** How commands are run: by the Python that has Sonde, and what they may reach outside of the workspace. */
export interface Runner {
  readonly python: string;
  readonly environment: Environment;
  readonly read?: readonly string[];
  readonly write?: readonly string[];
}

export type Approve = (proposal: Proposal, signal: AbortSignal) => Promise<Decision>;

const MAX_FILES = 20_000;
const MAX_MATCHES = 200;
const MAX_OUTPUT = 20_000;
const COMMAND_MS = 55_000; // the runtime waits 60 s for an answer
const MAX_ANSWER = 1_000_000; // both outputs of a command, each letter perhaps escaped

export class ToolHost {
  private readonly guard: Guard;

  constructor(
    root: string,
    private readonly texts: Texts,
    private readonly policy: Policy,
    private readonly approve: Approve,
    private readonly runner: Runner = { python: "python3", environment: {} },
  ) {
    this.guard = new Guard(root);
  }

  /** The one result of a request; never throws. */
  async answer(request: Request, signal: AbortSignal): Promise<ToolResult> {
    const result = { type: "tool.result", id: request.id } as const;
    try {
      const output = await abortable(this.output(request, signal), signal);
      return fitting({ ...result, ok: true, output });
    } catch (error) {
      const code = error instanceof Refusal ? error.code : "TOOL_FAILED";
      return {
        ...result,
        ok: false,
        output: null,
        error: { code, message: error instanceof Error ? error.message : String(error) },
      };
    }
  }

  private output(request: Request, signal: AbortSignal): Promise<Record<string, unknown>> {
    switch (request.type) {
      case "context.read":
        return this.read(request.path, request.startLine ?? undefined, request.endLine ?? undefined);
      case "context.search":
        return this.search(request.query, request.path ?? undefined);
      case "tool.request":
        return this.tool(request, request.params ?? {}, signal);
    }
  }

  private async tool(
    request: ToolRequest,
    params: Record<string, unknown>,
    signal: AbortSignal,
  ): Promise<Record<string, unknown>> {
    switch (request.name) {
      case "list_files":
        return { files: await this.files(cleanFolder(params.root)) };
      case "read_file":
        return this.readFile(clean(params.path), integer(params.startLine), integer(params.endLine));
      case "apply_patch":
        return this.patch(request, checkPlan(params.plan), String(params.summary ?? ""), signal);
      case "execute_command":
        return this.execute(String(params.command ?? ""), cleanFolder(params.cwd), signal);
      default:
        throw new Refusal("UNKNOWN_TOOL", `there is no tool ${JSON.stringify(request.name)}`);
    }
  }

  private async text(path: string): Promise<string | undefined> {
    this.policy.checkRead(path);
    const real = await this.guard.real(path);
    if (real !== undefined) {
      this.policy.checkRead(real);
    }
    return this.texts.read(path);
  }

  /** Lines of a file joined by newlines, whatever ends them in the file. */
  private async read(given: string, start?: number, end?: number): Promise<Record<string, unknown>> {
    const path = clean(given);
    const lines = linesOf(await this.existing(path));
    const first = Math.max(1, start ?? 1);
    const last = Math.min(lines.length, end ?? lines.length);
    if (lines.length > 0 && (first > lines.length || last < first)) {
      throw new Refusal("BAD_PARAMS", `${path} has ${lines.length} lines; ${first}-${end ?? ""} are not among them`);
    }
    const content = lines.slice(first - 1, last).join("\n");
    return { content, startLine: Math.min(first, lines.length), endLine: last, totalLines: lines.length };
  }

  /** Like `read`, but the whole file comes with every byte of its text: patches are planned from it. */
  private async readFile(path: string, start?: number, end?: number): Promise<Record<string, unknown>> {
    const lines = await this.read(path, start, end);
    return start === undefined && end === undefined ? { ...lines, content: await this.existing(path) } : lines;
  }

  private async existing(path: string): Promise<string> {
    const text = await this.text(path);
    if (text === undefined) {
      throw new Refusal("NOT_FOUND", `there is no file ${path}; list_files shows what there is`);
    }
    return text;
  }

  /** Where a folder is, judged by its own name and by that of the end of a link. */
  private async folder(folder: string): Promise<string> {
    if (folder) {
      this.policy.checkRead(folder);
    }
    const real = await this.guard.real(folder);
    if (real === undefined) {
      throw new Refusal("NOT_FOUND", `there is no folder ${folder}`);
    }
    if (real) {
      this.policy.checkRead(real);
    }
    return join(this.guard.root, real);
  }

  private async files(folder: string): Promise<string[]> {
    await this.folder(folder);
    const found: string[] = [];
    await this.walk(folder, found);
    return found.sort();
  }

  private async walk(folder: string, found: string[]): Promise<void> {
    const entries = await readdir(join(this.guard.root, folder), { withFileTypes: true }).catch(() => []);
    for (const entry of entries) {
      const path = folder ? `${folder}/${entry.name}` : entry.name;
      if (found.length >= MAX_FILES || !this.policy.listed(entry.name)) {
        continue;
      }
      if (entry.isDirectory()) {
        await this.walk(path, found);
      } else if (entry.isFile()) {
        found.push(path);
      }
    }
  }

  private async search(query: string, path?: string): Promise<Record<string, unknown>> {
    if (!query) {
      throw new Refusal("BAD_PARAMS", "the query is empty");
    }
    const matches: { path: string; line: number; text: string }[] = [];
    for (const file of await this.searched(cleanFolder(path))) {
      const text = await this.text(file).catch(() => undefined);
      linesOf(text ?? "").forEach((line, index) => {
        if (line.includes(query)) {
          matches.push({ path: file, line: index + 1, text: line.slice(0, 300) });
        }
      });
      if (matches.length >= MAX_MATCHES) {
        return { matches: matches.slice(0, MAX_MATCHES), truncated: `only the first ${MAX_MATCHES} matches are shown` };
      }
    }
    return { matches };
  }

  private async searched(path: string): Promise<string[]> {
    const found = path === "" ? undefined : await stat(join(this.guard.root, path)).catch(() => undefined);
    return found?.isFile() ? [path] : this.files(path);
  }

  private async patch(request: ToolRequest, changes: PlannedChange[], summary: string, signal: AbortSignal) {
    const before = await this.checked(changes);
    const taskId = request.taskId ?? "";
    const decision = await this.approve({ taskId, requestId: request.id, summary, changes, before }, signal);
    if (!decision.accepted) {
      return {
        applied: false,
        summary: `the user rejected this change: ${decision.reason?.trim() || "no reason given"}`,
      };
    }
    signal.throwIfAborted();
    await this.checked(changes); // the user took their time; the files may have changed
    if (!(await this.texts.apply(changes))) {
      throw new Refusal("PATCH_REFUSED", "the editor could not apply the change; nothing was changed");
    }
    return { applied: true, summary };
  }

  /** Judges every path and base of the plan; the texts as they are now. */
  private async checked(changes: readonly PlannedChange[]): Promise<Map<string, string>> {
    const before = new Map<string, string>();
    for (const change of changes) {
      for (const path of [change.path, ...(change.target ? [change.target] : [])]) {
        this.policy.checkWrite(path);
        await this.guard.checkWritable(path);
      }
      if (change.action === "add" || change.target) {
        checkPortable(change.target ?? change.path);
      }
      const now = await this.text(change.path);
      checkBase(change, now, change.target ? await this.text(change.target) : undefined);
      before.set(change.path, now ?? "");
    }
    return before;
  }

  /** Sonde's own guard runs it: the Python that has Sonde checks it again, confines it, and ends all that it started. */
  private async execute(command: string, folder: string, signal: AbortSignal): Promise<Record<string, unknown>> {
    this.policy.checkCommand(command);
    const cwd = await this.folder(folder);
    if (folder !== "") {
      // a folder's own files can tell a program what to start
      throw new Refusal("COMMAND_REFUSED", "commands run in the root of the workspace; leave cwd out");
    }
    const { python, environment, read, write } = this.runner;
    const order = { command, allowed: this.policy.commands, seconds: COMMAND_MS / 1000, read, write };
    return new Promise((done, reject) => {
      const failed = (why: string) => reject(new Refusal("COMMAND_REFUSED", `${command} was not run: ${why}`));
      const child = spawn(python, ["-P", "-m", "sonde.server.command"], { cwd, env: environment, stdio: "pipe" });
      const hangUp = () => child.stdin.end(); // it ends with its input, and the command with it
      signal.addEventListener("abort", hangUp, { once: true });
      const kept = { stdout: "", stderr: "" };
      child.stdout.setEncoding("utf8").on("data", (data: string) => {
        kept.stdout = (kept.stdout + data).slice(-MAX_ANSWER);
      });
      child.stderr.setEncoding("utf8").on("data", (data: string) => {
        kept.stderr = (kept.stderr + data).slice(-MAX_OUTPUT);
      });
      child.stdin.on("error", () => undefined); // told by `close`
      child.once("error", (error) => failed(error.message));
      child.once("close", () => {
        signal.removeEventListener("abort", hangUp);
        const answer = parsed(kept.stdout);
        if (answer === undefined) {
          failed(kept.stderr.trim().split("\n").at(-1) ?? "");
        } else if (typeof answer.refused === "string") {
          const code = answer.refused.includes("did not end within") ? "TIMEOUT" : "COMMAND_REFUSED";
          reject(new Refusal(code, answer.refused));
        } else {
          done(answer);
        }
      });
      child.stdin.write(`${JSON.stringify(order)}\n`);
    });
  }
}

function parsed(line: string): Record<string, unknown> | undefined {
  try {
    return JSON.parse(line);
  } catch {
    return undefined;
  }
}

/** The result, if the runtime would read so long a line; it would pass over it and wait. */
function fitting(result: ToolResult): ToolResult {
  if (Buffer.byteLength(JSON.stringify(result)) > MAX_LINE_BYTES) {
    throw new Error(`the answer is longer than ${MAX_LINE_BYTES} bytes, the most that a line may have; ask for less`);
  }
  return result;
}

/** The lines of a text without their ends; a final newline does not make another line. */
export function linesOf(text: string): string[] {
  const lines = text.split(/\r\n|\n|\r/);
  return lines.at(-1) === "" ? lines.slice(0, -1) : lines;
}

function integer(value: unknown): number | undefined {
  return typeof value === "number" && Number.isInteger(value) ? value : undefined;
}

/** The work, or CANCELLED as soon as the signal says so, even if the work never ends. */
function abortable<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  return new Promise((resolve, reject) => {
    const stop = () => reject(new Refusal("CANCELLED", "the task was cancelled"));
    if (signal.aborted) {
      stop();
    }
    signal.addEventListener("abort", stop, { once: true });
    work.then(resolve, reject).finally(() => signal.removeEventListener("abort", stop));
  });
}
