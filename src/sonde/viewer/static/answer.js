// The question, the answer with its citations, and beside each claim the source text that proves it.

import { copyable, costOf, count, h, many, pill, put, seconds, short } from "./dom.js";
import { blocks, json } from "./highlight.js";
import { fetchExcerpts, offline } from "./source.js";

const CARD_LINES = 400;
const NO_LANDLOCK = "this run did without landlock";
const STATES = {
  verified: ["verified", `Read again ${offline ? "when this page was exported" : "just now"}: this text has the cited hash`],
  changed: ["changed since", "The source has another text now; a text shown here is the recorded one and has the cited hash"],
  recorded: ["as recorded", "The source was not read again; this text is from the recording and has the cited hash"],
  refused: ["not read", "This run was not made here, so a source outside of the working folder is not read; --trust-run reads it"],
  missing: ["cannot be checked", "Neither the source nor the recording has the text of this hash here"],
};

function stateOf({ state, brought_in }) {
  const brought = `Read in the run's own folder ${brought_in}: whoever made the run made this text too`;
  return brought_in ? [STATES[state][0], brought] : STATES[state];
}

export class Answer {
  constructor(run, jump) {
    this.run = run;
    this.jump = jump;
    this.excerpts = [];
    this.cards = new Map();
    this.head = h("section", { class: "question" });
    this.tiles = h("div", { class: "tiles" });
    this.body = h("section", { class: "card answer", "aria-label": "Answer" });
    this.node = h("div", {}, this.head, this.tiles, this.body);
  }

  refresh() {
    this.paintHead();
    this.paintTiles();
    this.paintBody();
  }

  async load() {
    this.excerpts = await fetchExcerpts(this.run.id).catch(() => []);
    this.refresh();
  }

  paintHead() {
    const { start, status, end } = this.run;
    if (!start) return;
    const facts = [
      start.run_type,
      start.model || "no model",
      start.mode === "code" ? `code, ${start.profile}` : start.mode,
      new Date(start.at * 1000).toISOString().slice(0, 16).replace("T", " "),
    ];
    // What happened is the better title of an incident than our words for the task.
    const happened = end?.output?.incident_summary;
    const title = typeof happened === "string" && happened ? happened : start.objective;
    const heading = h("h1", { class: title.length > 280 ? "long" : "" }, title);
    if (title.length > 280) heading.addEventListener("click", () => heading.classList.toggle("long"));
    put(
      this.head,
      h(
        "div",
        { class: "meta" },
        pill(status),
        facts.map((fact) => h("span", {}, fact)),
        start.layers?.includes("unsafe") || start.settings?.unsafe
          ? h("span", { class: "pill failed" }, "unsafe")
          : null,
        start.layers?.includes("without landlock") || this.run.end?.gaps?.some((gap) => gap.startsWith(NO_LANDLOCK))
          ? h("span", { class: "pill partial" }, "without landlock")
          : null,
        this.run.end?.unproved ? h("span", { class: "pill partial" }, "unproved") : null,
      ),
      heading,
    );
  }

  paintTiles() {
    const { totals, start } = this.run;
    if (!start) return;
    const proved = this.excerpts.filter((each) => each.state === "verified" && !each.fallback).length;
    const took = this.run.elapsed;
    const waited = this.run.t1 - this.run.t0 - took;
    const found = this.excerpts.length && this.excerpts.every((each) => each.fallback);
    const checked = `cited, ${proved} verified ${offline ? "when exported" : "now"}`;
    const spent = start.model || totals.cost_usd ? costOf(totals.cost_usd, totals.tokens, totals.unpriced) : "—";
    const rows = [
      [seconds(took), waited > 1 ? `time, ${seconds(took + waited)} with waits` : "time"],
      [spent, "cost"],
      [count(totals.tokens), totals.cached ? `tokens, ${count(totals.cached)} of them cached` : "tokens"],
      [count(totals.iterations), totals.iterations === 1 ? "turn" : "turns"],
      [count(totals.subcalls), totals.depth ? `sub-calls, depth ${totals.depth}` : "sub-calls"],
      [count(totals.tool_calls), "tool calls"],
      [
        count(this.excerpts.length),
        found ? "passages, no claims" : this.excerpts.every((each) => each.state === "recorded") ? "cited" : checked,
      ],
    ];
    put(
      this.tiles,
      ...rows.map(([value, name]) => h("div", { class: "tile" }, h("b", {}, value), h("span", {}, name))),
    );
  }

