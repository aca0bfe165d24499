// The steps of a run as a list that only builds the rows in view, with filters and the keyboard, and the chosen step in full beside it.

import { count, h, many, put, seconds, short } from "./dom.js";
import { detail } from "./detail.js";
import { KINDS } from "./model.js";

const HEIGHT = 30;

export class Steps {
  constructor(run, chosen) {
    this.run = run;
    this.onChosen = chosen;
    this.kinds = new Set(Object.keys(KINDS));
    this.text = "";
    this.session = null;
    this.rows = [];
    this.at = -1;
    this.filter = h("input", {
      type: "search",
      class: "filter",
      placeholder: "Filter steps  ( / )",
      "aria-label": "Filter steps",
      oninput: () => this.search(),
    });
    this.chips = h("div", { class: "chips", role: "group", "aria-label": "Kinds of step" });
    this.scope = h("span", { class: "scope" });
    this.total = h("span", { class: "muted", role: "status" });
    this.inner = h("div", { class: "rows" });
    this.list = h("div", { class: "list", tabindex: "0", role: "listbox", "aria-label": "Steps" }, this.inner);
    this.pane = h(
      "div",
      { class: "pane", tabindex: "0", "aria-label": "Details", role: "region" },
      h("p", { class: "empty" }, "Choose a step to see its prompt, code, output and hashes."),
    );
    this.node = h(
      "section",
      { class: "card steps", "aria-label": "Steps" },
      h(
        "div",
        { class: "card-head" },
        h("h2", {}, "Steps"),
        this.filter,
        this.chips,
        this.scope,
        h("div", { class: "grow" }),
        this.total,
      ),
      h("div", { class: "split" }, this.list, this.pane),
    );
    this.list.addEventListener("scroll", () => this.paint());
    this.list.addEventListener("keydown", (event) => this.key(event));
    this.resized = new ResizeObserver(() => this.paint());
    this.resized.observe(this.list);
    this.refresh();
  }

  refresh() {
    const words = this.text.toLowerCase().split(/\s+/).filter(Boolean);
    const chosen = this.rows[this.at];
    const following =
      this.run.running &&
      this.rows.length &&
      this.list.scrollTop + this.list.clientHeight > this.list.scrollHeight - 40;
    this.rows = this.run.steps.filter((step) => this.fits(step, words));
    this.at = chosen ? this.rows.indexOf(chosen) : -1;
    this.inner.style.height = `${this.rows.length * HEIGHT}px`;
    const all = this.run.steps.length;
    put(
      this.total,
      document.createTextNode(
        this.rows.length === all ? many(all, "step") : `${count(this.rows.length)} of ${many(all, "step")}`,
      ),
    );
    if (following) this.list.scrollTop = this.list.scrollHeight;
    this.paintChips();
    this.paint();
  }

  fits(step, words) {
    if (!this.kinds.has(step.kind)) return false;
    if (this.session && step.session !== this.session && step.child !== this.session) return false;
    if (!words.length) return true;
    const text = `${step.label} ${step.title} ${step.fault || ""} ${step.output || ""} ${step.session}`.toLowerCase();
    return words.every((word) => text.includes(word));
  }

  search() {
    this.text = this.filter.value;
    this.refresh();
  }

  paintChips() {
    const counts = {};
    for (const step of this.run.steps) counts[step.kind] = (counts[step.kind] || 0) + 1;
    put(
      this.chips,
      ...Object.entries(KINDS)
        .filter(([kind]) => counts[kind])
        .map(([kind, name]) =>
          h(
            "button",
            {
              class: `chip k-${kind}`,
              "aria-pressed": this.kinds.has(kind) ? "true" : "false",
              onclick: () => this.toggle(kind),
            },
            h("i", { class: `dot k-${kind}` }),
            `${name} ${count(counts[kind])}`,
          ),
        ),
    );
    put(
      this.scope,
      this.session
        ? h(
            "button",
            { class: "chip", title: "Show all sessions", onclick: () => this.only(null) },
            `in ${this.session} ✕`,
          )
        : null,
    );
  }

