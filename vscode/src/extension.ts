// Wires the parts to the editor; everything else is in them.
import * as vscode from "vscode";
import { App } from "./app";
import { Keys } from "./keys";
import { Approval } from "./view/approval";
import { Results } from "./view/result";
import { TraceTree } from "./view/tree";

let app: App | undefined;

export function activate(context: vscode.ExtensionContext): void {
  const tree = new TraceTree();
  const approval = new Approval();
  const results = new Results();
  const keys = new Keys(context.secrets);
  const output = vscode.window.createOutputChannel("Sonde");
  const running = new App(tree, approval, results, keys, output, context.globalStorageUri);
  app = running;

  const command = (name: string, act: (argument: never) => unknown) =>
    vscode.commands.registerCommand(`sonde.${name}`, act);
  context.subscriptions.push(
    approval,
    results,
    output,
    vscode.window.createTreeView("sonde.trace", { treeDataProvider: tree, showCollapseAll: true }),
    command("runTask", (prompt) => running.runTask(prompt)),
    command("cancel", () => running.cancel()),
    command("accept", () => approval.accept()),
    command("acceptAll", () => approval.acceptAll()),
    command("reject", () => approval.reject()),
    command("showChange", () => approval.show()),
    command("restart", () => running.restart()),
    command("clear", () => running.clear()),
    command("openCitation", (citation) => running.openCitation(citation)),
    command("largerBudget", () => running.runAgainLarger()),
    command("setKey", async () => (await keys.set()) && running.settingsChanged()),
    command("forgetKeys", () => keys.forget().then(() => running.settingsChanged())),
    vscode.workspace.onDidChangeConfiguration(
      (change) => change.affectsConfiguration("sonde") && running.settingsChanged(),
    ),
  );
}

export function deactivate(): Promise<void> | undefined {
  return app?.dispose();
}
