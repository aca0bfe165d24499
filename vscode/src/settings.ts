// The settings as one value, read when a task or the runtime starts.
import * as vscode from "vscode";
import type { Limits } from "./protocol";

// The same as `sonde edit --large`.
const LARGE: Limits = {
  maxDepth: 2,
  maxSubcalls: 30,
  maxTokensPerSubcall: 8_000,
  maxTotalTokens: 200_000,
  timeoutSeconds: 300,
};

export interface Settings {
  readonly pythonPath: string;
  readonly model: string;
  readonly runsDir: string;
  readonly limits: Limits | undefined;
  readonly passEnvironment: readonly string[];
  readonly allowedCommands: readonly string[];
  readonly commandRead: readonly string[];
  readonly commandWrite: readonly string[];
  readonly serveArguments: readonly string[];
}

export function readSettings(): Settings {
  const all = vscode.workspace.getConfiguration("sonde");
  const budget = all.get<string>("budget", "default");
  return {
    pythonPath: all.get("pythonPath", "python3"),
    model: all.get("model", ""),
    runsDir: all.get("runsDir", ""),
    limits: budget === "large" ? LARGE : budget === "custom" ? all.get<Limits>("customBudget", {}) : undefined,
    passEnvironment: all.get("passEnvironment", []),
    allowedCommands: all.get("allowedCommands", []),
    commandRead: all.get("commandRead", []),
    commandWrite: all.get("commandWrite", []),
    serveArguments: all.get("serveArguments", []),
  };
}

export async function useLargerBudget(): Promise<void> {
  await vscode.workspace.getConfiguration("sonde").update("budget", "large", vscode.ConfigurationTarget.Workspace);
  void vscode.window.showInformationMessage(
    "Sonde: tasks in this folder now have the larger budget (setting sonde.budget).",
  );
}
