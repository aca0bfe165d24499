// A run as the page knows it: a fold of slim events into sessions, steps and running totals. New events may be added at any time.

export const KINDS = {
  model: "Model",
  code: "Code",
  tool: "Tools",
  subcall: "Sub-calls",
  evidence: "Evidence",
  gate: "Gates",
  note: "Notes",
};

export class RunModel {
  constructor(id) {
    this.id = id;
    this.start = null;
    this.end = null;
    this.sessions = new Map();
    this.steps = [];
    this.totals = { tokens: 0, cached: 0, cost_usd: 0, unpriced: 0, iterations: 0, tool_calls: 0, subcalls: 0, depth: 0, failures: 0 };
    this.series = [];
    this.seen = 0;
    this.t0 = 0;
    this.t1 = 0;
    this.open = new Map();
  }

  add(events) {
    for (const event of events) this.take(event);
    this.seen += events.length;
  }

  take(event) {
    if (!this.t0) this.t0 = this.t1 = event.at;
    this.t1 = Math.max(this.t1, event.at);
    const session = this.session(event.session);
    session.t1 = Math.max(session.t1, event.at);
    const fold = FOLDS[event.type];
    if (fold) fold(this, event, session);
  }

  session(path) {
    let found = this.sessions.get(path);
    if (!found) {
      const parent = path.includes("/") ? this.session(path.slice(0, path.lastIndexOf("/"))) : null;
      const depth = parent ? parent.depth + 1 : 0;
      found = {
        path,
        parent,
        depth,
        mode: "rlm",
        objective: "",
        status: "",
        t0: this.t1,
        t1: this.t1,
        items: [],
        children: [],
      };
      this.sessions.set(path, found);
      if (parent) parent.children.push(found);
    }
    return found;
  }

  step(kind, event, fields) {
    const step = { kind, session: event.session, depth: this.session(event.session).depth, turn: event.turn ?? 0 };
    Object.assign(step, { t0: event.at, t1: event.at, ns: [event.n], ok: true, place: this.steps.length }, fields);
    this.steps.push(step);
    this.session(event.session).items.push(step);
    return step;
  }

  more(step, event, fields) {
    step.ns.push(event.n);
    step.t1 = event.at;
    Object.assign(step, fields);
  }

  count(event, changes) {
    for (const [name, value] of Object.entries(changes)) this.totals[name] += value;
    const { tokens, cost_usd, iterations, tool_calls, subcalls } = this.totals;
    this.series.push({ at: event.at, tokens, cost_usd, iterations, tool_calls, subcalls });
  }

  // The seconds that count: without waits for a person and the time between a crash and a resume.
  get elapsed() {
    return this.end ? this.end.elapsed_s : this.t1 - this.t0;
  }

  get budget() {
    return this.start?.budget || {};
  }

  get status() {
    return this.end ? this.end.status : this.running ? "running" : "interrupted";
  }
}

const key = (name, event) => `${name} ${event.session} ${event.turn} ${event.ordinal ?? event.block ?? ""}`;

const FOLDS = {
  run_started(run, event, session) {
    run.start = event;
    session.objective = event.objective;
  },
  run_resumed(run, event) {
    run.step("note", event, { title: `Resumed after ${event.elapsed_s.toFixed(1)} s`, label: "resumed" });
  },
  subcall_started(run, event, session) {
    Object.assign(session, { mode: event.mode, objective: event.objective, t0: event.at, status: "running" });
    const title = event.objective;
    session.step = run.step("subcall", event, {
      title,
      label: event.mode === "query" ? "query" : "child",
      child: event.session,
    });
    run.totals.depth = Math.max(run.totals.depth, event.depth);
    run.count(event, { subcalls: 1 });
  },
  subcall_ended(run, event, session) {
    session.status = event.status;
    if (session.step) run.more(session.step, event, { ok: event.status === "succeeded", answer: event.summary });
  },
  turn_started(run, event, session) {
    session.turns = (session.turns || 0) + 1;
    run.count(event, { iterations: 1 });
    if (event.forced) run.step("note", event, { title: `Told to finish: ${event.forced}`, label: "finish" });
  },
  model_asked(run, event) {
    run.open.set(
      key("model", event),
      run.step("model", event, { title: "waiting for the reply…", label: event.model, waiting: true }),
    );
  },
  model_replied(run, event) {
    const fields = {
      title: event.text,
      tokens: event.tokens_in + event.tokens_out,
      cost: event.cost_usd,
      waiting: false,
    };
    const step = run.open.get(key("model", event)) || run.step("model", event, { label: event.model });
    if (step.t0 === event.at && event.latency_s) step.t0 = event.at - event.latency_s;
    run.more(step, event, fields);
    run.count(event, {
      tokens: fields.tokens,
      cached: event.cached_in || 0,
      cost_usd: event.cost_usd || 0,
      unpriced: event.cost_usd === null ? 1 : 0,
    });
  },
  model_failed(run, event) {
    run.step("model", event, { title: event.message, label: `attempt ${event.attempt} failed`, ok: false });
    run.count(event, { tokens: event.tokens_in, failures: 1 });
  },
  code_started(run, event) {
    run.open.set(key("code", event), run.step("code", event, { title: event.code, label: "python", waiting: true }));
  },
  code_ran(run, event) {
    const step = run.open.get(key("code", event)) || run.step("code", event, { title: "", label: "python" });
    const fault = event.fault ? `${event.fault.kind}: ${event.fault.message}` : "";
    run.more(step, event, { ok: event.ok, waiting: false, fault, final: event.final, output: event.stdout });
  },
  host_returned(run, event) {
    const title = event.ok ? `${event.args} → ${event.result ?? ""}` : event.error;
    const step = run.step("tool", event, {
      title,
      label: event.name,
      ok: event.ok,
      shown: event.excerpts,
      host: !event.tool,
    });
    step.t0 = event.at - (event.latency_s || 0);
    if (event.tool) run.count(event, { tool_calls: 1 });
  },
  tool_intercepted(run, event) {
    run.step("note", event, { title: event.names.join(", "), label: `${event.count} calls lifted out` });
  },
  tool_exec_error(run, event) {
    run.step("tool", event, { title: event.message, label: event.name, ok: false });
  },
  cited(run, event) {
    run.step("evidence", event, { title: event.citation.ref || event.citation.path, label: "cited" });
  },
  highlighted(run, event) {
    run.step("evidence", event, { title: event.text, label: "highlight" });
  },
  gate_checked(run, event) {
    run.step("gate", event, { title: event.reason || "passed", label: event.gate, ok: event.ok });
  },
  compacted(run, event) {
    const title = `${event.turns} turns became lines: ${event.tokens_before} → ${event.tokens_after} tokens`;
    run.step("note", event, { title, label: "compacted" });
  },
  noted(run, event) {
    run.step("note", event, { title: event.text, label: event.level, warned: event.level === "warning" });
  },
  status_changed(run, event) {
    if (event.status !== "initialized")
      run.step("note", event, { title: event.error?.message || event.status, label: "status" });
  },
  run_ended(run, event, session) {
    run.end = event;
    session.status = event.status;
  },
  wrote_back(run, event) {
    const title = `${event.succeeded} annotations written, ${event.failed} not`;
    run.step("note", event, { title, label: "write-back", ok: event.status === "succeeded" });
  },
};

// The messages of a request, put together from those of the session's earlier requests: each event holds only what is new.
export function promptOf(asked) {
  let messages = [];
  for (const event of asked) messages = [...messages.slice(0, event.kept), ...event.messages];
  return messages;
}
