// How much of each limit is used, as steps over time. `axis` gives the width and the place of a time.

import { costOf, count, h, money, put, seconds, svg } from "./dom.js";

const LIMITS = [
  ["tokens", "max_tokens_total", "tokens", count],
  ["cost_usd", "max_cost_usd", "cost", money],
  ["iterations", "max_iterations", "turns", count],
  ["tool_calls", "max_tool_calls", "tool calls", count],
  ["subcalls", "max_subcalls", "sub-calls", count],
  ["time", "max_wall_time_sec", "time", seconds],
];
const HUES = {
  tokens: "model",
  cost_usd: "tool",
  iterations: "code",
  tool_calls: "gate",
  subcalls: "subcall",
  time: "muted",
};

export class BudgetPlot {
  constructor(run, axis) {
    this.run = run;
    this.axis = axis;
    this.plot = svg("svg", { class: "budget", role: "img", "aria-label": "Share of each limit used over time" });
    this.legend = h("div", { class: "legend" });
    const head = h("div", { class: "plot-head" }, h("h3", {}, "Budget used"), this.legend);
    this.node = h("div", {}, head, this.plot);
  }

  draw() {
    const { width } = this.axis;
    const height = 96;
    this.plot.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.plot.setAttribute("height", height);
    const lines = LIMITS.map((limit) => this.used(limit)).filter(Boolean);
    const top = Math.min(1, niceTop(Math.max(0.05, ...lines.map((line) => line.most))));
    const y = (share) => height - 16 - Math.min(share / top, 1.05) * (height - 32);
    const marks = [0, top / 2, top].map((share) => [
      svg("line", { x1: 0, x2: width, y1: y(share), y2: y(share), class: share === 1 ? "limit" : "grid" }),
      svg("text", { x: 0, y: y(share) - 3, class: "tick" }, `${+(share * 100).toPrecision(3)} %`),
    ]);
    put(
      this.plot,
      ...marks.flat(),
      ...lines.map((line) => svg("path", { d: this.path(line.points, y), class: `p-${HUES[line.name]}` })),
    );
    put(
      this.legend,
      ...lines.map((line) =>
        h("span", {}, h("i", { class: `dot k-${HUES[line.name]}` }), `${line.label} ${line.text}`),
      ),
    );
  }

  used([name, knob, label, format]) {
    const limit = this.run.budget[knob];
    if (!limit) return null;
    const timed = name === "time";
    const points = timed
      ? [
          [this.run.t0, 0],
          [this.run.t1, this.run.elapsed / limit],
        ]
      : [
          [this.run.t0, 0],
          ...this.run.series.map((each) => [each.at, each[name] / limit]),
          [this.run.t1, this.run.totals[name] / limit],
        ];
    const total = timed ? this.run.elapsed : this.run.totals[name];
    return {
      name,
      label,
      points,
      timed,
      most: points[points.length - 1][1],
      text: `${name === "cost_usd" ? costOf(total, this.run.totals.tokens, this.run.totals.unpriced) : format(total)} of ${format(limit)}`,
    };
  }

  // Steps for counts, a straight line for time; at most one step a pixel.
  path(points, y) {
    const at = points.map(([time, share]) => [this.axis.x(time), y(share)]);
    if (at.length === 2) return `M${at.map((point) => point.map((each) => each.toFixed(1)).join(" ")).join("L")}`;
    const shown = at.filter(
      ([x], place) => place === at.length - 1 || Math.floor(x) !== Math.floor(at[place + 1][0]) || place === 0,
    );
    return shown
      .map(([x, height], place) => `${place ? "H" : "M"}${x.toFixed(1)}${place ? "V" : " "}${height.toFixed(1)}`)
      .join("");
  }
}

function niceTop(share) {
  return [0.05, 0.1, 0.2, 0.25, 0.5, 0.75, 1].find((each) => share <= each) || 1;
}
