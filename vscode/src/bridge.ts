// The runtime as a child process: started when needed, restarted once however often that is asked for, never left behind.
// Imports no `vscode`. Every start is a new generation; whatever an earlier one still says is dropped.
import { type ChildProcessWithoutNullStreams, spawn } from "node:child_process";
import type { Environment } from "./environment";
import { LineSplitter } from "./lines";
import { type Hello, type HostMessage, MAX_LINE_BYTES, PROTOCOL_VERSION, type RuntimeMessage } from "./protocol";

export interface Launch {
  readonly command: string;
  readonly args: readonly string[];
  readonly cwd: string;
  readonly environment: Environment;
}

export interface Listener {
  message(message: RuntimeMessage): void;
  /** The runtime is gone; tasks of this generation will hear nothing more. */
  ended(reason: string): void;
  log(text: string): void;
}

export interface Timing {
  readonly helloMs: number;
  readonly killMs: number;
}

const INSTALL =
  "Its Python (setting sonde.pythonPath) needs Sonde: pip install sonde-rlm (the package called sonde is another project)";
const TIMING: Timing = { helloMs: 20_000, killMs: 5_000 };

export class Bridge {
  private child: ChildProcessWithoutNullStreams | undefined;
  private starting: Promise<Hello> | undefined;
  private restarting: Promise<Hello> | undefined;
  private stopping: Promise<void> | undefined;
  private disposed = false;
  private generation = 0;
  private lastErrors: string[] = [];
  private readonly exitHook = () => this.child?.kill("SIGKILL");

  constructor(
    private readonly launch: () => Launch,
    private readonly listener: Listener,
    private readonly timing: Timing = TIMING,
  ) {
    process.once("exit", this.exitHook);
  }

  /** The runtime's hello; starts it if it is not there, or is just going. Calls at the same time share one start. */
  start(): Promise<Hello> {
    if (this.disposed) {
      return Promise.reject(new Error("the extension has ended"));
    }
    if (this.stopping) {
      return this.stopping.then(() => this.start());
    }
    this.starting ??= this.spawn().catch((error: unknown) => {
      this.starting = undefined;
      throw error;
    });
    return this.starting;
  }

  /** A fresh runtime; calls at the same time share one restart. */
  restart(): Promise<Hello> {
    this.restarting ??= this.stop()
      .then(() => this.start())
      .finally(() => {
        this.restarting = undefined;
      });
    return this.restarting;
  }

  /** False when there is no runtime to send it to. */
  send(message: HostMessage): boolean {
    const input = this.child?.stdin;
    if (!input?.writable) {
      return false;
    }
    input.write(`${JSON.stringify(message)}\n`);
    return true;
  }

  get pid(): number | undefined {
    return this.child?.pid;
  }

  /** Ends the runtime: the end of its input asks it to, a kill makes sure. */
  stop(): Promise<void> {
    this.stopping ??= this.ended().finally(() => {
      this.stopping = undefined;
    });
    return this.stopping;
  }

  private ended(): Promise<void> {
    const child = this.child;
    if (!child || child.exitCode !== null || child.signalCode !== null) {
      this.forget(this.generation, "stopped");
      return Promise.resolve();
    }
    return new Promise((resolve) => {
      const timer = setTimeout(() => child.kill("SIGKILL"), this.timing.killMs);
      child.once("close", () => {
        clearTimeout(timer);
        resolve();
      });
      child.stdin.end();
    });
  }

  /** Ends it without a word: it did not stop when asked to. */
  kill(): void {
    this.child?.kill("SIGKILL");
  }

  dispose(): Promise<void> {
    process.removeListener("exit", this.exitHook);
    this.disposed = true;
    return this.stop();
  }

  private spawn(): Promise<Hello> {
    const generation = ++this.generation;
    const { command, args, cwd, environment } = this.launch();
    this.lastErrors = [];
    const child = spawn(command, args, { cwd, env: environment, stdio: "pipe", windowsHide: true });
    this.child = child;
    child.stdin.on("error", () => undefined); // a broken pipe is told by `close`
    child.stderr.on("data", (data: Buffer) => this.noted(data.toString("utf8")));
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        child.kill("SIGKILL");
        reject(new Error(`the runtime said nothing for ${this.timing.helloMs / 1000} s`));
      }, this.timing.helloMs);
      const settled = (act: () => void) => {
        clearTimeout(timer);
        act();
      };
      child.once("error", (error) =>
        settled(() => reject(new Error(`${command} could not be started: ${error.message}`))),
      );
      child.once("close", (code, signal) => {
        const reason = `the runtime ended (${signal ?? `exit code ${code}`})${this.explanation()}`;
        settled(() => reject(new Error(`${reason}. ${INSTALL}`)));
        this.forget(generation, reason);
      });
      const lines = new LineSplitter(
        (line) => this.heard(generation, line, (hello) => settled(() => accept(hello, resolve, reject))),
        () => this.listener.log("a line of the runtime was too long and is left out"),
        MAX_LINE_BYTES,
      );
      child.stdout.on("data", (data: Buffer) => lines.push(data));
    });
  }

  private heard(generation: number, line: string, greeted: (hello: Hello) => void): void {
    if (generation !== this.generation) {
      return;
    }
    const message = parsed(line);
    if (message === undefined) {
      this.listener.log(`not a message: ${line.slice(0, 200)}`);
    } else if (message.type === "hello") {
      greeted(message);
    } else {
      this.listener.message(message);
    }
  }

  private noted(text: string): void {
    this.lastErrors = [...this.lastErrors, ...text.split("\n").filter((line) => line.trim())].slice(-5);
    this.listener.log(text.trimEnd());
  }

  private explanation(): string {
    return this.lastErrors.length > 0 ? `: ${this.lastErrors.join(" | ").slice(-500)}` : "";
  }

  private forget(generation: number, reason: string): void {
    if (generation === this.generation && this.child) {
      this.child = undefined;
      this.starting = undefined;
      this.listener.ended(reason);
    }
  }
}

function accept(hello: Hello, resolve: (hello: Hello) => void, reject: (error: Error) => void): void {
  const major = String(hello.protocol).split(".")[0];
  if (major === PROTOCOL_VERSION.split(".")[0]) {
    resolve(hello);
  } else {
    reject(
      new Error(
        `the runtime speaks protocol ${hello.protocol}, this extension ${PROTOCOL_VERSION}; update one of them`,
      ),
    );
  }
}

function parsed(line: string): RuntimeMessage | undefined {
  try {
    const value: unknown = JSON.parse(line);
    const isMessage =
      typeof value === "object" && value !== null && typeof (value as { type?: unknown }).type === "string";
    return isMessage ? (value as RuntimeMessage) : undefined;
  } catch {
    return undefined;
  }
}
