// The recursion tree on a time axis; the plot of the budget below it shares the axis.
//
// A canvas, because ten thousand rectangles must stay smooth. Sessions are bars; below a bar are its replies and its code, below
// those the calls that the code made; children that ran at the same time get lanes of their own. Ctrl+wheel or + and - zoom, dragging or the arrow keys move, 0 shows everything.

import { BudgetPlot } from "./budget.js";
import { colour, h, seconds, short, tip } from "./dom.js";

const ROW = 20;
const AXIS = 22;

// How many rows a session takes, and in which lane each child goes.
export function measure(session) {
  const lanes = [];
  for (const child of [...session.children].sort((a, b) => a.t0 - b.t0)) {
    measure(child);
    let lane = lanes.findIndex((each) => each.end <= child.t0 + 1e-6);
    if (lane < 0) lane = lanes.push({ end: 0, rows: 0 }) - 1;
    child.lane = lane;
    lanes[lane].end = child.t1;
    lanes[lane].rows = Math.max(lanes[lane].rows, child.rows);
  }
  session.lanes = lanes;
  session.own = session.mode === "query" ? 1 : 3;
  session.rows = session.own + lanes.reduce((sum, lane) => sum + lane.rows, 0);
}

export function place(session, row) {
  session.row = row;
  const tops = [];
  let top = row + session.own;
  for (const lane of session.lanes) {
    tops.push(top);
    top += lane.rows;
  }
  for (const child of session.children) place(child, tops[child.lane]);
}

export class Flame {
  constructor(run, select) {
    this.run = run;
    this.select = select;
    this.chosen = null;
    this.view = null;
    this.canvas = h("canvas", {
      tabindex: "0",
      role: "img",
      "aria-label": "Flame chart of the run; the list of steps below has the same content",
    });
    this.scroll = h("div", { class: "flame-scroll" }, this.canvas);
    this.budget = new BudgetPlot(run, this);
    const buttons = [
      ["−", 1 / 1.6, "Zoom out (-)"],
      ["+", 1.6, "Zoom in (+)"],
      ["Fit", 0, "Show everything (0)"],
    ].map(([text, factor, title]) => h("button", { class: "quiet", title, onclick: () => this.zoom(factor) }, text));
    this.node = h(
      "section",
      { class: "card timeline", "aria-label": "Timeline" },
      h("div", { class: "card-head" }, h("h2", {}, "Timeline"), this.key(), h("div", { class: "grow" }), buttons),
      this.scroll,
      this.budget.node,
    );
    this.listen();
    this.resized = new ResizeObserver(() => this.draw());
    this.resized.observe(this.scroll);
  }

  key() {
    const names = { model: "model", code: "code", tool: "tool", subcall: "sub-call" };
    return h(
      "div",
      { class: "legend" },
      Object.entries(names).map(([kind, name]) => h("span", {}, h("i", { class: `dot k-${kind}` }), name)),
    );
  }

  listen() {
    const { canvas } = this;
    let from = null;
    canvas.addEventListener("mousemove", (event) => {
      if (from) {
        const width = this.end - this.begin;
        this.look(from.begin - ((event.offsetX - from.x) / this.width) * width, width);
        return;
      }
      const hit = this.at(event.offsetX, event.offsetY);
      canvas.style.cursor = hit ? "pointer" : "grab";
      tip(hit ? hit.tip() : "", event.clientX, event.clientY);
    });
    canvas.addEventListener("mouseleave", () => tip(""));
    canvas.addEventListener("mousedown", (event) => {
      from = { x: event.offsetX, begin: this.begin, moved: event.clientX };
    });
    window.addEventListener("mouseup", (event) => {
      const moved = from && Math.abs(event.clientX - from.moved) > 3;
      from = null;
      if (moved || event.target !== canvas) return;
      const hit = this.at(event.offsetX, event.offsetY);
      if (hit) this.select(hit.step);
    });
    canvas.addEventListener(
      "wheel",
      (event) => {
        if (!event.ctrlKey && !event.metaKey) return;
        event.preventDefault();
        this.zoom(event.deltaY < 0 ? 1.25 : 0.8, event.offsetX / this.width);
      },
      { passive: false },
    );
    canvas.addEventListener("keydown", (event) => {
      const width = this.end - this.begin;
      const acts = {
        "+": () => this.zoom(1.6),
        "=": () => this.zoom(1.6),
        "-": () => this.zoom(1 / 1.6),
        0: () => this.zoom(0),
      };
      acts.ArrowLeft = () => this.look(this.begin - width / 8, width);
      acts.ArrowRight = () => this.look(this.begin + width / 8, width);
      if (!acts[event.key]) return;
      event.preventDefault();
      acts[event.key]();
    });
  }

