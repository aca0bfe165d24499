// What an investigation found, drawn: the trace with the findings pinned to its spans, the controls, the events of an incident.

import { count, h, many, put, seconds, short, svg } from "./dom.js";
import { fetchTrace } from "./source.js";

const LANE = 24;
const LETTER = 6.6; // pixels of a letter of a label
const COLOURS = 5; // groups of failures that are told apart
const amount = (value) => Math.max(0, Number(value) || 0); // a forged report may hold anything
const sum = (values) => values.reduce((total, value) => total + value, 0);
const list = (value) => (Array.isArray(value) ? value.filter((each) => each && typeof each === "object") : []);
const words = (value) => String(value ?? "").replace(/_/g, " ");

export class Picture {
  constructor(run, answer, title = "The investigated trace") {
    this.run = run;
    this.answer = answer;
    this.title = title;
    this.trace = null;
    this.width = 0;
    this.node = h("div", {});
    this.watch = new ResizeObserver(() => this.node.clientWidth !== this.width && this.paint());
    this.watch.observe(this.node);
  }

  async load() {
    const report = this.report();
    if (!report) return;
    this.trace = "trace_id" in report ? await fetchTrace(this.run.id).catch(() => null) : null;
    this.paint();
  }

  report() {
    const output = this.run.end?.output;
    const known = ["rca", "policy_compliance", "incident_dossier"].includes(this.run.start?.run_type);
    return known && output && typeof output === "object" ? output : null;
  }

  paint() {
    this.width = this.node.clientWidth;
    const report = this.report();
    if (!report || !this.width) return;
    const parts = [];
    if (list(report.controls_evaluated).length) parts.push(matrix(report));
    parts.push(this.rates(report));
    if (list(report.timeline).length) parts.push(this.events(report));
    if (this.trace) parts.push(this.waterfall(report));
    put(this.node, ...parts);
  }

