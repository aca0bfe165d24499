// What the commands do. One runtime for the window, one task at a time, nothing at all in a folder that is not trusted.
import * as vscode from "vscode";
import { Bridge, type Launch } from "./bridge";
import { type Environment, filteredEnvironment } from "./environment";
import type { Keys } from "./keys";
import { withoutLinks } from "./plain";
import { Policy } from "./policy";
import type { Completion } from "./protocol";
import { readSettings, type Settings, useLargerBudget } from "./settings";
import { Tasks } from "./tasks";
import { ToolHost } from "./toolhost";
import type { Approval } from "./view/approval";
import { openCitation, type Results } from "./view/result";
import { EditorTexts } from "./view/texts";
import type { TraceTree } from "./view/tree";

export class App {
  private readonly bridge: Bridge;
  private readonly tasks: Tasks;
  private environment: Environment = {};

  constructor(
    private readonly tree: TraceTree,
    private readonly approval: Approval,
    private readonly results: Results,
    private readonly keys: Keys,
    private readonly output: vscode.OutputChannel,
    private readonly storage: vscode.Uri,
  ) {
    this.tasks = new Tasks(
      () => this.bridge,
      tree.trace,
      (text) => output.appendLine(text),
    );
    this.bridge = new Bridge(() => this.launch(), this.tasks);
  }

  async runTask(given?: unknown): Promise<Completion | undefined> {
    const root = this.root();
    if (!vscode.workspace.isTrusted || !root) {
      const why = root ? "this folder is not trusted" : "no folder is open";
      void vscode.window.showWarningMessage(`Sonde: ${why}, so nothing was started.`);
      return undefined;
    }
    if (this.tasks.active.length > 0) {
      void vscode.window.showWarningMessage("Sonde: a task is under way; cancel it first.");
      return undefined;
    }
    const prompt = typeof given === "string" ? given : await askForTask();
    return prompt ? this.run(prompt, root) : undefined;
  }

  cancel(): void {
    for (const id of this.tasks.active) {
      this.tasks.cancel(id);
    }
  }

  async restart(): Promise<void> {
    if (vscode.workspace.isTrusted) {
      await this.refreshKeys();
      await this.bridge
        .restart()
        .catch((error: Error) => void vscode.window.showErrorMessage(`Sonde: ${withoutLinks(error.message)}`));
    }
  }

  /** Settings or keys have changed: the runtime that has the old ones goes, unless it is at work. */
  async settingsChanged(): Promise<void> {
    if (this.tasks.active.length === 0) {
      await this.bridge.stop();
    }
  }

  openCitation(citation: Parameters<typeof openCitation>[1]): Promise<void> {
    return openCitation(this.root(), citation);
  }

  dispose(): Promise<void> {
    return this.bridge.dispose();
  }

  private async run(prompt: string, root: string): Promise<Completion> {
    const settings = readSettings();
    await this.refreshKeys();
    await this.running(true);
    await vscode.commands.executeCommand("sonde.trace.focus");
    const approve = this.approval.ask.bind(this.approval);
    const host = new ToolHost(root, new EditorTexts(root), new Policy(settings.allowedCommands), approve, {
      python: settings.pythonPath,
      environment: this.environment,
      read: settings.commandRead,
      write: settings.commandWrite,
    });
    const options = { workspace: root, ...(settings.limits ? { limits: settings.limits } : {}) };
    try {
      const completion = await this.tasks.run(prompt, host, options);
      await this.finished(prompt, completion);
      return completion;
    } finally {
      await this.running(false);
    }
  }

  private async finished(prompt: string, completion: Completion): Promise<void> {
    if (completion.status === "failed" && !completion.limit) {
      void vscode.window.showErrorMessage(`Sonde: ${withoutLinks(completion.summary)}`);
    } else if (completion.limit) {
      void vscode.window
        .showWarningMessage(`Sonde: ${withoutLinks(completion.limit)}`, "Use the Larger Budget")
        .then((chosen) => {
          return chosen ? useLargerBudget() : undefined;
        });
    }
    if (completion.status !== "cancelled") {
      await this.results.show(prompt, completion);
    }
  }

  private async refreshKeys(): Promise<void> {
    const { passEnvironment } = readSettings();
    this.environment = filteredEnvironment(process.env, passEnvironment, await this.keys.all());
  }

  private launch(): Launch {
    const settings = readSettings();
    const cwd = this.root() ?? this.storage.fsPath;
    return {
      command: settings.pythonPath,
      args: serveArguments(settings, this.storage),
      cwd,
      environment: this.environment,
    };
  }

  private root(): string | undefined {
    return vscode.workspace.workspaceFolders?.[0]?.uri.fsPath;
  }

  private async running(yes: boolean): Promise<void> {
    await vscode.commands.executeCommand("setContext", "sonde.running", yes);
  }

  clear(): void {
    this.tree.trace.clear();
    this.output.clear();
  }
}

function serveArguments(settings: Settings, storage: vscode.Uri): string[] {
  const runs = settings.runsDir || vscode.Uri.joinPath(storage, "runs").fsPath;
  const commands = settings.allowedCommands.flatMap((command) => ["--allow-command", command]);
  const model = settings.model ? ["--model", settings.model] : [];
  return [...settings.serveArguments, ...commands, ...model, "--runs-dir", runs];
}

function askForTask(): Thenable<string | undefined> {
  return vscode.window.showInputBox({
    title: "Sonde: what shall be done?",
    placeHolder: "Add a function that normalizes whitespace in sample.ts and update its test",
    ignoreFocusOut: true,
  });
}
