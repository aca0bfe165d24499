// Tasks over one bridge: every task ends with one completion here, even if the runtime dies, hangs or never answers.
import type { Bridge, Listener } from "./bridge";
import type { Cancel, Completion, Limits, NewTask, RuntimeMessage } from "./protocol";
import type { ToolHost } from "./toolhost";
import type { Trace } from "./trace";

interface Running {
  readonly host: ToolHost;
  readonly abort: AbortController;
  readonly finish: (completion: Completion) => void;
  /** The runtime knows of it; before that it waits for the runtime to start. */
  sent: boolean;
  cancelled: boolean;
  killer?: NodeJS.Timeout;
}

export interface TaskOptions {
  readonly workspace: string;
  readonly limits?: Limits;
  readonly model?: string;
  /** The id of a run to go on from. */
  readonly continueFrom?: string | undefined;
}

export class Tasks implements Listener {
  private readonly running = new Map<string, Running>();
  private count = 0;

  constructor(
    private readonly bridge: () => Bridge,
    private readonly trace: Trace,
    private readonly output: (text: string) => void,
    private readonly killMs = 5_000,
  ) {}

  /** Starts a task; the promise is its one completion. */
  run(prompt: string, host: ToolHost, options: TaskOptions): Promise<Completion> {
    const id = this.nextId();
    this.trace.begin(id, prompt);
    return new Promise((resolve) => {
      const finish = (completion: Completion) => resolve(this.completed(completion));
      this.running.set(id, { host, abort: new AbortController(), finish, sent: false, cancelled: false });
      void this.begin(id, prompt, options);
    });
  }

  private async begin(id: string, prompt: string, options: TaskOptions): Promise<void> {
    try {
      await this.bridge().start();
    } catch (error) {
      this.running.get(id)?.finish(failed(id, error instanceof Error ? error.message : String(error)));
      return;
    }
    const { model, limits, workspace, continueFrom } = options;
    const message: NewTask = {
      type: "new_task",
      id,
      prompt,
      workspace,
      ...(model ? { model } : {}),
      ...(limits ? { limits } : {}),
      ...(continueFrom ? { continueFrom } : {}),
    };
    const task = this.running.get(id); // not there when it was cancelled meanwhile
    if (task) {
      task.sent = true;
      if (!this.bridge().send(message)) {
        task.finish(failed(id, "the runtime is not there"));
      }
    }
  }

  get active(): readonly string[] {
    return [...this.running.keys()];
  }

  /** Asks the runtime to stop; kills it when it has not stopped in time. */
  cancel(id: string): void {
    const task = this.running.get(id);
    if (!task || task.cancelled) {
      return;
    }
    task.cancelled = true;
    task.abort.abort();
    if (!task.sent) {
      task.finish({ ...failed(id, "cancelled before it began"), status: "cancelled" });
      return;
    }
    const message: Cancel = { type: "cancel", id };
    this.bridge().send(message);
    task.killer = setTimeout(() => this.bridge().kill(), this.killMs);
  }

  message(message: RuntimeMessage): void {
    if (message.type === "completion") {
      this.running.get(message.id)?.finish(message);
      return;
    }
    this.trace.add(message);
    if (message.type === "context.read" || message.type === "context.search" || message.type === "tool.request") {
      void this.answer(message);
    }
  }

  ended(reason: string): void {
    for (const [id, task] of [...this.running].filter(([, each]) => each.sent)) {
      task.finish(
        task.cancelled
          ? { ...failed(id, "cancelled; the runtime had to be stopped"), status: "cancelled" }
          : failed(id, reason),
      );
    }
  }

  log(text: string): void {
    this.output(text);
  }

  private async answer(request: Parameters<ToolHost["answer"]>[0]): Promise<void> {
    const task = this.running.get(request.taskId ?? "");
    if (task) {
      const result = await task.host.answer(request, task.abort.signal);
      this.trace.answered(result);
      this.bridge().send(result);
    }
  }

  private completed(completion: Completion): Completion {
    const task = this.running.get(completion.id);
    clearTimeout(task?.killer);
    this.running.delete(completion.id);
    task?.abort.abort();
    this.trace.add(completion);
    return completion;
  }

  private nextId(): string {
    this.count += 1;
    return `t${Date.now().toString(36)}${this.count}`;
  }
}

function failed(id: string, summary: string): Completion {
  return { type: "completion", id, taskId: id, status: "failed", summary, citations: [] };
}
