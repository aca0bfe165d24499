// The issues of a watch: the list with their trends, and one issue with its rate, its proof, and what people do about it.

import { Answer } from "./answer.js";
import { count, h, many, money, pill, put, seconds, short, svg, when } from "./dom.js";
import { RunModel } from "./model.js";
import { Picture } from "./picture.js";
import { changeIssue, fetchIssue, fetchIssues, fetchIssueLook, fetchNews, issueKey } from "./source.js";

const LOOK_MS = 3000;
const day = (text) => when(text).slice(0, 16);

function spark(trend, label) {
  const high = Math.max(1, ...trend);
  const [wide, tall] = [5, 22];
  return svg(
    "svg",
    { class: "spark", width: trend.length * wide, height: tall, role: "img", "aria-label": label },
    svg("title", {}, label),
    trend.map((value, at) =>
      svg("rect", {
        class: value ? "hit" : "none",
        x: at * wide,
        width: wide - 1,
        y: value ? tall - Math.max(3, (value / high) * tall) : tall - 1,
        height: value ? Math.max(3, (value / high) * tall) : 1,
        rx: 1,
      }),
    ),
  );
}

export class Issues {
  constructor() {
    this.all = [];
    this.only = "open";
    this.filter = h("input", {
      type: "search",
      class: "filter wide",
      placeholder: "Filter by words, cause, release or person  ( / )",
      "aria-label": "Filter issues",
      oninput: () => this.paint(),
    });
    this.kinds = h("div", { class: "chips" });
    this.tiles = h("div", { class: "tiles" });
    this.problem = h("div", { class: "warnings", role: "alert" });
    this.state = h("p", { class: "muted", role: "status" }, "Reading the issues…");
    this.body = h("tbody");
    const heads = ["Issue", "State", "Last windows", "Traces", "Affected", "Last seen", "Cause", "Who"];
    this.table = h(
      "table",
      { class: "runs issues" },
      h("thead", {}, h("tr", {}, heads.map((name) => h("th", { scope: "col", class: name === "Traces" ? "number" : "" }, name)))),
      this.body,
    );
    this.node = h(
      "div",
      { class: "home" },
      this.problem,
      h("div", { class: "home-head" }, h("h1", {}, "Issues"), this.filter, this.kinds),
      this.tiles,
      this.state,
      h("div", { class: "card scroll" }, this.table),
    );
    this.timer = setInterval(() => document.hidden || this.load(), LOOK_MS);
  }

  async load() {
    try {
      const { watch, problem, rest } = await fetchIssues();
      this.watch = watch;
      this.all = watch.issues;
      const sentence = rest && `${rest[0].toUpperCase()}${rest.slice(1)}.`;
      const said = [sentence, problem && `The watch is not well: ${problem}.`, watch.outage && `The source cannot be read: ${watch.outage}`, ...watch.gaps.map((gap) => `Gap: ${gap}.`)];
      put(this.problem, ...said.filter(Boolean).map((text) => h("p", { class: "problem" }, text)));
      this.paint();
    } catch (error) {
      put(this.problem, h("p", { class: "problem" }, `The issues cannot be read: ${error.message}`));
    }
  }

  paint() {
    const kinds = {
      open: (each) => each.state !== "resolved" && !each.muted,
      resolved: (each) => each.state === "resolved" && !each.muted,
      muted: (each) => each.muted,
    };
    put(
      this.kinds,
      ...Object.entries(kinds).map(([name, is]) =>
        h(
          "button",
          { class: "chip", "aria-pressed": String(this.only === name), onclick: () => { this.only = name; this.paint(); } },
          `${name} ${count(this.all.filter(is).length)}`,
        ),
      ),
    );
    const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = this.all.filter(kinds[this.only]).filter((each) =>
      words.every((word) =>
        `${each.number} ${each.title} ${each.state} ${each.recovered ? "recovered" : ""} ${each.cause} ${each.assignee} ${each.releases.join(" ")}`.toLowerCase().includes(word),
      ),
    );
    const { watch } = this;
    const tile = (value, label) => h("div", { class: "tile" }, h("b", {}, value), h("span", {}, label));
    put(
      this.tiles,
      tile(count(watch.traces), `traces read${watch.project ? ` in ${short(watch.project, 30)}` : ""}`),
      tile(watch.traces ? `${((100 * watch.failed) / watch.traces).toFixed(1)} %` : "–", "failed"),
      tile(watch.behind_s ? seconds(watch.behind_s) : "0 s", "behind"),
      tile(money(watch.spent_day_usd), "spent in a day"),
      tile(count(watch.investigated), `investigated${watch.waiting ? `, ${count(watch.waiting)} waiting` : ""}`),
    );
    const rare = watch.rare ? `; ${many(watch.rare, "group")} too rare to be one` : "";
    const upTo = watch.cursor_us ? `; read up to ${day(watch.read_up_to)}` : "";
    put(this.state, document.createTextNode(`${many(shown.length, `${this.only} issue`)}${rare}${upTo}`));
    const focused = document.activeElement?.dataset?.issue;
    put(this.body, ...shown.slice(0, 500).map((each) => this.row(each)));
    if (focused) this.body.querySelector(`a[data-issue="${CSS.escape(focused)}"]`)?.focus();
  }