  paintBody() {
    const { end } = this.run;
    if (!end) {
      const last = this.run.steps[this.run.steps.length - 1];
      const doing = this.run.running
        ? `The run goes on: ${last ? short(`${last.label} ${last.title}`, 120) : "starting"}`
        : `The run was cut off before it answered. Go on with: sonde resume ${this.run.id}`;
      put(this.body, h("p", { class: this.run.running ? "going" : "muted" }, doing));
      return;
    }
    this.numbers = new Map(this.excerpts.map((each, place) => [each.ref, place + 1]));
    this.cards.clear();
    const parts = [];
    if (end.error)
      parts.push(
        h("div", { class: "problem" }, h("strong", {}, end.error.code || "error"), " ", end.error.message || ""),
      );
    parts.push(
      h(
        "div",
        { class: "card-head" },
        h("h2", {}, end.status === "succeeded" || end.error?.code === "WRITEBACK_FAILED" ? "Answer" : "Best effort"),
        h(
          "span",
          { class: "muted" },
          end.annotator_kind === "LLM"
            ? "judged by a model"
            : end.annotator_kind === "HUMAN"
              ? "decided by a person"
              : "made by code, no model's judgement",
        ),
        h("div", { class: "grow" }),
        end.output_hash ? copyable(end.output_hash, "hash of the output") : null,
      ),
    );
    parts.push(...this.claims(end.output));
    if (end.gaps?.length)
      parts.push(
        h(
          "div",
          { class: "gaps" },
          h("h3", {}, many(end.gaps.length, "gap")),
          h(
            "ul",
            {},
            end.gaps.map((gap) => h("li", {}, gap)),
          ),
        ),
      );
    put(this.body, ...parts);
  }

  claims(output) {
    const text = answerText(output);
    const data = text === null ? null : parsed(text);
    if (data !== null) return [...this.structured(data), ...this.rest(new Set())];
    if (text === null) return [...this.structured(output), ...this.rest(new Set())];
    const done = new Set();
    const rows = blocks(text, (ref) => this.chip(ref)).map((block) => {
      const cited = this.citedIn(block.text).filter((each) => !done.has(each.ref));
      for (const each of cited) done.add(each.ref);
      return h(
        "div",
        { class: "claim" },
        h("div", { class: "prose" }, block.node),
        h(
          "div",
          { class: "proof" },
          cited.map((each) => this.card(each)),
        ),
      );
    });
    return [...rows, ...this.rest(done)];
  }

  // A report: every field by name, and references as links to the text that they point at.
  structured(output) {
    const shown =
      output && typeof output === "object" && !Array.isArray(output) && "value" in output && "citations" in output
        ? output.value
        : output;
    const raw = h("details", { class: "raw" }, h("summary", {}, "as JSON"), json(output));
    const headline = headlineOf(output);
    if (!headline) return [h("div", { class: "claim wide report" }, this.tree(shown)), raw];
    return [
      h("div", { class: "claim wide report" }, headline),
      h("details", { class: "raw" }, h("summary", {}, "every field"), h("div", { class: "report" }, this.tree(shown))),
      raw,
    ];
  }

  tree(value) {
    if (value === null || value === undefined || value === "") return h("span", { class: "muted" }, "none");
    if (typeof value === "string")
      return h(
        "div",
        { class: "prose" },
        blocks(value, (ref) => this.chip(ref)).map((block) => block.node),
      );
    if (typeof value !== "object") return h("span", {}, String(value));
    if (typeof value.excerpt_hash === "string") return this.chip(value.ref) || h("code", {}, value.ref || "");
    if (!Array.isArray(value))
      return h(
        "dl",
        {},
        Object.entries(value).map(([name, item]) =>
          h("div", {}, h("dt", {}, name.replace(/_/g, " ")), h("dd", {}, this.tree(item))),
        ),
      );
    if (!value.length) return h("span", { class: "muted" }, "none");
    const columns = columnsOf(value);
    if (columns)
      return h(
        "div",
        { class: "scroll" },
        h(
          "table",
          { class: "values" },
          h("thead", {}, h("tr", {}, columns.map((name) => h("th", { scope: "col" }, name.replace(/_/g, " "))))),
          h(
            "tbody",
            {},
            value.map((row) => h("tr", {}, columns.map((name) => h("td", {}, this.tree(row[name]))))),
          ),
        ),
      );
    const pointers = value.every((item) => item && typeof item.excerpt_hash === "string");
    return pointers
      ? h(
          "div",
          { class: "pointers" },
          value.map((item) => this.tree(item)),
        )
      : h(
          "ul",
          {},
          value.map((item) => h("li", {}, this.tree(item))),
        );
  }

