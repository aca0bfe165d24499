// All runs: a table to search, to open, and to choose two runs from.

import { costOf, count, h, pill, put, seconds, short, when } from "./dom.js";
import { listRuns, offline } from "./source.js";

const NUMBERS = ["Time", "Turns", "Sub-calls", "Tokens", "Cost", "Cited"];

export class Runs {
  constructor() {
    this.chosen = new Set();
    this.all = [];
    this.filter = h("input", {
      type: "search",
      class: "filter wide",
      placeholder: "Filter by question, id, model or status  ( / )",
      "aria-label": "Filter runs",
      oninput: () => this.paint(),
    });
    this.button = h("button", { class: "primary", disabled: true, onclick: () => this.compare() }, "Compare two runs");
    this.body = h("tbody");
    this.state = h("p", { class: "muted", role: "status" }, "Reading the runs…");
    this.table = h(
      "table",
      { class: "runs" },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          ["", "Status", "Question", "Outcome", "Model", "Started", ...NUMBERS].map(
            (name, place) => h("th", { scope: "col", class: place > 5 ? "number" : "" }, name),
          ),
        ),
      ),
      this.body,
    );
    this.node = h(
      "div",
      { class: "home" },
      h(
        "div",
        { class: "home-head" },
        h("h1", {}, "Runs"),
        this.filter,
        h("div", { class: "grow" }),
        offline ? null : this.button,
      ),
      this.state,
      h("div", { class: "card scroll" }, this.table),
    );
    this.timer = offline ? 0 : setInterval(() => document.hidden || this.load(), 3000);
  }

  async load() {
    try {
      this.all = await listRuns();
      this.paint();
    } catch (error) {
      put(this.state, document.createTextNode(`The runs cannot be read: ${error.message}`));
    }
  }

  paint() {
    const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = this.all.filter((run) =>
      words.every((word) =>
        `${run.run_id} ${run.objective} ${run.model} ${run.outcome ?? ""} ${run.status} ${run.run_type}`.toLowerCase().includes(word),
      ),
    );
    const said = !this.all.length
      ? "There are no runs yet. `sonde ask` makes one."
      : shown.length === this.all.length
        ? `${count(shown.length)} runs`
        : `${count(shown.length)} of ${count(this.all.length)} runs`;
    put(this.state, document.createTextNode(said));
    const focused = document.activeElement?.dataset?.run;
    put(this.body, ...shown.slice(0, 500).map((run) => this.row(run)));
    if (focused) this.body.querySelector(`a[data-run="${CSS.escape(focused)}"]`)?.focus();
    this.button.disabled = this.chosen.size !== 2;
  }

  row(run) {
    const box = h("input", {
      type: "checkbox",
      "aria-label": `Choose ${run.run_id} for comparison`,
      onchange: () => this.tick(run.run_id, box.checked),
    });
    box.checked = this.chosen.has(run.run_id);
    const numbers = [
      seconds(run.seconds),
      count(run.iterations),
      count(run.subcalls),
      count(run.tokens),
      costOf(run.cost_usd, run.tokens, 0),
      count(run.citations),
    ];
    return h(
      "tr",
      {
        onclick: (event) =>
          event.target.closest("a,input") || (location.hash = `#/run/${encodeURIComponent(run.run_id)}`),
      },
      h("td", { class: "choose" }, offline ? null : box),
      h("td", { class: "state" }, pill(run.status)),
      h(
        "td",
        { class: "what" },
        h(
          "a",
          { href: `#/run/${encodeURIComponent(run.run_id)}`, "data-run": run.run_id },
          short(run.objective, 140) || run.run_id,
        ),
        h("div", { class: "muted" }, `${run.unproved ? "unproved · " : ""}${run.run_type} · ${run.run_id}`),
      ),
      h("td", { class: "outcome", title: run.outcome }, short(run.outcome ?? "", 60)),
      h("td", { class: "muted model", title: run.model }, run.model),
      h("td", { class: "muted" }, when(run.started_at)),
      numbers.map((value, place) => h("td", { class: "number", "data-name": NUMBERS[place] }, value)),
    );
  }

  tick(id, on) {
    if (on) this.chosen.add(id);
    else this.chosen.delete(id);
    while (this.chosen.size > 2) this.chosen.delete([...this.chosen][0]);
    this.paint();
  }

  compare() {
    const [left, right] = [...this.chosen];
    location.hash = `#/compare/${encodeURIComponent(left)}/${encodeURIComponent(right)}`;
  }

  close() {
    clearInterval(this.timer);
  }
}
