// Asks the user about a proposed change: the native diff editor shows it, a message and the title bar offer the answers.
import * as vscode from "vscode";
import { named, visible, withoutLinks } from "../plain";
import type { PlannedChange } from "../protocol";
import type { Decision, Proposal } from "../toolhost";

const BASE = "sonde-base";
const PROPOSED = "sonde-proposed";

interface Pending {
  readonly proposal: Proposal;
  readonly decide: (decision: Decision) => void;
}

export class Approval implements vscode.TextDocumentContentProvider, vscode.Disposable {
  private readonly waiting: Pending[] = [];
  private readonly acceptedTasks = new Set<string>();
  private readonly contents = new Map<string, string>();
  private readonly registrations: vscode.Disposable[];

  constructor() {
    this.registrations = [BASE, PROPOSED].map((scheme) =>
      vscode.workspace.registerTextDocumentContentProvider(scheme, this),
    );
  }

  /** The user's answer; a task that ends takes its question back. */
  async ask(proposal: Proposal, signal: AbortSignal): Promise<Decision> {
    if (this.acceptedTasks.has(proposal.taskId)) {
      return { accepted: true };
    }
    const answer = new Promise<Decision>((decide) => {
      this.waiting.push({ proposal, decide });
      signal.addEventListener("abort", () => decide({ accepted: false, reason: "the task was cancelled" }), {
        once: true,
      });
    });
    this.announce();
    await this.show();
    this.offer(proposal, answer);
    const decision = await answer;
    await this.withdraw(proposal);
    return decision;
  }

  accept(): void {
    this.waiting[0]?.decide({ accepted: true });
  }

  acceptAll(): void {
    const pending = this.waiting[0];
    if (pending) {
      this.acceptedTasks.add(pending.proposal.taskId);
      pending.decide({ accepted: true });
    }
  }

  async reject(): Promise<void> {
    const pending = this.waiting[0];
    const prompt = "Why not? The reason goes back to the model. Escape to keep looking at the change.";
    const reason =
      pending && (await vscode.window.showInputBox({ title: "Reject change", prompt, ignoreFocusOut: true }));
    if (reason !== undefined) {
      pending?.decide({ accepted: false, reason });
    }
  }

  /** Opens the change again. */
  async show(): Promise<void> {
    const proposal = this.waiting[0]?.proposal;
    const [first, ...others] = proposal?.changes ?? [];
    if (!proposal || !first) {
      return;
    }
    if (others.length === 0) {
      const [, left, right] = this.sides(proposal, first);
      await vscode.commands.executeCommand("vscode.diff", left, right, `Sonde would ${named([first])}`, {
        preview: true,
      });
    } else {
      const rows = proposal.changes.map((change) => this.sides(proposal, change));
      await vscode.commands.executeCommand("vscode.changes", `Sonde: ${named(proposal.changes)}`, rows);
    }
  }

  provideTextDocumentContent(uri: vscode.Uri): string {
    return this.contents.get(uri.toString()) ?? "";
  }

  dispose(): void {
    vscode.Disposable.from(...this.registrations).dispose();
  }

  private sides(proposal: Proposal, change: PlannedChange): [vscode.Uri, vscode.Uri, vscode.Uri] {
    const query = `request=${proposal.requestId}`;
    const before = vscode.Uri.from({ scheme: BASE, path: `/${change.path}`, query });
    const after = vscode.Uri.from({ scheme: PROPOSED, path: `/${change.target ?? change.path}`, query });
    this.contents.set(before.toString(), visible(proposal.before.get(change.path) ?? ""));
    this.contents.set(after.toString(), visible(change.newText ?? ""));
    return [after, before, after];
  }

  /** A notification with the answers as links; unlike a plain message it goes away when the answer came from elsewhere. */
  private offer(proposal: Proposal, answer: Promise<Decision>): void {
    const title = `Sonde would ${withoutLinks(named(proposal.changes))}`;
    const message =
      "[Accept](command:sonde.accept) · [Accept All](command:sonde.acceptAll) · [Reject…](command:sonde.reject)";
    void vscode.window.withProgress({ location: vscode.ProgressLocation.Notification, title }, (progress) => {
      progress.report({ message });
      return answer;
    });
  }

  private async withdraw(proposal: Proposal): Promise<void> {
    const index = this.waiting.findIndex((pending) => pending.proposal === proposal);
    this.waiting.splice(index, 1);
    this.announce();
    const tabs = vscode.window.tabGroups.all
      .flatMap((group) => group.tabs)
      .filter((tab) => shows(tab, proposal.requestId));
    await vscode.window.tabGroups.close(tabs);
    this.contents.clear();
  }

  private announce(): void {
    void vscode.commands.executeCommand("setContext", "sonde.pending", this.waiting.length > 0);
  }
}

/** Whether a tab shows the change of a request; the multi-file diff has no type of its own in this version of the API. */
function shows(tab: vscode.Tab, requestId: string): boolean {
  const input = tab.input as { modified?: vscode.Uri; textDiffs?: { modified?: vscode.Uri }[] } | undefined;
  const uris = [input?.modified, ...(input?.textDiffs ?? []).map((diff) => diff.modified)];
  return (
    uris.some((uri) => uri?.query === `request=${requestId}`) ||
    (input === undefined && tab.label.startsWith("Sonde: "))
  );
}
