// What the commands do. One runtime for the window, one task at a time, nothing at all in a folder that is not trusted.
import * as vscode from "vscode";
import { Bridge, type Launch } from "./bridge";
import { type Environment, filteredEnvironment } from "./environment";
import type { Keys } from "./keys";
import { withoutLinks } from "./plain";
import { Policy } from "./policy";
import type { Completion, Limits } from "./protocol";
import { LARGE, readSettings, type Settings } from "./settings";
import { Tasks } from "./tasks";
import { ToolHost } from "./toolhost";
import type { Approval } from "./view/approval";
import { openCitation, type Results } from "./view/result";
import { EditorTexts } from "./view/texts";
import type { TraceTree } from "./view/tree";

const GO_ON = "Go On with the Larger Budget";
const SETTINGS = "Open Settings";

export class App {
  private readonly bridge: Bridge;
  private readonly tasks: Tasks;
  private environment: Environment = {};
  private lastPrompt: string | undefined;
  /** The run of the last task, if a limit ended it. */
  private limited: string | undefined;

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

  async runTask(given?: unknown, limits?: Limits, continueFrom?: string): Promise<Completion | undefined> {
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
    return prompt ? this.run(prompt, root, limits, continueFrom) : undefined;
  }

  /** The last task with the larger budget, on from where a limit ended it; no setting changes. */
  runAgainLarger(): Promise<Completion | undefined> {
    return this.runTask(this.lastPrompt, LARGE, this.limited);
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

  private async run(prompt: string, root: string, given?: Limits, continueFrom?: string): Promise<Completion> {
    const settings = readSettings();
    const limits = given ?? settings.limits;
    this.lastPrompt = prompt;
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
    try {
      const completion = await this.tasks.run(prompt, host, { workspace: root, limits, continueFrom });
      this.limited = completion.limit ? runOf(completion) : undefined;
      await this.finished(prompt, completion, limits);
      return completion;
    } finally {
      await this.running(false);
    }
  }

  private async finished(prompt: string, completion: Completion, limits: Limits): Promise<void> {
    if (completion.limit) {
      const larger = (limits.maxTotalTokens ?? 0) < (LARGE.maxTotalTokens ?? 0);
      const what = `${withoutLinks(completion.limit)} (setting sonde.budget${larger ? "" : ", sonde.customBudget"})`;
      void vscode.window
        .showWarningMessage(`Sonde: a limit ended this task: ${what}`, ...(larger ? [GO_ON, SETTINGS] : [SETTINGS]))
        .then((chosen) => {
          if (chosen === SETTINGS) {
            return vscode.commands.executeCommand("workbench.action.openSettings", "sonde.budget");
          }
          return chosen === GO_ON ? this.runTask(prompt, LARGE, runOf(completion)) : undefined;
        });
    } else if (completion.status === "failed") {
      void vscode.window.showErrorMessage(`Sonde: ${withoutLinks(completion.summary)}`);
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

/** The id of the run behind a task: the name of its folder. */
function runOf(completion: Completion): string | undefined {
  return completion.runDir?.split("/").pop();
}