  zoom(factor, around = 0.5) {
    if (!factor) {
      this.view = null;
      this.draw();
      return;
    }
    const old = this.end - this.begin;
    const width = Math.max(1e-4, old / factor);
    this.look(this.begin + (old - width) * around, width);
  }

  look(begin, width) {
    const whole = this.run.t1 - this.run.t0;
    if (width >= whole) this.view = null;
    else {
      const start = Math.min(Math.max(begin, this.run.t0), this.run.t1 - width);
      this.view = [start, start + width];
    }
    this.draw();
  }

  get begin() {
    return this.view ? this.view[0] : this.run.t0;
  }

  get end() {
    return this.view ? this.view[1] : Math.max(this.run.t1, this.run.t0 + 1e-3);
  }

  x(at) {
    return ((at - this.begin) / (this.end - this.begin)) * this.width;
  }

  at(x, y) {
    for (let i = this.rects.length - 1; i >= 0; i--) {
      const r = this.rects[i];
      if (y >= r.y && y < r.y + ROW - 2 && x >= r.x - 1 && x <= r.x + Math.max(r.w, 2) + 1) return r;
    }
    return null;
  }

  draw() {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.paint());
  }

  paint() {
    const root = this.run.sessions.get("root");
    if (!root || !this.node.isConnected) return;
    this.width = this.scroll.clientWidth;
    if (!this.width) return;
    measure(root);
    place(root, 0);
    const height = AXIS + root.rows * ROW + 4;
    const scale = Math.min(devicePixelRatio || 1, 16000 / height);
    this.canvas.width = this.width * scale;
    this.canvas.height = height * scale;
    this.canvas.style.width = `${this.width}px`;
    this.canvas.style.height = `${height}px`;
    const pen = this.canvas.getContext("2d");
    pen.scale(scale, scale);
    this.hues = Object.fromEntries(
      [
        "model",
        "code",
        "tool",
        "subcall",
        "evidence",
        "gate",
        "note",
        "bad",
        "ink",
        "muted",
        "line",
        "surface",
        "sunk",
        "accent",
      ].map((name) => [name, colour(name)]),
    );
    this.rects = [];
    this.axis(pen, height);
    for (const session of this.run.sessions.values()) this.bar(pen, session);
    this.budget.draw();
  }

  axis(pen, height) {
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    const marks = ticks(this.begin - this.run.t0, this.end - this.run.t0, this.width / 110);
    const names = marks.map((at) => tickName(at, marks.length > 1 ? marks[1] - marks[0] : 1));
    for (const [number, at] of marks.entries()) {
      const x = Math.round(this.x(at + this.run.t0)) + 0.5;
      pen.fillStyle = this.hues.line;
      pen.fillRect(x, AXIS - 4, 1, height);
      pen.fillStyle = this.hues.muted;
      pen.fillText(names[number], x + 4, 9);
    }
  }

  bar(pen, session) {
    const y = AXIS + session.row * ROW;
    const failed = session.status === "failed" || session.status === "terminated_budget";
    const name = session.path === "root" ? "root" : session.mode;
    const label = `${name} · ${short(session.objective, 200)}`;
    const tipText = () =>
      [
        label.slice(0, 220),
        `${seconds(session.t1 - session.t0)} · ${session.turns || 0} turns · ${session.status || "running"}`,
      ].join("\n");
    const hue = session.path === "root" ? "accent" : "subcall";
    this.rect(pen, {
      x: this.x(session.t0),
      end: this.x(session.t1),
      y,
      hue: failed ? "bad" : hue,
      soft: true,
      label,
      step: session.step || { session: session.path },
      tip: tipText,
    });
    if (session.mode === "query") return;
    for (const step of session.items) {
      if (step.kind === "subcall" || step.t1 < this.begin || step.t0 > this.end) continue;
      const text = () => `${step.label}\n${short(step.title, 180)}\n${seconds(step.t1 - step.t0)}`;
      const row = step.kind === "model" || step.kind === "code" ? y + ROW : y + 2 * ROW - 3;
      this.rect(pen, {
        x: this.x(step.t0),
        end: this.x(step.t1),
        y: row,
        hue: step.warned ? "tool" : step.ok ? step.kind : "bad",
        label: step.label,
        step,
        tip: text,
      });
    }
  }

  rect(pen, r) {
    const x = Math.max(r.x, -2);
    const w = Math.min(r.end, this.width + 2) - x;
    if (w < 0 || x > this.width) return;
    const point = w < 2;
    const h0 = point ? 8 : ROW - 3;
    const y = point ? r.y + 5 : r.y;
    pen.globalAlpha = r.soft ? 0.22 : point ? 0.9 : 0.85;
    pen.fillStyle = this.hues[r.hue] || this.hues.note;
    pen.beginPath();
    pen.roundRect(x, y, Math.max(w - 0.5, point ? 2 : 1), h0, Math.min(3, w / 2 + 0.5));
    pen.fill();
    pen.globalAlpha = 1;
    if (this.chosen && r.step === this.chosen) {
      pen.strokeStyle = this.hues.ink;
      pen.lineWidth = 2;
      pen.stroke();
    }
    if (w > 34) {
      pen.fillStyle = r.soft ? this.hues.ink : this.hues.surface;
      pen.fillText(clipped(pen, r.label || "", w - 10), x + 5, r.y + ROW / 2 - 1);
    }
    this.rects.push({ x, y: r.y, w, step: r.step, tip: r.tip });
  }

  choose(step) {
    this.chosen = step;
    if (this.view && step.t0 !== undefined && (step.t1 < this.begin || step.t0 > this.end)) {
      const width = this.end - this.begin;
      this.look(step.t0 - width / 3, width);
    } else this.draw();
    const session = this.run.sessions.get(step.session);
    if (session?.row !== undefined) {
      const top = AXIS + session.row * ROW;
      if (top < this.scroll.scrollTop || top > this.scroll.scrollTop + this.scroll.clientHeight - 3 * ROW)
        this.scroll.scrollTop = top - 3 * ROW;
    }
  }

  close() {
    this.resized.disconnect();
  }
}

function clipped(pen, text, width) {
  const fits = Math.floor(width / 6);
  if (fits < 3) return "";
  if (pen.measureText(text).width <= width) return text;
  return `${text.slice(0, fits)}…`;
}

// A mark of the axis, with as many digits as tell it from its neighbours.
export function tickName(at, step) {
  if (!at) return "0";
  const digits = Math.max(0, Math.ceil(-Math.log10(step) - 1e-9));
  if (digits > 2) return `${(at * 1000).toFixed(digits - 3)} ms`;
  if (digits) return `${at.toFixed(digits)} s`;
  return at >= 5400 && step < 360 ? `${Math.round(at / 60)} min` : seconds(at);
}

export function ticks(from, to, wanted) {
  const rough = (to - from) / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
  const found = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) found.push(Math.abs(at) < step / 1e6 ? 0 : at);
  return found;
}
