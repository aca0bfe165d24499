// One step in full: what was asked, what was said, what ran, what came back, each with its hash. Whole events are fetched when shown.

import { copyable, costOf, count, h, money, pill, put, seconds } from "./dom.js";
import { json, python } from "./highlight.js";
import { promptOf } from "./model.js";
import { fetchFull } from "./source.js";

export async function detail(pane, run, step, steps) {
  const mark = (pane.showing = Symbol("shown"));
  try {
    const events = await fetchFull(run.id, step.ns);
    const parts = await PARTS[step.kind](
      run,
      step,
      Object.fromEntries(events.map((event) => [event.type, event])),
      steps,
    );
    if (pane.showing !== mark) return;
    put(pane, head(run, step), ...parts.flat().filter(Boolean));
    pane.scrollTop = 0;
  } catch (error) {
    if (pane.showing === mark) put(pane, h("p", { class: "problem" }, String(error.message || error)));
  }
}

function head(run, step) {
  return h(
    "div",
    { class: "pane-head" },
    h("i", { class: `dot k-${step.warned ? "tool" : step.ok ? step.kind : "bad"}` }),
    h("strong", {}, step.label),
    h(
      "span",
      { class: "muted" },
      `${step.session} · turn ${step.turn} · at ${seconds(step.t0 - run.t0) || "0"} · ${seconds(step.t1 - step.t0)}`,
    ),
  );
}

function facts(pairs) {
  const shown = pairs.filter(
    ([, value]) => value !== undefined && value !== null && value !== "" && value !== false && value !== 0,
  );
  return h(
    "dl",
    { class: "facts" },
    shown.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
  );
}

function part(title, ...content) {
  return [h("h4", {}, title), ...content.flat()];
}

function text(value) {
  return h("pre", { class: "text", tabindex: "0" }, value);
}

