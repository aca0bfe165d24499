// Texts straight from the disk, for tests and for hosts without an editor. UTF-8 only; the extension uses the editor's documents.
import { mkdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import type { PlannedChange } from "./protocol";
import type { Texts } from "./toolhost";

export class NodeTexts implements Texts {
  constructor(private readonly root: string) {}

  async read(path: string): Promise<string | undefined> {
    return readFile(join(this.root, path), "utf8").catch(() => undefined);
  }

  async apply(changes: readonly PlannedChange[]): Promise<boolean> {
    const staged = await Promise.all(changes.map((change) => this.stage(change)));
    for (const [index, change] of changes.entries()) {
      const temporary = staged[index];
      if (temporary) {
        await rename(temporary, join(this.root, change.target ?? change.path));
      }
      if (change.action === "delete" || change.action === "move") {
        await rm(join(this.root, change.path));
      }
    }
    return true;
  }

  private async stage(change: PlannedChange): Promise<string | undefined> {
    if (typeof change.newText !== "string") {
      return undefined;
    }
    const path = join(this.root, change.target ?? change.path);
    await mkdir(dirname(path), { recursive: true });
    await writeFile(`${path}.sonde-tmp`, change.newText);
    return `${path}.sonde-tmp`;
  }
}
