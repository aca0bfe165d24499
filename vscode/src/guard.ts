// Keeps every path inside the folder and every change on the text it was made from. Imports no `vscode`; trusts nothing the runtime says.
import { createHash } from "node:crypto";
import { lstat, readdir, realpath } from "node:fs/promises";
import { join, relative, sep } from "node:path";
import type { PlannedChange } from "./protocol";
import { Refusal } from "./refusal";

const INVISIBLE = /[\p{Cc}\p{Cf}\p{Cs}]/u;
const RESERVED = /^(con|prn|aux|nul|com\d|lpt\d)(\..*)?$/i;

/** The sha256 of a text, as the runtime computes it. */
export function hashOf(text: string): string {
  return createHash("sha256").update(text, "utf8").digest("hex");
}

/** The path in its one spelling, relative to the root; refused where its words alone show that it is not safe. */
export function clean(path: unknown): string {
  if (typeof path !== "string" || !path.trim()) {
    throw refused(path, "is empty");
  }
  if (INVISIBLE.test(path)) {
    throw refused(path, "has invisible characters");
  }
  if (/^([/~]|[A-Za-z]:)/.test(path) || path.includes("\\")) {
    throw refused(path, "is absolute or has a backslash");
  }
  const parts = path.split("/").filter((part) => part !== "" && part !== ".");
  if (parts.includes("..")) {
    throw refused(path, "leads upwards");
  }
  if (parts.length === 0 || path.endsWith("/")) {
    throw refused(path, "names a folder, not a file");
  }
  return parts.join("/");
}

export function cleanFolder(path: unknown): string {
  const given = path ?? "";
  return given === "" || given === "." || given === "./"
    ? ""
    : clean(typeof given === "string" ? given.replace(/\/+$/, "") : given);
}

function refused(path: unknown, why: string): Refusal {
  return new Refusal(
    "PATH_REFUSED",
    `${JSON.stringify(path)} ${why}; use a path inside the workspace, such as "src/app.py"`,
  );
}

export class Guard {
  constructor(readonly root: string) {}

  /** Where a path really leads, relative to the root, undefined where there is nothing; refused when that is outside. */
  async real(path: string): Promise<string | undefined> {
    const root = await realpath(this.root);
    const real = await realpath(join(root, path)).catch(() => undefined);
    if (real === undefined) {
      return undefined;
    }
    const inside = relative(root, real);
    if (inside === ".." || inside.startsWith(`..${sep}`) || inside.startsWith("/")) {
      throw refused(path, "is a link that leads out of the workspace");
    }
    return inside.split(sep).join("/");
  }

  /** Refuses links, devices, folders, and names that differ from an existing one in case only. */
  async checkWritable(path: string): Promise<void> {
    let here = await realpath(this.root);
    for (const part of path.split("/")) {
      await checkCase(here, part, path);
      here = join(here, part);
      const found = await lstat(here).catch(() => undefined);
      if (found?.isSymbolicLink()) {
        throw refused(path, "goes through a link, and links are not written through");
      }
      if (found && !found.isDirectory() && !found.isFile()) {
        throw refused(path, "is a device, pipe or socket");
      }
    }
    const last = await lstat(here).catch(() => undefined);
    if (last?.isDirectory()) {
      throw refused(path, "is a folder");
    }
  }
}

/** Refuses names for new files that are devices or cannot exist on other systems. */
export function checkPortable(path: string): void {
  if (path.split("/").some((part) => RESERVED.test(part) || /[. ]$|[<>:"|?*]/.test(part))) {
    throw refused(path, "is not a file name that every system can hold");
  }
}

async function checkCase(folder: string, name: string, path: string): Promise<void> {
  const names = await readdir(folder).catch(() => [] as string[]);
  const twin = names.find((other) => other !== name && fold(other) === fold(name));
  if (twin !== undefined && !names.includes(name)) {
    throw refused(path, `differs in case only from ${JSON.stringify(twin)}`);
  }
}

function fold(name: string): string {
  return name.normalize("NFC").toLowerCase();
}

/** The plan as checked data; a runtime that sends anything else is refused. */
export function checkPlan(plan: unknown): PlannedChange[] {
  if (!Array.isArray(plan) || plan.length === 0) {
    throw new Refusal("BAD_PARAMS", "apply_patch needs a plan with at least one file");
  }
  const changes = plan.map(checkChange);
  const paths = changes.flatMap((change) => [change.path, ...(change.target ? [change.target] : [])]).map(fold);
  if (new Set(paths).size !== paths.length) {
    throw new Refusal("BAD_PARAMS", "the plan names one file twice");
  }
  return changes;
}

function checkChange(value: unknown): PlannedChange {
  const change = (typeof value === "object" && value !== null ? value : {}) as PlannedChange;
  const writes = change.action !== "delete";
  const known = ["add", "update", "delete", "move"].includes(change.action);
  if (
    !known ||
    (writes && typeof change.newText !== "string") ||
    (change.action === "move") !== (typeof change.target === "string")
  ) {
    throw new Refusal("BAD_PARAMS", "a change of the plan lacks its action, new text or target");
  }
  if (change.action !== "add" && typeof change.baseHash !== "string") {
    throw new Refusal("BAD_PARAMS", `${String(change.path)}: the hash of the text that was changed is missing`);
  }
  return { ...change, path: clean(change.path), ...(change.target ? { target: clean(change.target) } : {}) };
}

/** Refuses a change whose file is no longer what it was made from. */
export function checkBase(change: PlannedChange, now: string | undefined, target: string | undefined): void {
  const fresh = change.action === "add";
  if (fresh ? now !== undefined : now === undefined) {
    throw new Refusal(
      "PATCH_REFUSED",
      `${change.path} has ${fresh ? "appeared" : "gone"} since the patch was planned; nothing was changed`,
    );
  }
  if (!fresh && hashOf(now ?? "") !== change.baseHash) {
    throw new Refusal(
      "PATCH_REFUSED",
      `${change.path} has changed since it was read; nothing was changed, read it again`,
    );
  }
  if (target !== undefined) {
    throw new Refusal("PATCH_REFUSED", `${change.target} exists already; nothing was changed`);
  }
}