  rest(done) {
    const left = this.excerpts.filter((each) => !done.has(each.ref));
    if (!left.length) return [];
    return [
      h(
        "div",
        { class: "also" },
        h("h3", {}, done.size ? "Also cited" : "Cited"),
        h(
          "div",
          { class: "cards" },
          left.map((each) => this.card(each)),
        ),
      ),
    ];
  }

  citedIn(text) {
    return this.excerpts.filter((each) =>
      [...text.matchAll(/\[([^\][\n]{1,300})\]/g)].some((match) => this.find(match[1])?.includes(each)),
    );
  }

  // The excerpts that a bracketed text means: a reference, several of them, or the number of one.
  find(text) {
    let path = ""; // of the part before: `app.log:76,175` names two lines of one file
    const found = text.split(/[,;]\s*/).map((part) => {
      const alone = part.trim().match(/^\d+(?:\s*[-–]\s*\d+)?$/);
      if (alone && !path) return this.excerpts[Number(alone[0]) - 1];
      const place = (alone ? `${path}:${alone[0]}` : part.trim()).match(/^(.+?):(\d+)(?:\s*[-–]\s*(\d+))?$/);
      path = place ? place[1].trim() : path;
      const [from, to] = place ? [Number(place[2]), Number(place[3] || place[2])] : [0, 0];
      return (
        this.excerpts.find(
          (each) =>
            each.ref === part.trim() ||
            (place && each.ref === `${path}:${from}-${to}`) ||
            (place && each.path === path && each.start_line === from && each.end_line === to),
        ) ||
        (alone && this.excerpts.find((each) => each.path === path && each.start_line <= from && each.end_line >= to))
      );
    });
    return found.every(Boolean) && found.length ? found : null;
  }

  chip(text) {
    const found = this.find(text);
    if (!found) return null;
    return h(
      "span",
      {},
      found.map((each) =>
        h(
          "button",
          {
            class: `cite ${each.state}`,
            title: `${each.ref}\n${stateOf(each)[1]}`,
            onclick: () => this.point(each),
          },
          String(this.numbers.get(each.ref)),
        ),
      ),
    );
  }

  card(excerpt) {
    const [state, checked] = stateOf(excerpt);
    const own = excerpt.call && excerpt.state === "verified"; // nothing but the recording holds what a tool returned
    const why = own ? "What the tool returned in this run of yours, with the cited hash" : checked;
    const plain = excerpt.fallback && excerpt.state === "verified"; // there is no claim that it could verify
    const word = plain ? "text as cited" : state;
    const lines = (excerpt.path ? excerpt.text : indented(excerpt.text)).split("\n");
    const card = h(
      "figure",
      { class: `excerpt ${excerpt.state} ${excerpt.path ? "" : "data"}`, tabindex: "-1" },
      h(
        "figcaption",
        {},
        h("b", { class: `cite ${excerpt.state}` }, String(this.excerpts.indexOf(excerpt) + 1)),
        h("span", { class: "where", title: excerpt.ref }, excerpt.path || excerpt.call || excerpt.ref),
        excerpt.path ? h("span", { class: "muted" }, `${excerpt.start_line}–${excerpt.end_line}`) : null,
        excerpt.brought_in ? h("span", { class: "muted" }, `in the run's folder ${excerpt.brought_in}`) : null,
        h("span", { class: `badge ${plain ? "" : excerpt.state}`, title: why }, word),
        excerpt.fallback
          ? h(
              "span",
              { class: "badge changed", title: "Chosen by a rule, not by a claim; it proves nothing" },
              "fallback",
            )
          : null,
      ),
      excerpt.text
        ? h(
            "pre",
            {
              class: "lines",
              tabindex: "0",
              style: { "--digits": `${Math.max(4, String((excerpt.start_line || 0) + lines.length).length)}ch` },
            },
            lines
              .slice(0, CARD_LINES)
              .map((line, place) =>
                h(
                  "span",
                  { class: "line", "data-n": excerpt.start_line ? excerpt.start_line + place : "" },
                  `${line}\n`,
                ),
              ),
          )
        : h("p", { class: "muted unread" }, `${why}.`),
      !excerpt.text && excerpt.snippet
        ? h("p", { class: "muted unread" }, `Noted when it was cited, unchecked: ${excerpt.snippet}`)
        : null,
      remarks(excerpt, lines).map((remark) => h("p", { class: "muted unread" }, remark)),
      h(
        "div",
        { class: "under" },
        excerpt.excerpt_hash ? copyable(excerpt.excerpt_hash, "hash of the text") : null,
        excerpt.seen_at !== null && excerpt.seen_at !== undefined
          ? h("button", { class: "link", onclick: () => this.jump(excerpt.seen_at) }, "where the run read it")
          : null,
      ),
    );
    this.cards.set(excerpt.ref, card);
    return card;
  }