  row(issue) {
    const label = `${issue.trend.join(", ")} traces in the last ${issue.trend.length} windows`;
    const affected = [issue.users && many(issue.users, "user"), issue.sessions && many(issue.sessions, "session")].filter(Boolean);
    return h(
      "tr",
      { class: issue.muted ? "muted" : "" },
      h(
        "td",
        { class: "what" },
        h("a", { href: `#/issue/${issue.number}`, "data-issue": issue.number, title: issue.title }, `${issue.number}  ${short(issue.title, 110)}`),
      ),
      h("td", {}, pill(issue.state), issue.recovered ? h("span", { class: "badge" }, "recovered") : null),
      h("td", {}, spark(issue.trend, label)),
      h("td", { class: "number" }, count(issue.traces)),
      h("td", { class: "muted" }, affected.join(", ")),
      h("td", { class: "muted nowrap" }, day(issue.last_seen)),
      h("td", {}, issue.cause.replace(/_/g, " "), issue.investigated ? h("span", { class: "badge" }, "investigated") : null),
      h("td", { class: "muted" }, short(issue.assignee, 30)),
    );
  }

  close() {
    clearInterval(this.timer);
  }
}

export class Issue {
  constructor(number) {
    this.number = number;
    this.shown = "";
    this.head = h("section", { class: "question" });
    this.acts = h("section", { class: "card acts", "aria-label": "What you can do" });
    this.said = h("p", { class: "problem", role: "alert", hidden: true });
    this.rates = h("div", {});
    this.changes = h("div", {});
    this.proof = h("div", { class: "run" });
    this.trace = h("div", {});
    this.groups = h("div", {});
    this.history = h("div", {});
    this.node = h("div", { class: "run issue" }, this.said, this.head, this.acts, this.rates, this.changes, this.proof, this.trace, this.groups, this.history);
    this.parts = [];
    this.apart = [];
    this.timer = setInterval(() => document.hidden || this.load(), LOOK_MS);
  }

  async load() {
    try {
      const issue = await fetchIssue(this.number);
      if (JSON.stringify(issue) === this.shown) return;
      this.shown = JSON.stringify(issue);
      this.paint(issue);
    } catch (error) {
      this.complain(error);
    }
  }

  complain(error) {
    this.said.hidden = !error;
    put(this.said, document.createTextNode(error ? error.message : ""));
  }

  paint(issue) {
    const { rate_over_time: rate } = issue;
    document.title = `${issue.number} ${short(issue.title, 50)} · Sonde`;
    const tile = (value, label) => h("div", { class: "tile" }, h("b", {}, value), h("span", {}, label));
    put(
      this.head,
      h("div", { class: "meta" }, pill(issue.state), issue.recovered ? h("span", { class: "pill" }, "recovered") : null, issue.muted ? h("span", { class: "pill" }, "muted") : null, h("span", {}, `issue ${issue.number}, since ${day(issue.since)}`)),
      h("h1", { class: "long" }, short(issue.title, 300)),
      h(
        "div",
        { class: "tiles" },
        tile(count(issue.count), "traces"),
        tile(String(issue.rate), "per window"),
        tile(count(issue.users), "users"),
        tile(count(issue.sessions), "sessions"),
        tile(day(issue.first_seen), "first seen"),
        tile(day(issue.last_seen), "last seen"),
      ),
      h(
        "p",
        {},
        h("b", {}, short(issue.cause, 80).replace(/_/g, " ")),
        h("span", { class: "muted" }, issue.judge === "LLM" ? ", found by an investigation" : ", by a rule; not investigated yet"),
        issue.assignee ? `; ${short(issue.assignee, 60)} looks after it` : "; nobody looks after it",
        issue.fixed_in ? `; fixed in ${short(issue.fixed_in, 60)}` : "",
      ),
    );
    if (!this.acts.contains(document.activeElement)) this.offer(issue);
    this.draw(issue, rate);
    this.change(issue);
    this.prove(issue);
    put(this.groups, issue.signatures.length > 1 ? this.list(issue) : null);
    put(this.history, this.told(issue));
  }

