// The trace of tasks as a tree that grows with the events. Imports no `vscode`, so it can be measured without one.
import type { Citation, Limits, RuntimeMessage, ToolResult, Usage } from "./protocol";

export type Kind =
  | "task"
  | "read"
  | "search"
  | "subcall"
  | "tool"
  | "message"
  | "completion"
  | "citation"
  | "error"
  | "page";
export type State = "running" | "pending" | "ok" | "partial" | "failed" | "cancelled";

export interface TraceNode {
  readonly id: string;
  readonly kind: Kind;
  readonly parent: TraceNode | undefined;
  readonly children: TraceNode[];
  readonly startedAt: number;
  label: string;
  detail: string;
  state: State;
  endedAt?: number;
  citation?: Citation;
}

/** Children shown at once; more of them are put into pages, so that a refresh costs the same however long the trace is. */
export const PAGE = 200;

export class Trace {
  readonly roots: TraceNode[] = [];
  private readonly nodes = new Map<string, TraceNode>();
  private readonly pages = new Map<string, TraceNode>();
  private readonly parts = new Map<string, string>();

  constructor(
    private readonly changed: (node: TraceNode | undefined) => void = () => undefined,
    private readonly now: () => number = Date.now,
  ) {}

  /** A new task, above the earlier ones. */
  begin(taskId: string, prompt: string): void {
    this.roots.unshift(this.node(taskId, "task", undefined, firstLine(prompt), "running"));
    this.changed(undefined);
  }

  clear(): void {
    this.roots.length = 0;
    this.nodes.clear();
    this.pages.clear();
    this.parts.clear();
    this.changed(undefined);
  }

  get(id: string): TraceNode | undefined {
    return this.nodes.get(id);
  }

  get size(): number {
    return this.nodes.size;
  }

  /** What the runtime said. */
  add(message: RuntimeMessage): void {
    switch (message.type) {
      case "context.read":
        this.read(message);
        break;
      case "context.search":
        this.append(message.id, "search", message, `search ${JSON.stringify(message.query)}`, message.path ?? "");
        break;
      case "tool.request":
        this.request(message, message.params ?? {});
        break;
      case "subcall.start":
        this.append(message.id, "subcall", message, firstLine(message.intent), message.scope ?? "");
        break;
      case "subcall.end":
        this.end(message.id, "ok", joined(firstLine(message.summary), spent(message.usage)), message.citations ?? []);
        break;
      case "assistant.message":
        this.say(message.id, message, message.content, message.partial === true);
        break;
      case "progress":
        this.progress(message.id, message.note ?? "", spent(message.usage, message.limits));
        break;
      case "error":
        this.fail(message);
        break;
      case "completion":
        this.complete(message.id, message);
        break;
      case "hello":
        break;
    }
  }

  /** What the host answered. */
  answered(result: ToolResult): void {
    const output = result.output ?? {};
    const cancelled = result.error?.code === "CANCELLED";
    const rejected = output.applied === false;
    const state = result.ok && !rejected ? "ok" : cancelled ? "cancelled" : "failed";
    this.end(
      result.id,
      state,
      result.error?.message ?? (typeof output.summary === "string" ? firstLine(output.summary) : ""),
      [],
    );
  }

  /** The children as the view shows them: all, or the last ones after pages of earlier ones. */
  shown(node?: TraceNode): readonly TraceNode[] {
    const all = node ? node.children : this.roots;
    if (node?.kind === "page" || all.length <= PAGE) {
      return all;
    }
    const full = Math.floor((all.length - 1) / PAGE);
    const pages = Array.from({ length: full }, (_, index) => this.page(node, all, index));
    return [...pages, ...all.slice(full * PAGE)];
  }

  private page(node: TraceNode | undefined, all: readonly TraceNode[], index: number): TraceNode {
    const id = `${node?.id ?? "root"}#${index}`;
    const known = this.pages.get(id);
    if (known) {
      return known;
    }
    const children = all.slice(index * PAGE, (index + 1) * PAGE);
    const label = `${index * PAGE + 1} to ${(index + 1) * PAGE}`;
    const page: TraceNode = { id, kind: "page", parent: node, children, startedAt: 0, label, detail: "", state: "ok" };
    this.pages.set(id, page);
    return page;
  }

  private node(
    id: string,
    kind: Kind,
    parent: TraceNode | undefined,
    label: string,
    state: State,
    detail = "",
  ): TraceNode {
    const node: TraceNode = { id, kind, parent, children: [], startedAt: this.now(), label, detail, state };
    this.nodes.set(id, node);
    return node;
  }

  private append(id: string, kind: Kind, where: Where, label: string, detail: string, state: State = "running"): void {
    const parent = this.nodes.get(where.parentId ?? "") ?? this.nodes.get(where.taskId ?? "");
    const node = this.node(id, kind, parent, label, state, detail);
    (parent?.children ?? this.roots).push(node);
    this.changed(parent);
  }