  point(excerpt) {
    const card = this.cards.get(excerpt.ref);
    if (!card) return;
    card.scrollIntoView({ block: "nearest", behavior: "smooth" });
    for (const each of this.cards.values()) each.classList.toggle("on", each === card);
    card.focus({ preventScroll: true });
  }
}

// What the report of an investigation says, in sentences, and what to do; null for other data.
function headlineOf(output) {
  if (!output || typeof output !== "object") return null;
  const { primary_label: label, overall_verdict: verdict, incident_summary: incident } = output;
  const title = label || verdict || (incident && "incident");
  if (typeof title !== "string" || !("schema_version" in output)) return null;
  const rows = (name) => (Array.isArray(output[name]) ? output[name].filter(Boolean) : []);
  const deciding = rows("controls_evaluated").filter((each) => each.pass_fail === "fail");
  const said = output.summary || incident || deciding.map((each) => `${each.control_id}: ${each.rationale}`).join("; ");
  const todo = [
    ...rows("remediation"),
    ...deciding.map((each) => each.remediation).filter(Boolean),
    ...rows("recommended_actions").map((each) => `${each.priority}: ${each.action}`),
  ];
  const sure = output.confidence ?? output.overall_confidence;
  return h(
    "div",
    {},
    h(
      "p",
      { class: "headline" },
      h("b", {}, title.charAt(0).toUpperCase() + title.slice(1).replace(/_/g, " ")),
      typeof sure === "number" ? ` (confidence ${sure.toFixed(2)})` : "",
      said ? `: ${short(said, 2000)}` : "",
    ),
    todo.length ? h("ul", {}, todo.slice(0, 10).map((each) => h("li", {}, short(each, 500)))) : null,
  );
}

// The object or list that an answer is, written as JSON; null for words.
function parsed(text) {
  if (!/^\s*[[{]/.test(text)) return null;
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

// The columns of a list of flat objects with the same few fields; null if it is no table.
function columnsOf(rows) {
  if (rows.length < 2 || !rows.every((row) => row && typeof row === "object" && !Array.isArray(row))) return null;
  if (rows.some((row) => typeof row.excerpt_hash === "string")) return null;
  const names = [...new Set(rows.flatMap((row) => Object.keys(row)))];
  const flat = rows.every((row) => names.every((name) => row[name] === null || typeof row[name] !== "object"));
  return flat && names.length && names.length <= 12 ? names : null;
}

// What a card does not show of its text.
function remarks(excerpt, lines) {
  const found = [];
  if (excerpt.redacted) found.push("What looks like a secret was taken out, so this text no longer has the hash.");
  if (lines.length > CARD_LINES) found.push(`${count(lines.length - CARD_LINES)} more lines are not shown.`);
  if (excerpt.left_out) found.push(`${count(excerpt.left_out)} more characters are not shown.`);
  return found;
}

// JSON with line breaks and spaces between its tokens; every token stays as it is. Any other text is returned unchanged.
function indented(text) {
  if (!/^[[{]/.test(text)) return text;
  try {
    JSON.parse(text);
  } catch {
    return text;
  }
  let depth = 0;
  const line = () => `\n${"  ".repeat(depth)}`;
  return text.replace(/"(?:[^"\\]|\\.)*"|\[\]|\{\}|[[\]{},:]/g, (token) => {
    if (token === "{" || token === "[") {
      depth += 1;
      return token + line();
    }
    if (token === "}" || token === "]") {
      depth -= 1;
      return line() + token;
    }
    return token === "," ? token + line() : token === ":" ? ": " : token;
  });
}

// The words of an output: a text, or the answer or summary in an object that is no report; null for other data.
export function answerText(output) {
  if (typeof output === "string") return output;
  if (output && typeof output === "object" && typeof output.answer === "string" && typeof output.value !== "object")
    return output.answer;
  if (
    output &&
    typeof output === "object" &&
    typeof output.answer === "string" &&
    output.value &&
    typeof output.value.answer === "string"
  )
    return output.answer;
  if (output && typeof output === "object" && typeof output.answer === "string" && output.value === null)
    return output.answer;
  return null;
}
