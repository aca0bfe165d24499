// The settings as one value, read when a task or the runtime starts.
import * as vscode from "vscode";
import type { Limits } from "./protocol";

// The same as `sonde edit`, and as `sonde edit --large`.
const STANDARD: Limits = {
  maxDepth: 2,
  maxSubcalls: 30,
  maxTokensPerSubcall: 8_000,
  maxTotalTokens: 200_000,
  timeoutSeconds: 600,
};
export const LARGE: Limits = {
  maxDepth: 2,
  maxSubcalls: 90,
  maxTokensPerSubcall: 16_000,
  maxTotalTokens: 1_000_000,
  timeoutSeconds: 1_800,
};

export interface Settings {
  readonly pythonPath: string;
  readonly model: string;
  readonly runsDir: string;
  readonly limits: Limits;
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
    limits:
      budget === "large"
        ? LARGE
        : budget === "custom"
          ? { ...STANDARD, ...all.get<Limits>("customBudget", {}) }
          : STANDARD,
    passEnvironment: all.get("passEnvironment", []),
    allowedCommands: all.get("allowedCommands", []),
    commandRead: all.get("commandRead", []),
    commandWrite: all.get("commandWrite", []),
    serveArguments: all.get("serveArguments", []),
  };
}
