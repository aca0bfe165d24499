// The trace as a tree view: refreshed at most ten times a second, and only where something changed.
import * as vscode from "vscode";
import { type Kind, type State, Trace, type TraceNode } from "../trace";

const REFRESH_MS = 100;
const ICONS: Record<Kind, string> = {
  task: "rocket",
  read: "eye",
  search: "search",
  subcall: "type-hierarchy-sub",
  tool: "tools",
  message: "comment",
  completion: "pass",
  citation: "link",
  error: "error",
  page: "ellipsis",
};
const STATES: Partial<Record<State, [icon: string, color: string]>> = {
  running: ["loading~spin", "progressBar.background"],
  pending: ["question", "notificationsWarningIcon.foreground"],
  partial: ["warning", "notificationsWarningIcon.foreground"],
  failed: ["error", "errorForeground"],
  cancelled: ["circle-slash", "disabledForeground"],
};

export class TraceTree implements vscode.TreeDataProvider<TraceNode> {
  readonly trace = new Trace((node) => this.touch(node));
  private readonly changes = new vscode.EventEmitter<TraceNode | undefined>();
  readonly onDidChangeTreeData = this.changes.event;
  private dirty = new Set<TraceNode | undefined>();
  private timer: NodeJS.Timeout | undefined;

  getChildren(node?: TraceNode): TraceNode[] {
    return [...this.trace.shown(node)];
  }

  getParent(node: TraceNode): TraceNode | undefined {
    return node.parent;
  }

  getTreeItem(node: TraceNode): vscode.TreeItem {
    const item = new vscode.TreeItem(node.label || node.kind, foldState(node));
    item.id = node.id;
    item.description = [elapsed(node), node.detail].filter((part) => part).join(" · ");
    item.tooltip = `${node.kind}: ${node.label}\n${node.detail}`;
    item.iconPath = icon(node);
    item.contextValue = node.state === "pending" ? "pending" : node.kind;
    if (node.citation) {
      item.command = { command: "sonde.openCitation", title: "Open", arguments: [node.citation] };
    } else if (node.state === "pending") {
      item.command = { command: "sonde.showChange", title: "Show" };
    }
    return item;
  }

  private touch(node: TraceNode | undefined): void {
    this.dirty.add(node);
    this.timer ??= setTimeout(() => this.refresh(), REFRESH_MS);
  }

  private refresh(): void {
    this.timer = undefined;
    const nodes = this.dirty.has(undefined) || this.dirty.size > 20 ? [undefined] : [...this.dirty];
    this.dirty = new Set();
    for (const node of nodes) {
      this.changes.fire(node);
    }
  }
}

function foldState(node: TraceNode): vscode.TreeItemCollapsibleState {
  if (node.children.length === 0 && node.kind !== "task" && node.kind !== "subcall") {
    return vscode.TreeItemCollapsibleState.None;
  }
  return node.kind === "page" || (node.kind === "subcall" && node.state === "ok")
    ? vscode.TreeItemCollapsibleState.Collapsed
    : vscode.TreeItemCollapsibleState.Expanded;
}

function icon(node: TraceNode): vscode.ThemeIcon {
  const [name, color] = STATES[node.state] ?? [ICONS[node.kind], undefined];
  return new vscode.ThemeIcon(name, color ? new vscode.ThemeColor(color) : undefined);
}

function elapsed(node: TraceNode): string {
  return node.endedAt && node.kind !== "completion" ? `${((node.endedAt - node.startedAt) / 1000).toFixed(2)} s` : "";
}