  toggle(kind) {
    const all = this.kinds.size === Object.keys(KINDS).length;
    if (all) this.kinds = new Set([kind]);
    else if (this.kinds.has(kind)) this.kinds.delete(kind);
    else this.kinds.add(kind);
    if (!this.kinds.size) this.kinds = new Set(Object.keys(KINDS));
    this.refresh();
  }

  only(session) {
    this.session = session;
    this.refresh();
  }

  paint() {
    const first = Math.max(0, Math.floor(this.list.scrollTop / HEIGHT) - 6);
    const last = Math.min(this.rows.length, Math.ceil((this.list.scrollTop + this.list.clientHeight) / HEIGHT) + 6);
    const shown = [];
    for (let place = first; place < last; place++) shown.push(this.row(this.rows[place], place));
    put(this.inner, ...shown);
    if (!this.rows.length)
      put(
        this.inner,
        h("p", { class: "empty" }, this.run.steps.length ? "No step fits the filter." : "Nothing has happened yet."),
      );
    this.list.setAttribute("aria-activedescendant", this.at >= 0 ? `step-${this.at}` : "");
  }

  row(step, place) {
    const amount = step.waiting
      ? "…"
      : step.kind === "model" && step.tokens
        ? `${count(step.tokens)} tok`
        : step.t1 > step.t0
          ? seconds(step.t1 - step.t0)
          : "";
    return h(
      "div",
      {
        class: `row k-${step.kind}${step.ok ? "" : " failed"}${place === this.at ? " on" : ""}`,
        id: `step-${place}`,
        role: "option",
        "aria-selected": place === this.at ? "true" : "false",
        style: { top: `${place * HEIGHT}px`, "--depth": Math.min(step.depth, 6) },
        onclick: () => this.choose(place),
      },
      h("span", { class: "at" }, seconds(Math.max(0, step.t0 - this.run.t0)) || "0"),
      h("i", { class: `dot k-${step.warned ? "tool" : step.ok ? step.kind : "bad"}` }),
      h("span", { class: "label" }, short(step.label, 26)),
      h("span", { class: "title" }, short(step.fault || step.title, 160)),
      h("span", { class: "amount" }, amount),
    );
  }

  choose(place, quiet = false) {
    if (place < 0 || place >= this.rows.length) return;
    this.at = place;
    const top = place * HEIGHT;
    if (top < this.list.scrollTop) this.list.scrollTop = top;
    else if (top + HEIGHT > this.list.scrollTop + this.list.clientHeight)
      this.list.scrollTop = top + HEIGHT - this.list.clientHeight;
    this.paint();
    const step = this.rows[place];
    if (!quiet) this.onChosen(step);
    detail(this.pane, this.run, step, this);
  }

  // Choose a step from outside; filters give way when they hide it.
  show(step) {
    if (!this.rows.includes(step)) {
      this.kinds = new Set(Object.keys(KINDS));
      this.text = this.filter.value = "";
      this.session = null;
      this.refresh();
    }
    const place = this.rows.indexOf(step);
    this.list.scrollTop = Math.max(0, place * HEIGHT - this.list.clientHeight / 3);
    this.choose(place);
  }

  key(event) {
    const page = Math.max(1, Math.floor(this.list.clientHeight / HEIGHT) - 1);
    const moves = {
      ArrowDown: 1,
      j: 1,
      ArrowUp: -1,
      k: -1,
      PageDown: page,
      PageUp: -page,
      Home: -this.rows.length,
      End: this.rows.length,
    };
    if (event.key === "Enter") this.pane.focus();
    if (!(event.key in moves) || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    this.choose(Math.max(0, Math.min(this.rows.length - 1, this.at + moves[event.key])));
  }

  close() {
    this.resized.disconnect();
  }
}
