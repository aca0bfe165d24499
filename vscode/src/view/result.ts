// The result of a task as a read-only document: the summary, and citations that are links to file and lines.
import { isAbsolute, join } from "node:path";
import * as vscode from "vscode";
import { clean } from "../guard";
import type { Citation, Completion } from "../protocol";
import { spent } from "../trace";

const SCHEME = "sonde-result";
const LINK = /^- (.+):(\d+)-(\d+)$/;

export class Results implements vscode.TextDocumentContentProvider, vscode.DocumentLinkProvider, vscode.Disposable {
  private readonly texts = new Map<string, string>();
  private readonly registrations: vscode.Disposable[];

  constructor() {
    this.registrations = [
      vscode.workspace.registerTextDocumentContentProvider(SCHEME, this),
      vscode.languages.registerDocumentLinkProvider({ scheme: SCHEME }, this),
    ];
  }

  async show(prompt: string, completion: Completion): Promise<void> {
    const uri = vscode.Uri.from({ scheme: SCHEME, path: `/Sonde result ${completion.id}.txt` });
    this.texts.set(uri.toString(), rendered(prompt, completion));
    await vscode.window.showTextDocument(uri, { preview: true, preserveFocus: true });
  }

  provideTextDocumentContent(uri: vscode.Uri): string {
    return this.texts.get(uri.toString()) ?? "";
  }

  provideDocumentLinks(document: vscode.TextDocument): vscode.DocumentLink[] {
    return document
      .getText()
      .split("\n")
      .flatMap((line, number) => {
        const found = LINK.exec(line);
        return found
          ? [link(number, line, { path: found[1] ?? "", startLine: Number(found[2]), endLine: Number(found[3]) })]
          : [];
      });
  }

  dispose(): void {
    vscode.Disposable.from(...this.registrations).dispose();
  }
}

function rendered(prompt: string, completion: Completion): string {
  const citations = (completion.citations ?? []).map((c) => `- ${c.path}:${c.startLine}-${c.endLine}`);
  const sources = citations.length > 0 ? ["", "## Sources", "", ...citations] : [];
  const run = completion.runDir ? ["", `Run: ${completion.runDir}`] : [];
  const status = [completion.status, spent(completion.usage)].filter((part) => part).join(" · ");
  return [`# ${prompt.split("\n")[0]}`, "", status, "", completion.summary, ...sources, ...run, ""].join("\n");
}

function link(number: number, line: string, citation: Citation): vscode.DocumentLink {
  const range = new vscode.Range(number, 2, number, line.length);
  const target = vscode.Uri.parse(`command:sonde.openCitation?${encodeURIComponent(JSON.stringify([citation]))}`);
  return new vscode.DocumentLink(range, target);
}

/** Opens the file of a citation with its lines selected; only inside the folder. */
export async function openCitation(root: string | undefined, citation: Citation): Promise<void> {
  if (!root || isAbsolute(citation.path)) {
    return;
  }
  const uri = vscode.Uri.file(join(root, clean(citation.path)));
  const selection = new vscode.Range(Math.max(0, citation.startLine - 1), 0, Math.max(0, citation.endLine - 1), 10_000);
  await vscode.window.showTextDocument(uri, { selection, preview: false });
}