  /** A read; one click opens what was read. */
  private read(message: Extract<RuntimeMessage, { type: "context.read" }>): void {
    this.append(message.id, "read", message, `read ${message.path}${range(message)}`, message.rationale ?? "");
    const node = this.nodes.get(message.id);
    const startLine = message.startLine ?? 1;
    if (node) {
      node.citation = { path: message.path, startLine, endLine: message.endLine ?? startLine };
    }
  }

  private request(message: Extract<RuntimeMessage, { type: "tool.request" }>, params: Record<string, unknown>): void {
    const shown = params.path ?? params.command ?? params.root ?? "";
    const detail = typeof params.summary === "string" ? firstLine(params.summary) : "";
    const state = message.approval ? "pending" : "running";
    this.append(message.id, "tool", message, `${message.name} ${String(shown)}`.trim(), detail, state);
  }

  private fail(message: Extract<RuntimeMessage, { type: "error" }>): void {
    const id = `error.${message.seq ?? this.size}`;
    this.append(id, "error", message, firstLine(message.error), message.code ?? "", "failed");
  }

  private end(id: string, state: State, detail: string, citations: readonly Citation[]): void {
    const node = this.nodes.get(id);
    if (node) {
      node.state = state;
      node.endedAt = this.now();
      node.detail = detail || node.detail;
      this.cite(node, citations);
      this.changed(node);
    }
  }

  private say(id: string, where: Where, content: string, partial: boolean): void {
    const text = (partial ? (this.parts.get(id) ?? "") : "") + content;
    this.parts.set(id, text);
    const node = this.nodes.get(id);
    if (node) {
      node.label = firstLine(text);
      this.changed(node);
    } else {
      this.append(id, "message", where, firstLine(text), "", "ok");
    }
  }

  private progress(taskId: string, note: string, used: string): void {
    const node = this.nodes.get(taskId);
    if (node) {
      node.detail = joined(note, used);
      this.changed(node);
    }
  }

  private complete(taskId: string, done: Completion): void {
    const task = this.nodes.get(taskId);
    const state = stateOf(done.status);
    const node = this.node(`${taskId}.completion`, "completion", task, firstLine(done.summary), state, done.status);
    node.endedAt = this.now();
    (task?.children ?? this.roots).push(node);
    this.cite(node, done.citations ?? []);
    this.close(task, state);
    this.end(taskId, state, joined(done.status, spent(done.usage)), []);
  }

  /** Nothing of an ended task stays as if it were under way. */
  private close(node: TraceNode | undefined, state: State): void {
    for (const child of node?.children ?? []) {
      if (child.state === "running" || child.state === "pending") {
        child.state = state === "ok" ? "ok" : "cancelled";
        child.endedAt = this.now();
      }
      this.close(child, state);
    }
  }

  private cite(node: TraceNode, citations: readonly Citation[]): void {
    for (const [index, citation] of citations.entries()) {
      const label = `${citation.path}:${citation.startLine}-${citation.endLine}`;
      const child = this.node(`${node.id}.c${index}`, "citation", node, label, "ok", citation.snippet ?? "");
      child.citation = citation;
      node.children.push(child);
    }
  }
}

interface Where {
  readonly parentId?: string | null;
  readonly taskId?: string | null;
}

type Completion = Extract<RuntimeMessage, { type: "completion" }>;

function stateOf(status: Completion["status"]): State {
  return status === "succeeded" ? "ok" : status === "partial" || status === "cancelled" ? status : "failed";
}

function range(read: { startLine?: number | null; endLine?: number | null }): string {
  return read.startLine || read.endLine ? `:${read.startLine ?? 1}-${read.endLine ?? ""}` : "";
}

/** The first line that says something; a code fence does not. */
function firstLine(text: string): string {
  const line = text.split("\n").find((each) => each.trim() && !each.trim().startsWith("```"));
  return (line ?? "").trim().slice(0, 160);
}

function joined(...parts: readonly string[]): string {
  return parts.filter((part) => part).join(" · ");
}

/** What was spent, for people: `1,234 tokens · $0.002 · 3.2 s`, with limits `1,234 of 200,000 tokens · 3.2 of 600 s`. */
export function spent(usage: Usage | null | undefined, limits?: Limits | null): string {
  if (!usage) {
    return "";
  }
  const of = (limit: number | null | undefined) => (limit ? ` of ${limit.toLocaleString("en")}` : "");
  const unknown = usage.tokens ? "cost unknown" : "";
  const cost = typeof usage.costUsd === "number" ? `$${usage.costUsd.toFixed(4)}` : unknown;
  return joined(
    `${(usage.tokens ?? 0).toLocaleString("en")}${of(limits?.maxTotalTokens)} tokens`,
    cost,
    usage.seconds || limits?.timeoutSeconds ? `${(usage.seconds ?? 0).toFixed(1)}${of(limits?.timeoutSeconds)} s` : "",
  );
}