  draw(issue, rate) {
    this.picture?.close();
    const changes = issue.changes.filter((each) => each.suspect).map((each) => ({ at: `${each.at.slice(0, 19)}Z`, name: `release ${each.release}` }));
    const said = `${count(issue.count)} of ${many(rate.reduce((total, each) => total + each.traces, 0), "trace")} show it`;
    const group = { component: issue.component, message: issue.message, count: issue.count, rate_over_time: rate, onset: { at: day(issue.first_seen) } };
    const report = { window: { rate_over_time: rate, said }, groups: [group], changes };
    const run = { id: "", start: { run_type: "rca" }, end: { output: report } };
    this.picture = new Picture(run, { excerpts: [] });
    put(this.rates, this.picture.node);
    this.picture.paint();
  }

  change(issue) {
    const shows = issue.changes.filter((each) => each.shows_it);
    const rows = issue.changes.map((each) =>
      h(
        "tr",
        {},
        h("th", { scope: "row" }, short(each.release, 60)),
        h("td", { class: "muted nowrap" }, day(each.at)),
        h("td", {}, h("span", { class: `cell ${each.shows_it ? "v-fail" : "v-pass"}` }, each.shows_it ? "shows it" : "not seen in it")),
        h("td", {}, each.suspect ? h("b", {}, "first seen within the hour before the onset") : ""),
      ),
    );
    const others = issue.together.map((each) =>
      h("li", {}, h("a", { href: `#/issue/${each.number}` }, `issue ${each.number}`), ` ${short(each.title, 160)}, ${day(each.at)}`),
    );
    const percent = (share) => `${Math.round(100 * share)} %`;
    const apart = this.apart.map((each) =>
      h(
        "tr",
        {},
        h("th", { scope: "row" }, short(each.key, 60)),
        h("td", {}, short(each.value, 100)),
        h("td", { class: "muted" }, `${percent(each.share)} of ${each.of} traces of it, ${percent(each.before)} of ${each.of_before} in the hour before`),
      ),
    );
    put(
      this.changes,
      rows.length || others.length || apart.length
        ? h(
            "section",
            { class: "card picture around", "aria-label": "Around its onset" },
            h(
              "div",
              { class: "card-head" },
              h("h2", {}, "Around its onset"),
              h("span", { class: "muted" }, rows.length ? `${shows.length} of ${many(rows.length, "release")} show it` : ""),
            ),
            rows.length ? h("div", { class: "scroll" }, h("table", { class: "matrix" }, h("tbody", {}, rows))) : null,
            apart.length ? h("h3", {}, "What sets its traces apart") : null,
            apart.length ? h("div", { class: "scroll" }, h("table", { class: "matrix" }, h("tbody", {}, apart))) : null,
            others.length ? h("h3", {}, "Began at the same time") : null,
            others.length ? h("ul", {}, others) : null,
          )
        : null,
    );
  }