const PARTS = {
  async model(run, step, events) {
    const replied = events.model_replied;
    const failed = events.model_failed;
    const price = replied && (replied.cost_usd === null ? "no known price" : money(replied.cost_usd));
    return [
      facts([
        ["model", (replied || events.model_asked)?.model],
        ["tokens in", replied && count(replied.tokens_in)],
        ["tokens out", replied && count(replied.tokens_out)],
        ["cached", replied?.cached_in && count(replied.cached_in)],
        ["cost", price],
        ["latency", replied && seconds(replied.latency_s)],
        ["attempts", replied?.attempts > 1 && replied.attempts],
        ["request", replied && copyable(replied.request_hash, "request hash")],
      ]),
      failed && part("This attempt failed", text(failed.message)),
      replied && part("Reply", text(replied.text)),
      events.model_asked && part("Prompt", await prompt(run, step, events.model_asked)),
    ];
  },

  async code(run, step, events) {
    const started = events.code_started;
    const ran = events.code_ran;
    return [
      started?.reasoning && part("Reasoning", h("p", { class: "prose" }, started.reasoning)),
      started && part("Code", python(started.code)),
      ran?.fault &&
        part(
          "Fault",
          h(
            "div",
            { class: "fault" },
            h("strong", {}, ran.fault.kind || "error"),
            ran.fault.line ? ` in line ${ran.fault.line}: ` : ": ",
            ran.fault.message || "",
            ran.fault.hint ? h("p", {}, ran.fault.hint) : null,
          ),
        ),
      ran &&
        part(
          "Output",
          ran.stdout
            ? text(ran.stdout)
            : h("p", { class: "muted" }, ran.final ? "The final value." : "Nothing was printed."),
        ),
      ran?.stderr && part("Standard error", text(ran.stderr)),
      ran?.variables?.length &&
        part(
          "Variables",
          h(
            "ul",
            { class: "variables" },
            ran.variables.map((each) =>
              h("li", {}, h("code", {}, each.name), ` ${each.type ?? ""} ${each.size ?? ""}`),
            ),
          ),
        ),
      ran?.warnings?.length && part("Warnings", text(ran.warnings.join("\n"))),
      ran &&
        facts([
          ["took", seconds(ran.duration_s)],
          ["output", ran.output_hash && copyable(ran.output_hash, "output hash")],
          ["final value", ran.final_hash && copyable(ran.final_hash, "hash of the final value")],
        ]),
    ];
  },

  async tool(run, step, events, steps) {
    const call = events.host_returned;
    if (!call) return [text(step.title)];
    const child = [...run.sessions.values()].find(
      (each) =>
        each.parent?.path === step.session && each.path.split("/").pop().startsWith(`${call.turn}.${call.ordinal}`),
    );
    return [
      facts([
        ["arguments", copyable(call.args_hash, "hash of the arguments")],
        ["response", call.response_hash && copyable(call.response_hash, "hash of the response")],
        ["took", seconds(call.latency_s)],
        ["cut", call.truncated],
      ]),
      child && h("button", { class: "link", onclick: () => steps.only(child.path) }, `Show the steps of ${child.path}`),
      part("Arguments", json(call.args)),
      call.ok ? part("Result", json(call.result)) : part("Error", h("div", { class: "fault" }, call.error)),
      call.excerpts?.length &&
        part(
          `Citable text (${count(call.excerpts.length)})`,
          h(
            "ul",
            { class: "refs" },
            call.excerpts
              .slice(0, 200)
              .map((each) => h("li", {}, h("code", {}, each.ref), " ", copyable(each.hash, "hash of the text"))),
          ),
        ),
    ];
  },

  async subcall(run, step, events, steps) {
    const { subcall_started: started, subcall_ended: ended } = events;
    const query =
      started.mode === "query" ? run.steps.find((each) => each.session === step.child && each.kind === "model") : null;
    return [
      facts([
        ["status", ended ? pill(ended.status) : pill("running")],
        ["depth", String(started.depth)],
        ["tokens", ended && count(ended.tokens_in + ended.tokens_out)],
        ["cost", ended && costOf(ended.cost_usd, ended.tokens_in, ended.unpriced)],
        ["input", copyable(started.input_ref_hash, "hash of the input")],
      ]),
      query
        ? h("button", { class: "link", onclick: () => steps.show(query) }, "Show the prompt and the reply")
        : h("button", { class: "link", onclick: () => steps.only(step.child) }, `Show only the steps of ${step.child}`),
      part("Objective", text(started.objective)),
      ended && part("Result", text(ended.summary)),
      ended?.error && part("Error", h("div", { class: "fault" }, ended.error.message)),
      ended?.gaps?.length &&
        part(
          "Gaps",
          h(
            "ul",
            {},
            ended.gaps.map((gap) => h("li", {}, gap)),
          ),
        ),
    ];
  },

  async evidence(run, step, events) {
    const { cited, highlighted } = events;
    if (highlighted) return [h("p", { class: "prose" }, highlighted.text)];
    return [
      facts([
        ["where", cited.citation.ref],
        ["call", cited.citation.tool && `${cited.citation.tool} ${JSON.stringify(cited.citation.arguments)}`],
        ["text", copyable(cited.citation.excerpt_hash, "hash of the text")],
        ["signal", cited.citation.signal],
      ]),
      text(cited.citation.snippet || ""),
    ];
  },

  async gate(run, step, events) {
    const gate = events.gate_checked;
    return [
      facts([
        ["gate", gate.gate],
        ["verdict", gate.ok ? "passed" : "refused"],
      ]),
      gate.reason && text(gate.reason),
    ];
  },

  async note(run, step, events) {
    const { session, seq, at, type, sum, n, ...rest } = Object.values(events)[0];
    return [rest.text ? h("p", { class: "prose" }, rest.text) : json(rest)];
  },
};

// The prompt as the model saw it; the newest messages are open.
async function prompt(run, step, asked) {
  const earlier = run.steps.filter(
    (each) => each.kind === "model" && each.session === step.session && each.place <= step.place,
  );
  const events = await fetchFull(
    run.id,
    earlier.map((each) => each.ns[0]),
  );
  const messages = promptOf(events.filter((event) => event.type === "model_asked"));
  const fresh = messages.length - asked.messages.length;
  return h(
    "div",
    { class: "messages" },
    messages.map((message, place) => {
      const old = place < fresh;
      return h(
        "details",
        { class: `message ${message.role}`, open: !old && place >= messages.length - 2 },
        h(
          "summary",
          {},
          h("strong", {}, message.role),
          h(
            "span",
            { class: "muted" },
            `${count(message.content.length)} characters${old ? " · as before" : " · new"}`,
          ),
        ),
        h("pre", { class: "text" }, message.content),
      );
    }),
  );
}
