// The workspace's texts as the editor has them: unsaved changes count, encodings and line ends are the editor's business.
import { join } from "node:path";
import * as vscode from "vscode";
import type { PlannedChange } from "../protocol";
import type { Texts } from "../toolhost";

export class EditorTexts implements Texts {
  constructor(private readonly root: string) {}

  async read(path: string): Promise<string | undefined> {
    const uri = this.uri(path);
    const isFile = await vscode.workspace.fs.stat(uri).then(
      (found) => (found.type & vscode.FileType.File) !== 0,
      () => false,
    );
    return isFile ? (await vscode.workspace.openTextDocument(uri)).getText() : undefined;
  }

  /** One WorkspaceEdit, so that one undo takes all of it back; then saved, so that tests and tools see it. */
  async apply(changes: readonly PlannedChange[]): Promise<boolean> {
    const edit = new vscode.WorkspaceEdit();
    for (const change of changes) {
      await this.put(edit, change);
    }
    const done = await vscode.workspace.applyEdit(edit);
    if (done) {
      await Promise.all(changes.filter((change) => change.action !== "delete").map((change) => this.save(change)));
    }
    return done;
  }

  private async put(edit: vscode.WorkspaceEdit, change: PlannedChange): Promise<void> {
    const uri = this.uri(change.path);
    const text = change.newText ?? "";
    switch (change.action) {
      case "add":
        edit.createFile(uri, { overwrite: false, contents: Buffer.from(text, "utf8") });
        break;
      case "delete":
        edit.deleteFile(uri, { ignoreIfNotExists: false });
        break;
      case "update":
        edit.replace(uri, await whole(uri), text);
        break;
      case "move":
        edit.replace(uri, await whole(uri), text);
        edit.renameFile(uri, this.uri(change.target ?? change.path), { overwrite: false });
        break;
    }
  }

  private async save(change: PlannedChange): Promise<void> {
    const document = await vscode.workspace.openTextDocument(this.uri(change.target ?? change.path));
    await document.save();
  }

  private uri(path: string): vscode.Uri {
    return vscode.Uri.file(join(this.root, path));
  }
}

async function whole(uri: vscode.Uri): Promise<vscode.Range> {
  const document = await vscode.workspace.openTextDocument(uri);
  return new vscode.Range(document.positionAt(0), document.positionAt(document.getText().length));
}