  // The best investigation with its evidence and its trace; without one, the latest trace that shows the issue.
  async prove(issue) {
    const wanted = issue.proof ? `run ${issue.proof.run}` : `trace ${issue.trace_ids.at(-1)}`;
    if (this.proving === wanted) return;
    this.proving = wanted;
    for (const part of this.parts) part.close?.();
    this.parts = [];
    put(this.proof);
    put(this.trace);
    const look = await fetchIssueLook(issue.number).catch(() => null);
    this.apart = look?.apart ?? [];
    this.change(issue);
    if (issue.proof) {
      try {
        const run = new RunModel(issue.proof.run);
        const answer = new Answer(run, (n) => (location.hash = `#/run/${encodeURIComponent(run.id)}?step=${n}`));
        const picture = new Picture(run, answer);
        this.parts = [picture];
        put(
          this.proof,
          h("p", { class: "muted proof-head" }, "The best investigation of this issue. ", h("a", { href: `#/run/${encodeURIComponent(run.id)}` }, "Every step of it")),
          answer.node,
          picture.node,
        );
        const news = await fetchNews(run.id, -1);
        run.add(news.events);
        answer.refresh();
        await answer.load();
        await picture.load();
        return;
      } catch (error) {
        put(this.proof, h("p", { class: "notice" }, `The investigation cannot be shown: ${error.message}`));
      }
    }
    if (!look?.trace) return;
    const { trace } = look;
    const picture = new Picture({ id: "", start: { run_type: "rca" }, end: { output: { trace_id: trace.trace_id } } }, { excerpts: [] }, "The latest trace that shows it");
    picture.trace = trace;
    this.parts = [picture];
    put(this.trace, picture.node);
    picture.paint();
  }

  list(issue) {
    const groups = issue.signatures.map((each) =>
      h(
        "tr",
        {},
        h("th", { scope: "row" }, short(each.component, 60)),
        h("td", {}, short(each.form, 200)),
        h("td", { class: "number" }, count(each.count)),
        h("td", {}, issueKey() ? h("button", { class: "link", onclick: () => this.act("split", { group: each.id }) }, "make it an issue of its own") : ""),
      ),
    );
    return h(
      "section",
      { class: "card picture", "aria-label": "Groups" },
      h("div", { class: "card-head" }, h("h2", {}, "Groups of failures in it")),
      h("div", { class: "scroll" }, h("table", { class: "matrix" }, h("tbody", {}, groups))),
    );
  }

  told(issue) {
    const rows = [
      ...issue.happenings.map((each) => ({ at: each.at, what: each.kind, text: each.text })),
      ...issue.notes.map((each) => ({ at: each.at, what: `${each.author || "somebody"} noted`, text: each.text })),
    ].sort((a, b) => (a.at < b.at ? 1 : -1));
    return h(
      "section",
      { class: "card picture", "aria-label": "What happened" },
      h("div", { class: "card-head" }, h("h2", {}, "What happened")),
      h(
        "ul",
        { class: "told" },
        rows.slice(0, 100).map((each) => h("li", {}, h("span", { class: "muted nowrap" }, day(each.at)), " ", h("b", {}, each.what), each.text ? `: ${short(each.text, 600)}` : "")),
      ),
    );
  }

  offer(issue) {
    if (!issueKey()) {
      put(this.acts, h("p", { class: "muted" }, "You can only read here. The address that `sonde view` prints lets you change issues; so does `sonde issues`."));
      return;
    }
    const button = (label, action, body = {}) => h("button", { class: "chip", onclick: () => this.act(action, body) }, label);
    const field = (label, action, name, more = {}) => {
      const input = h("input", { class: "filter", placeholder: label, "aria-label": label, ...more });
      const send = (event) => {
        event.preventDefault();
        const value = more.type === "number" ? Number(input.value) : input.value;
        this.act(action, { [name]: value });
      };
      return h("form", { class: "act", onsubmit: send }, input, h("button", { class: "chip" }, action));
    };
    put(
      this.acts,
      h(
        "div",
        { class: "chips" },
        issue.state === "resolved" ? button("reopen", "reopen") : null,
        issue.muted ? button("unmute", "mute", { off: true }) : button("mute", "mute"),
        issue.state === "resolved" ? null : field("Fixed in release, if known", "resolve", "release"),
        field("Who looks after it", "assign", "who"),
        field("Into issue number", "merge", "into", { type: "number", min: 1, required: true }),
        field("A note", "note", "text", { required: true, class: "filter wide" }),
      ),
    );
  }

  async act(action, body) {
    try {
      const issue = await changeIssue(this.number, action, body);
      this.complain(null);
      if (String(issue.number) !== String(this.number)) return (location.hash = `#/issue/${issue.number}`);
      this.shown = "";
      document.activeElement?.blur();
      this.offer(issue);
      this.paint(issue);
    } catch (error) {
      this.complain(error);
    }
  }

  close() {
    clearInterval(this.timer);
    this.picture?.close();
    for (const part of this.parts) part.close?.();
  }
}
