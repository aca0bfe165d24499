// Nothing leaves the folder, whatever the runtime asks for.
import { execFileSync } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { mkdir, mkdtemp, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { filteredEnvironment } from "../src/environment";
import { hashOf } from "../src/guard";
import { NodeTexts } from "../src/nodetexts";
import { Policy } from "../src/policy";
import type { PlannedChange, ToolRequest, ToolResult } from "../src/protocol";
import { type Approve, ToolHost } from "../src/toolhost";
import { PYTHON, until } from "./bench";

const runner = { python: PYTHON, environment: filteredEnvironment(process.env, [], {}) };
let outer: string;
let root: string;

beforeEach(async () => {
  outer = await mkdtemp(join(tmpdir(), "sonde-guard-"));
  root = join(outer, "workspace");
  await mkdir(join(root, "src"), { recursive: true });
  await writeFile(join(root, "a.txt"), "one\r\ntwo\r\n");
  await writeFile(join(root, "src/b.txt"), "x\n");
  await writeFile(join(root, ".env"), "KEY=1\n");
  await writeFile(join(outer, "secret"), "top\n");
});

afterEach(() => rm(outer, { recursive: true }));

function host(approve: Approve = async () => ({ accepted: true }), commands: string[] = []): ToolHost {
  return new ToolHost(root, new NodeTexts(root), new Policy(commands), approve, runner);
}

function call(name: string, params: Record<string, unknown>, tools = host()): Promise<ToolResult> {
  const request: ToolRequest = { type: "tool.request", id: "r", taskId: "t", name, params };
  return tools.answer(request, new AbortController().signal);
}

function patch(change: Partial<PlannedChange>, tools = host()): Promise<ToolResult> {
  return call("apply_patch", { plan: [change], summary: "s" }, tools);
}

async function isAlive(pidFile: string): Promise<boolean> {
  const pid = (await readFile(pidFile, "utf8")).trim();
  const stat = await readFile(`/proc/${pid}/stat`, "utf8").catch(() => ") X");
  return !"ZX".includes(stat.split(") ")[1]?.[0] ?? "X");
}

const ADD = { action: "add", newText: "x" } as const;

describe("paths", () => {
  it.each([
    "../secret",
    "/etc/passwd",
    "~/x",
    "C:/x",
    "a\\b",
    "",
    ".",
    "src/..",
    "a\u200bb",
    "a\u0000b",
    3,
    null,
    undefined,
  ])("%j is not read", async (path) => {
    expect((await call("read_file", { path })).ok).toBe(false);
  });

  it.each([
    ".env",
    ".git/config",
    "SRC/.GIT/x",
    "id_rsa",
    "deploy.pem",
    "x/.ssh/config",
    "secrets.yml",
    ".git./config",
    "prod.env.gz",
    ".env~",
    "Server.KEY.bak.gz ",
    "terraform.tfvars",
    "#.env#",
    "x/.ssh.old/k",
  ])("%j is protected", async (path) => {
    expect((await call("read_file", { path })).error?.code).toBe("PATH_REFUSED");
    expect((await patch({ ...ADD, path })).error?.code).toBe("PATH_REFUSED");
  });

  it.each([
    "../new",
    "/tmp/new",
    "a.txt/new",
    "A.txt",
    "SRC/new",
    "src",
    "nul",
    "what?",
    "dot.",
    ".vscode/tasks.json",
    "x.code-workspace",
  ])("%j is not written", async (path) => {
    expect((await patch({ ...ADD, path })).ok).toBe(false);
  });

  it("a link that leads out is neither read nor written", async () => {
    await symlink(outer, join(root, "link"));
    expect((await call("read_file", { path: "link/secret" })).error?.code).toBe("PATH_REFUSED");
    expect((await patch({ ...ADD, path: "link/new" })).ok).toBe(false);
    const change = { path: "link/secret", action: "update", baseHash: hashOf("top\n"), newText: "taken\n" } as const;
    expect((await patch(change)).ok).toBe(false);
    expect(await readFile(join(outer, "secret"), "utf8")).toBe("top\n");
  });

  it("a link to a secret is judged by where it ends", async () => {
    await symlink(".env", join(root, "harmless.txt"));
    expect((await call("read_file", { path: "harmless.txt" })).error?.code).toBe("PATH_REFUSED");
  });

  it("a pipe is not written", async () => {
    execFileSync("mkfifo", [join(root, "pipe")]);
    expect((await patch({ ...ADD, path: "pipe" })).ok).toBe(false);
  });
});

describe("plans", () => {
  it.each([
    [undefined],
    [[]],
    ["text"],
    [[null]],
    [[{ path: "a.txt" }]],
    [[{ path: "a.txt", action: "update", newText: "x" }]],
    [[{ path: "a.txt", action: "move", baseHash: "x", newText: "x" }]],
    [[{ path: "n", action: "explode", newText: "x" }]],
    [[{ path: "n", action: "add", newText: 3 }]],
    [
      [
        { path: "n", action: "add", newText: "x" },
        { path: "N", action: "add", newText: "x" },
      ],
    ],
  ])("%j is refused", async (plan) => {
    expect((await call("apply_patch", { plan })).error?.code).toMatch("BAD_PARAMS");
  });

  it("a stale base is refused", async () => {
    const result = await patch({ path: "a.txt", action: "update", baseHash: hashOf("other"), newText: "x" });

    expect(result.error?.code).toBe("PATCH_REFUSED");
    expect(await readFile(join(root, "a.txt"), "utf8")).toBe("one\r\ntwo\r\n");
  });

  it("a file that changes while the user thinks stops everything", async () => {
    const tools = host(async () => {
      await writeFile(join(root, "a.txt"), "mine\n");
      return { accepted: true };
    });
    const result = await patch(
      { path: "a.txt", action: "update", baseHash: hashOf("one\r\ntwo\r\n"), newText: "x" },
      tools,
    );

    expect(result.error?.code).toBe("PATCH_REFUSED");
    expect(await readFile(join(root, "a.txt"), "utf8")).toBe("mine\n");
  });

  it("an existing file is not replaced by an added or moved one", async () => {
    expect((await patch({ ...ADD, path: "a.txt" })).ok).toBe(false);
    const move = {
      path: "a.txt",
      action: "move",
      target: "src/b.txt",
      baseHash: hashOf("one\r\ntwo\r\n"),
      newText: "x",
    } as const;
    expect((await patch(move)).ok).toBe(false);
  });

  it("a good plan is applied", async () => {
    const plan = [
      { path: "a.txt", action: "move", target: "c/d.txt", baseHash: hashOf("one\r\ntwo\r\n"), newText: "1\r\n" },
      { path: "src/b.txt", action: "delete", baseHash: hashOf("x\n") },
      { path: "n", action: "add", newText: "new\n" },
    ];
    expect((await call("apply_patch", { plan, summary: "s" })).output).toEqual({ applied: true, summary: "s" });
    expect(await readFile(join(root, "c/d.txt"), "utf8")).toBe("1\r\n");
    expect((await call("list_files", {})).output).toEqual({ files: ["c/d.txt", "n"] });
  });
});

describe("reading", () => {
  it("gives the whole text as it is, and lines joined by newlines", async () => {
    expect((await call("read_file", { path: "a.txt" })).output).toMatchObject({
      content: "one\r\ntwo\r\n",
      startLine: 1,
      endLine: 2,
    });
    expect((await call("read_file", { path: "a.txt", startLine: 1, endLine: 2 })).output).toMatchObject({
      content: "one\ntwo",
    });
  });

  it("says what is missing", async () => {
    expect((await call("read_file", { path: "nope" })).error?.code).toBe("NOT_FOUND");
    expect((await call("list_files", { root: "nope" })).error?.code).toBe("NOT_FOUND");
    expect((await call("read_file", { path: "a.txt", startLine: 9 })).error?.code).toBe("BAD_PARAMS");
    expect((await call("frobnicate", {})).error?.code).toBe("UNKNOWN_TOOL");
  });

  it("searches text, not secrets", async () => {
    const search = (query: string) =>
      host().answer({ type: "context.search", id: "s", query }, new AbortController().signal);
    expect((await search("two")).output).toEqual({ matches: [{ path: "a.txt", line: 2, text: "two" }] });
    expect((await search("KEY")).output).toEqual({ matches: [] });
    expect((await search("")).error?.code).toBe("BAD_PARAMS");
  });
});

describe("odd files", () => {
  const search = (path: string) =>
    host().answer({ type: "context.search", id: "s", query: "x", path }, new AbortController().signal);

  it("a link does not list what its end protects", async () => {
    await mkdir(join(root, ".git"));
    await writeFile(join(root, ".git/config"), "x\n");
    await symlink(".git", join(root, "link"));
    expect((await call("list_files", { root: "link" })).error?.code).toBe("PATH_REFUSED");
    expect((await search("link")).error?.code).toBe("PATH_REFUSED");
  });

  it("a search does not wait for a pipe or read a device", async () => {
    execFileSync("mkfifo", [join(root, "pipe")]);
    await symlink("/dev/zero", join(root, "zero"));
    expect((await search("pipe")).output).toEqual({ matches: [] });
    expect((await search("zero")).error?.code).toBe("PATH_REFUSED");
  });

  it("a text that does not fit into a line is refused in words", async () => {
    await writeFile(join(root, "big.txt"), "x".repeat(34_000_000));
    expect((await call("read_file", { path: "big.txt" })).error?.message).toContain("longer than");
  });
});

describe("commands", () => {
  it("are off unless listed", async () => {
    expect((await call("execute_command", { command: "echo hi" })).error?.code).toBe("COMMAND_REFUSED");
  });

  it("run without a shell when listed", async () => {
    const tools = host(undefined, ["echo"]);
    expect((await call("execute_command", { command: "echo 'a b'; rm x" }, tools)).output).toMatchObject({
      exitCode: 0,
      stdout: "a b; rm x\n",
    });
    expect((await call("execute_command", { command: "echoes" }, tools)).ok).toBe(false);
    expect((await call("execute_command", { command: "echo", cwd: "../.." }, tools)).ok).toBe(false);
  });

  it("take nothing more when they are exact", async () => {
    const tools = host(undefined, ["=echo 'a b'"]);
    expect((await call("execute_command", { command: "echo 'a b'" }, tools)).output).toMatchObject({ stdout: "a b\n" });
    expect((await call("execute_command", { command: "echo 'a b' c" }, tools)).error?.code).toBe("COMMAND_REFUSED");
  });

  it.each(["git diff --output=/tmp/made-by-git", "git -c core.pager=touch diff", "git grep -Otouch one"])(
    "take no option of git that reaches outside or runs something: %s",
    async (command) => {
      const refused = await call("execute_command", { command }, host(undefined, ["git diff", "git grep", "git"]));
      expect(refused.error?.code).toBe("COMMAND_REFUSED");
    },
  );

  it("start no program that the repository names to git", async () => {
    execFileSync("git", ["init", "-q", root]);
    execFileSync("git", ["-C", root, "config", "core.fsmonitor", "touch it-ran; false"]);
    execFileSync("git", ["-C", root, "config", "core.pager", "touch it-ran"]);
    const tools = host(undefined, ["git status"]);
    expect((await call("execute_command", { command: "git status --short" }, tools)).ok).toBe(true);
    expect(existsSync(join(root, "it-ran"))).toBe(false);
  });

  it("leave nothing running behind that would keep the answer waiting", async () => {
    const tools = host(undefined, ["sh"]);
    const answer = await call("execute_command", { command: "sh -c 'sleep 60 & echo done'" }, tools);
    expect(answer.output).toMatchObject({ exitCode: 0, stdout: "done\n" });
  });

  const LEAVING = "setsid sh -c 'echo $$ > pid; exec sleep 600' & while [ ! -s pid ]; do sleep 0.01; done; echo done";

  it("take with them what has left their group", async () => {
    await writeFile(join(root, "leave.sh"), LEAVING);
    const answer = await call("execute_command", { command: "sh leave.sh" }, host(undefined, ["=sh leave.sh"]));
    expect(answer.output).toMatchObject({ exitCode: 0, stdout: "done\n" });
    expect(await isAlive(join(root, "pid"))).toBe(false);
  });

  it("end with all that they started when the task is cancelled", async () => {
    await writeFile(join(root, "leave.sh"), `${LEAVING}; sleep 600`);
    const params = { command: "sh leave.sh" };
    const request: ToolRequest = { type: "tool.request", id: "r", taskId: "t", name: "execute_command", params };
    const cancel = new AbortController();
    const answer = host(undefined, ["=sh leave.sh"]).answer(request, cancel.signal);
    await until(() => existsSync(join(root, "pid")) && readFileSync(join(root, "pid"), "utf8") !== "");
    cancel.abort();
    expect((await answer).error?.code).toBe("CANCELLED");
    const gone = async () => !(await isAlive(join(root, "pid")));
    for (let n = 0; n < 6000 && !(await gone()); n++) {
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
    expect(await gone()).toBe(true);
  });

  it("do not see the home folder, and write only in the workspace", async () => {
    const command = `sh -c 'cat ../secret; echo x > ../made'`;
    const answer = await call("execute_command", { command }, host(undefined, [`=${command}`]));
    if (answer.output?.notConfined === undefined) {
      expect(answer.output?.stdout).toBe("");
      expect(existsSync(join(outer, "made"))).toBe(false);
    }
  });

  it("run in the root of the workspace only, and programs of the workspace are those of its root", async () => {
    await symlink(outer, join(root, "out"));
    await writeFile(join(root, "check.sh"), "#!/bin/sh\necho root\n", { mode: 0o755 });
    await writeFile(join(root, "src/check.sh"), "#!/bin/sh\necho other\n", { mode: 0o755 });
    const tools = host(undefined, ["pwd", "./check.sh"]);
    expect((await call("execute_command", { command: "pwd", cwd: "out" }, tools)).error?.code).toBe("PATH_REFUSED");
    expect((await call("execute_command", { command: "pwd", cwd: "nope" }, tools)).error?.code).toBe("NOT_FOUND");
    const inside = await call("execute_command", { command: "./check.sh", cwd: "src" }, tools);
    expect(inside.error?.code).toBe("COMMAND_REFUSED");
    const answer = await call("execute_command", { command: "./check.sh" }, tools);
    expect(answer.output).toMatchObject({ stdout: "root\n" });
  });
});
