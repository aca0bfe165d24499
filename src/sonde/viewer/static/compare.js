// Two runs side by side: the same path or where they part, then numbers, tools, evidence, the answers and both timelines.

import { costOf, count, h, put, seconds } from "./dom.js";
import { Flame } from "./flame.js";
import { RunModel } from "./model.js";
import { fetchComparison, fetchNews } from "./source.js";

export class Compare {
  constructor(left, right) {
    this.ids = [left, right];
    this.flames = [];
    this.node = h("div", { class: "compare" }, h("p", { class: "muted" }, "Comparing…"));
  }

  async load() {
    try {
      const found = await fetchComparison(...this.ids);
      const runs = await Promise.all(this.ids.map(opened));
      this.flames = runs.map(
        (run) =>
          new Flame(
            run,
            (step) => (location.hash = `#/run/${encodeURIComponent(run.id)}?step=${step.ns ? step.ns[0] : 0}`),
          ),
      );
      put(
        this.node,
        this.verdict(found),
        this.sides(found, runs),
        this.numbers(found),
        this.evidence(found),
        h(
          "div",
          { class: "sides" },
          this.flames.map((flame) => flame.node),
        ),
      );
      for (const flame of this.flames) flame.draw();
    } catch (error) {
      put(this.node, h("p", { class: "problem" }, error.message));
    }
  }

  verdict(found) {
    const first = found.first_difference;
    if (!first)
      return h(
        "section",
        { class: "card verdict same" },
        h("h1", {}, "The same path"),
        h("p", {}, "Ids and times aside, the two runs did the same."),
      );
    return h(
      "section",
      { class: "card verdict" },
      h("h1", {}, "The runs part"),
      h(
        "p",
        {},
        "First difference: ",
        h("strong", {}, first.what),
        first.field ? [" in ", h("code", {}, first.field)] : "",
        ` (session ${first.session})`,
      ),
      h(
        "div",
        { class: "sides" },
        [first.left, first.right].map((side) =>
          side === null
            ? h("p", { class: "muted" }, "Nothing here on this side.")
            : h("pre", { class: "data", tabindex: "0" }, side),
        ),
      ),
    );
  }

  sides(found, runs) {
    return h(
      "section",
      { class: "card" },
      h("div", { class: "card-head" }, h("h2", {}, found.same_answer ? "The same answer" : "Different answers")),
      h(
        "div",
        { class: "sides" },
        runs.map((run, place) =>
          h(
            "article",
            { class: "side" },
            h("h3", {}, h("a", { href: `#/run/${encodeURIComponent(run.id)}` }, run.id)),
            h("p", { class: "muted" }, run.start?.objective || ""),
            h("div", { class: "diffed" }, this.lines(found, place)),
          ),
        ),
      ),
    );
  }

  // The answer's lines; those that the other side lacks are marked.
  lines(found, place) {
    const [mine, other] = place ? [found.right_answer, found.left_answer] : [found.left_answer, found.right_answer];
    const known = new Set(other.split("\n"));
    return mine
      .split("\n")
      .map((line) => h("div", { class: known.has(line) ? "" : place ? "added" : "removed" }, line || "\u00a0"));
  }

  numbers(found) {
    const shown = { cost_usd: (value) => costOf(value, 0, 0), total_latency_s: seconds, model_latency_s: seconds, tool_latency_s: seconds };
    const names = {
      total_latency_s: "total time",
      model_latency_s: "model time",
      tool_latency_s: "tool time",
      cost_usd: "cost",
      llm_subcalls: "sub-calls",
      iterations: "turns",
      depth_reached: "depth",
    };
    const table = (title, pairs, named) =>
      h(
        "section",
        { class: "card" },
        h("div", { class: "card-head" }, h("h2", {}, title)),
        h(
          "table",
          { class: "pairs" },
          h(
            "tbody",
            {},
            pairs.map((pair) => {
              const most = Math.max(pair.left, pair.right) || 1;
              const format = shown[pair.name] || count;
              return h(
                "tr",
                { class: pair.left === pair.right ? "" : "differs" },
                h(
                  "th",
                  { scope: "row" },
                  named ? names[pair.name] || pair.name.replace(/_/g, " ") : h("code", {}, pair.name),
                ),
                h("td", { class: "number" }, format(pair.left)),
                h("td", { class: "bar" }, meter(pair.left / most, "left")),
                h("td", { class: "bar" }, meter(pair.right / most, "right")),
                h("td", { class: "number" }, format(pair.right)),
              );
            }),
          ),
        ),
      );
    return h(
      "div",
      { class: "sides" },
      table("Cost and counts", found.numbers, true),
      table("Tools", found.tools, false),
    );
  }

  evidence(found) {
    const part = (title, seen) =>
      h(
        "article",
        { class: "side" },
        h("h3", {}, title),
        h("p", { class: "muted" }, `${count(seen.both)} in both`),
        [
          ["only left", seen.only_left, "removed"],
          ["only right", seen.only_right, "added"],
        ].map(([word, refs, kind]) =>
          refs.length
            ? [
                h("h4", {}, `${word} (${count(refs.length)})`),
                h(
                  "ul",
                  { class: `refs ${kind}` },
                  refs.slice(0, 200).map((ref) => h("li", {}, h("code", {}, ref))),
                ),
              ]
            : null,
        ),
      );
    return h(
      "section",
      { class: "card" },
      h("div", { class: "card-head" }, h("h2", {}, "Evidence")),
      h("div", { class: "sides" }, part("Seen", found.evidence), part("Cited", found.citations)),
    );
  }

  close() {
    for (const flame of this.flames) flame.close();
  }
}

function meter(share, side) {
  return h("div", { class: `meter ${side}`, style: { "--share": `${Math.round(share * 100)}%` } });
}

export async function opened(id) {
  const run = new RunModel(id);
  const news = await fetchNews(id, -1);
  run.running = news.running;
  run.add(news.events);
  return run;
}