  // The spans of the trace over time. Arrows lead from a failure to what it caused.
  waterfall(report) {
    const { spans, left_out: left, state } = this.trace;
    const pins = pinsOf(report, spans);
    const room = this.width - 34;
    const label = Math.round(Math.min(320, room * 0.38));
    const end = Math.max(1, ...spans.map((span) => span.start_ms + span.latency_ms));
    const x = (ms) => label + (ms / end) * (room - label - 30);
    const places = new Map(spans.map((span, row) => [span.span_id, { row, span }]));
    const rows = spans.map((span, row) => this.row(span, row, x, label));
    const arrows = pins
      .filter((pin) => pin.cause && pin.cause.span_id !== pin.span_id)
      .map((pin) => arrow(places.get(pin.cause.span_id), places.get(pin.span_id), x));
    const marks = pins.map((pin) => this.pin(pin, places.get(pin.span_id), x));
    const height = spans.length * LANE + 26;
    const legend = pins.map((pin) =>
      h("li", { class: pin.first ? "first" : "" }, h("b", {}, words(pin.title)), pin.why ? `: ${short(pin.why, 240)}` : ""),
    );
    return h(
      "section",
      { class: "card picture trace", "aria-label": this.title },
      h(
        "div",
        { class: "card-head" },
        h("h2", {}, this.title),
        h(
          "span",
          { class: "muted" },
          `${many(spans.length, "span")}, ${seconds(end / 1000)}${left ? `; ${count(left)} more are not drawn` : ""}${
            state === "recorded" ? "; only spans that the run listed" : state === "kept" ? "; as the run read it" : ""
          }`,
        ),
      ),
      h(
        "div",
        { class: "canvas" },
        svg(
          "svg",
          { width: room, height, role: "img", "aria-label": `Waterfall of ${spans.length} spans` },
          svg(
            "defs",
            {},
            svg(
              "marker",
              { id: "head", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" },
              svg("path", { d: "M0 0 L8 4 L0 8 z", class: "head" }),
            ),
          ),
          axis(end, x, height),
          rows,
          arrows,
          marks,
        ),
      ),
      legend.length ? h("ol", { class: "pins" }, legend) : null,
    );
  }

  row(span, row, x, label) {
    const y = row * LANE + 22;
    const indent = Math.min(span.depth * 12, label * 0.4);
    const failed = span.status === "ERROR";
    const title = `${span.name} (${span.kind})\n${seconds(span.latency_ms / 1000)}${failed ? `, failed: ${span.message}` : ""}`;
    return svg(
      "g",
      { class: `span k-${span.kind.toLowerCase()} ${failed ? "failed" : ""}` },
      svg("title", {}, title),
      svg("text", { x: indent, y: y + 14 }, short(span.name, Math.max(4, Math.floor((label - indent - 8) / LETTER)))),
      svg("rect", {
        x: x(span.start_ms),
        y: y + 4,
        width: Math.max(3, x(span.start_ms + span.latency_ms) - x(span.start_ms)),
        height: LANE - 9,
        rx: 3,
      }),
    );
  }

  pin(pin, place, x) {
    const right = x(place.span.start_ms + place.span.latency_ms) + 12 + pin.beside * 20;
    const excerpt = this.answer.excerpts.find((each) => each.ref.includes(pin.span_id));
    return svg(
      "g",
      {
        class: `pin ${pin.first ? "first" : ""}`,
        transform: `translate(${right}, ${place.row * LANE + 34})`,
        tabindex: "0",
        role: "button",
        "aria-label": `${pin.number}: ${words(pin.title)}`,
        onclick: () => excerpt && this.answer.point(excerpt),
        onkeydown: (event) => event.key === "Enter" && excerpt && this.answer.point(excerpt),
      },
      svg("title", {}, `${words(pin.title)}\n${short(pin.why, 300)}`),
      svg("circle", { r: 9 }),
      svg("text", { "text-anchor": "middle", y: 4 }, String(pin.number)),
    );
  }

  // The traces of a window over time: all of them behind, those of each group of failures as a colour, suspected changes as dashed marks.
  rates(report) {
    const all = list(report.window?.rate_over_time).slice(0, 200);
    const [first, second] = all.map((each) => Date.parse(each.from));
    if (!Number.isFinite(first) || !Number.isFinite(second)) return null;
    const groups = list(report.groups).filter((group) => list(group.rate_over_time).length === all.length);
    const shown = groups.slice(0, COLOURS);
    const hits = (group, at) => amount(list(group.rate_over_time)[at].hit);
    const high = Math.max(1, ...all.map((each, at) => Math.max(amount(each.traces), sum(shown.map((group) => hits(group, at))))));
    const room = this.width - 34;
    const [top, floor, left] = [16, 126, 34];
    const wide = (room - left) / all.length;
    const tall = (value) => (value / high) * (floor - top);
    const step = Math.max(1, second - first);
    const x = (at) => left + Math.min(all.length, Math.max(0, (at - first) / step)) * wide;
    const bars = all.map((each, at) => {
      const place = { x: left + at * wide + 1, width: Math.max(1, wide - 2) };
      let base = floor;
      const stack = shown.map((group, colour) => {
        const height = tall(hits(group, at));
        base -= height;
        return height ? svg("rect", { ...place, class: `hit g${colour}`, y: base, height }) : null;
      });
      const title = [each.from, many(amount(each.traces), "trace"), ...shown.map((group) => `${hits(group, at)} ${group.component}`)];
      return svg(
        "g",
        {},
        svg("title", {}, title.join("\n")),
        svg("rect", { ...place, class: "traces", y: floor - tall(amount(each.traces)), height: tall(amount(each.traces)) }),
        stack,
      );
    });
    const changes = new Map();
    for (const { suspected_change: change } of groups)
      if (change && Number.isFinite(Date.parse(change.at))) changes.set(`${change.at} ${change.name}`, change);
    for (const change of list(report.changes)) changes.set(`${change.at} ${change.name}`, change);
    const marks = [...changes.values()].map((change) =>
      svg(
        "g",
        {},
        svg("title", {}, `${change.at}\n${change.name}`),
        svg("line", { class: "change", x1: x(Date.parse(change.at)), x2: x(Date.parse(change.at)), y1: 4, y2: floor }),
      ),
    );
    const clock = (at) => (Math.abs(at) < 8.6e15 ? new Date(at).toISOString().slice(5, 16).replace("T", " ") : ""); // a forged time
    const more = groups.length - shown.length;
    return h(
      "section",
      { class: "card picture rates", "aria-label": "Failures over time" },
      h(
        "div",
        { class: "card-head" },
        h("h2", {}, "Failures over time"),
        h("span", { class: "muted" }, report.window.said ?? `${count(report.window.failed)} of ${many(report.window.traces, "trace")} failed`),
      ),
      h(
        "div",
        { class: "canvas" },
        svg(
          "svg",
          { width: room, height: 150, role: "img", "aria-label": `Traces and failures in ${all.length} parts of the window` },
          svg("line", { class: "axis", x1: left, x2: room, y1: floor, y2: floor }),
          svg("g", { class: "tick" }, svg("text", { x: left - 6, y: top + 8, "text-anchor": "end" }, count(high))),
          bars,
          marks,
          svg("g", { class: "tick" }, svg("text", { x: left, y: 143 }, clock(first))),
          svg("g", { class: "tick" }, svg("text", { x: room, y: 143, "text-anchor": "end" }, clock(first + step * all.length))),
        ),
      ),
      h(
        "ul",
        { class: "key" },
        shown.map((group, colour) =>
          h(
            "li",
            {},
            h("span", { class: `swatch g${colour}` }),
            h("b", {}, short(group.component, 80)),
            ` ${short(group.message, 160)}: ${many(group.count, "trace")}${group.onset?.at ? `, since ${group.onset.at}` : ""}`,
          ),
        ),
        more > 0 ? h("li", { class: "muted" }, `and ${many(more, "more group")}`) : null,
        [...changes.values()].map((change) =>
          h("li", { class: "changed" }, h("span", { class: "swatch dashed" }), `${change.at} ${short(change.name, 160)}`),
        ),
      ),
    );
  }

  // Events of an incident as dots on a line of time, changes as dashed marks across it.
  events(report) {
    const change = report.suspected_change || {};
    const changed = list(change.evidence_refs).filter((ref) => ref.kind === "CONFIG_DIFF" && ref.ts);
    const marks = [
      ...list(report.timeline).map((each) => ({ at: Date.parse(each.timestamp), text: each.event, kind: "event" })),
      ...changed.map((ref) => ({ at: Date.parse(ref.ts), text: change.summary, kind: "change" })),
    ]
      .filter((mark) => Number.isFinite(mark.at))
      .sort((a, b) => a.at - b.at);
    if (!marks.length) return null;
    const room = this.width - 34;
    const [first, last] = [marks[0].at, marks[marks.length - 1].at];
    const x = (at) => 16 + ((at - first) / Math.max(1, last - first)) * (room - 32);
    const stems = marks.map((mark) =>
      svg("line", { class: mark.kind, x1: x(mark.at), x2: x(mark.at), y1: mark.kind === "change" ? 4 : 20, y2: 80 }),
    );
    const drawn = marks.map((mark, place) => {
      const y = 58 - (place % 2) * 24;
      return svg(
        "g",
        { class: `mark ${mark.kind}` },
        svg("title", {}, `${new Date(mark.at).toISOString()}\n${short(mark.text, 300)}`),
        svg("circle", { cx: x(mark.at), cy: y, r: 9 }),
        svg("text", { x: x(mark.at), y: y + 4, "text-anchor": "middle" }, String(place + 1)),
      );
    });
    return h(
      "section",
      { class: "card picture incident", "aria-label": "Events over time" },
      h(
        "div",
        { class: "card-head" },
        h("h2", {}, "Events over time"),
        h("span", { class: "muted" }, `${seconds((last - first) / 1000)} from first to last`),
      ),
      h(
        "div",
        { class: "canvas" },
        svg(
          "svg",
          { width: room, height: 92, role: "img", "aria-label": `${marks.length} events and changes over time` },
          svg("line", { class: "axis", x1: 0, x2: room, y1: 80, y2: 80 }),
          stems,
          drawn,
        ),
      ),
      h(
        "ol",
        { class: "pins" },
        marks.map((mark) =>
          h(
            "li",
            { class: mark.kind },
            h("span", { class: "muted" }, new Date(mark.at).toISOString().slice(0, 19).replace("T", " ")),
            mark.kind === "change" ? h("b", {}, " change: ") : " ",
            short(mark.text, 240),
          ),
        ),
      ),
    );
  }

  close() {
    this.watch.disconnect();
  }
}

// What is pinned to the spans: findings, failed controls, or the evidence of a plain root cause.
function pinsOf(report, spans) {
  const known = new Set(spans.map((span) => span.span_id));
  const findings = list(report.findings);
  const pins = [];
  if (findings.length) {
    for (const each of findings) pins.push({ span_id: each.span_id, title: each.category, why: each.why, first: each.first_failure });
    for (const [place, each] of findings.entries()) pins[place].cause = pins[each.caused_by];
  } else if (list(report.controls_evaluated).length) {
    for (const each of list(report.controls_evaluated).filter((one) => one.pass_fail === "fail"))
      for (const span_id of new Set(list(each.evidence_refs).map((ref) => ref.span_id)))
        pins.push({ span_id, title: each.control_id, why: each.rationale });
  } else {
    const cited = new Set(list(report.evidence_refs).map((ref) => ref.span_id));
    const failed = spans.filter((span) => span.status === "ERROR");
    const origin = failed
      .filter((span) => cited.has(span.span_id))
      .sort((a, b) => b.depth - a.depth || a.start_ms - b.start_ms)[0];
    for (const span of spans.filter((each) => cited.has(each.span_id)))
      pins.push({ span_id: span.span_id, title: span.name, why: span.message || "cited", first: span === origin });
    const cause = pins.find((pin) => pin.first);
    for (const span of failed.filter((each) => cause && !cited.has(each.span_id) && above(each, origin, spans)))
      pins.push({ span_id: span.span_id, title: span.name, why: span.message || "failed with it", cause });
  }
  const shown = pins.filter((pin) => known.has(pin.span_id));
  const beside = new Map();
  for (const [place, pin] of shown.entries()) {
    pin.number = place + 1;
    pin.beside = beside.get(pin.span_id) ?? 0;
    beside.set(pin.span_id, pin.beside + 1);
    if (pin.cause && !known.has(pin.cause.span_id)) pin.cause = null;
  }
  return shown;
}

// Whether a span encloses another one: rows stand from the top down, so everything between them is deeper than the upper one.
function above(upper, lower, spans) {
  const [from, to] = [spans.indexOf(upper), spans.indexOf(lower)];
  return from < to && spans.slice(from + 1, to + 1).every((span) => span.depth > upper.depth);
}

function arrow(from, to, x) {
  const side = (place) => [x(place.span.start_ms), place.row * LANE + 34];
  const [x1, y1] = side(from);
  const [x2, y2] = side(to);
  const out = Math.max(6, Math.min(x1, x2) - 26);
  return svg("path", { class: "arrow", d: `M${x1} ${y1} C${out} ${y1} ${out} ${y2} ${x2 - 2} ${y2}`, "marker-end": "url(#head)" });
}

function axis(end, x, height) {
  const shares = x(end) - x(0) < 400 ? [0, 1] : [0, 0.25, 0.5, 0.75, 1];
  return shares.map((share) =>
    svg(
      "g",
      { class: "tick" },
      svg("line", { x1: x(end * share), x2: x(end * share), y1: 16, y2: height }),
      svg("text", { x: x(end * share), y: 11, "text-anchor": share ? "end" : "start" }, seconds((end * share) / 1000)),
    ),
  );
}

// Every control by verdict.
function matrix(report) {
  const controls = list(report.controls_evaluated);
  return h(
    "section",
    { class: "card picture controls", "aria-label": "Controls" },
    h(
      "div",
      { class: "card-head" },
      h("h2", {}, "Controls"),
      h("span", { class: "muted" }, `${words(report.overall_verdict)} with ${words(report.controls_version)}`),
    ),
    h(
      "div",
      { class: "scroll" },
      h(
        "table",
        { class: "matrix" },
        h(
          "thead",
          {},
          h("tr", {}, ["Control", "Severity", `Trace ${short(report.trace_id, 9)}`, "Why"].map((name) => h("th", { scope: "col" }, name))),
        ),
        h(
          "tbody",
          {},
          controls.map((each) =>
            h(
              "tr",
              {},
              h("th", { scope: "row" }, String(each.control_id)),
              h("td", { class: "muted" }, words(each.severity)),
              h("td", {}, h("span", { class: `cell v-${each.pass_fail}` }, words(each.pass_fail))),
              h("td", { class: "muted" }, short(each.rationale, 200)),
            ),
          ),
        ),
      ),
    ),
  );
}
