// API keys in the editor's secret storage; they reach the runtime through its environment and nothing else.
import * as vscode from "vscode";
import type { Environment } from "./environment";

const NAMES = ["OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "SONDE_API_KEY"];

export class Keys {
  constructor(private readonly secrets: vscode.SecretStorage) {}

  async all(): Promise<Environment> {
    const pairs = await Promise.all(NAMES.map(async (name) => [name, await this.secrets.get(name)] as const));
    return Object.fromEntries(pairs.filter((pair): pair is [string, string] => Boolean(pair[1])));
  }

  async set(): Promise<boolean> {
    const name = await vscode.window.showQuickPick(NAMES, { title: "Which key?" });
    const value = name && (await vscode.window.showInputBox({ title: name, password: true, ignoreFocusOut: true }));
    if (name && value) {
      await this.secrets.store(name, value.trim());
    }
    return Boolean(value);
  }

  async forget(): Promise<void> {
    await Promise.all(NAMES.map((name) => this.secrets.delete(name)));
  }
}
