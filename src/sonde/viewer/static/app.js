// Wires the page: which view the address asks for, news of a run that goes on, the keyboard, dark and light.

import { Answer } from "./answer.js";
import { Compare } from "./compare.js";
import { byId, h, put, short } from "./dom.js";
import { Flame } from "./flame.js";
import { Issue, Issues } from "./issues.js";
import { RunModel } from "./model.js";
import { Picture } from "./picture.js";
import { Runs } from "./runs.js";
import { fetchIssues, fetchNews, issueKey, listRuns, offline } from "./source.js";
import { Steps } from "./steps.js";

const POLL_MS = 600;
let view = null;
let watched = null; // whether there is a watch whose issues come first

class RunPage {
  constructor(id, step) {
    this.run = new RunModel(id);
    this.wanted = step;
    this.warning = h("div", { class: "warnings", role: "alert" });
    this.answer = new Answer(this.run, (n) => this.jump(n));
    this.picture = new Picture(this.run, this.answer);
    this.flame = new Flame(this.run, (chosen) => this.choose(chosen));
    this.steps = new Steps(this.run, (chosen) => this.chosen(chosen));
    this.node = h("div", { class: "run" }, this.warning, this.answer.node, this.picture.node, this.flame.node, this.steps.node);
  }

  async load() {
    try {
      await this.more();
      await this.answer.load();
      await this.picture.load();
      if (this.wanted !== null) this.jump(this.wanted);
      else
        this.steps.choose(
          this.steps.rows.findIndex((step) => step.kind === "code"),
          true,
        );
    } catch (error) {
      put(this.warning, h("p", { class: "problem" }, error.message));
    }
  }

  async more() {
    const news = await fetchNews(this.run.id, this.run.seen - 1);
    if (news.total < this.run.seen) return location.reload(); // the journal was replaced: start anew
    const ended = this.run.end;
    this.run.running = news.running;
    this.run.add(news.events);
    this.warn(news);
    if (news.events.length || !this.painted) this.refresh();
    if (this.run.end && !ended && this.painted) this.answer.load().then(() => this.picture.load());
    this.painted = true;
    put(byId("live"), news.running ? h("span", { class: "live" }, h("i"), "live") : null);
    if (news.running && view === this)
      this.timer = setTimeout(
        () => this.more().catch((error) => put(byId("live"), document.createTextNode(error.message))),
        POLL_MS,
      );
  }

  warn(news) {
    const found = [];
    if (news.tampered_line)
      found.push(
        h(
          "p",
          { class: "problem" },
          `Line ${news.tampered_line} of the journal does not fit its checksum: it was changed after it was written. What follows it is not shown.`,
        ),
      );
    if (news.torn)
      found.push(
        h(
          "p",
          { class: "notice" },
          "The journal ends in a torn line: the run was cut off while writing. Everything before it is sound.",
        ),
      );
    if (news.stranger)
      found.push(
        h(
          "p",
          { class: "problem" },
          `This run does not have ${offline ? "the seal of who exported this page" : "your seal"}: whoever made it wrote what it says of its proofs.`,
        ),
      );
    if (this.run.start?.settings?.redacted)
      found.push(h("p", { class: "notice" }, "This run was redacted: it can be read but not replayed."));
    put(this.warning, ...found);
  }

  refresh() {
    document.title = `${short(this.run.start?.objective, 60) || this.run.id} · Sonde`;
    this.answer.refresh();
    this.steps.refresh();
    this.flame.draw();
  }

  choose(step) {
    if (step.ns) this.steps.show(step);
    else this.steps.only(step.session === "root" ? null : step.session);
  }

  chosen(step) {
    this.flame.choose(step);
    history.replaceState(null, "", `#/run/${encodeURIComponent(this.run.id)}?step=${step.ns[0]}`);
  }

  jump(n) {
    const step = this.run.steps.find((each) => each.ns.includes(n));
    if (!step) return;
    this.steps.node.scrollIntoView({ block: "start" });
    this.steps.show(step);
  }

  close() {
    clearTimeout(this.timer);
    put(byId("live"));
    this.flame.close();
    this.picture.close();
    this.steps.close();
  }
}

async function open() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter(Boolean).map(decodeURIComponent);
  view?.close();
  const given = new URLSearchParams(query || "");
  const step = given.get("step");
  if (given.get("key")) {
    issueKey(given.get("key"));
    history.replaceState(null, "", `#/${path}`);
  }
  watched ??= (await fetchIssues().catch(() => null)) !== null;
  if (parts[0] === "issue" && parts[1] && watched) view = new Issue(parts[1]);
  else if (watched && !parts.length) view = new Issues();
  else if (parts[0] === "run" && parts[1]) view = new RunPage(parts[1], step === null ? null : Number(step));
  else if (parts[0] === "compare" && parts[2]) view = new Compare(parts[1], parts[2]);
  else if (offline) {
    const [only] = await listRuns();
    location.replace(`#/run/${encodeURIComponent(only.run_id)}`);
    return;
  } else view = new Runs();
  document.title = "Sonde";
  put(byId("crumbs"), ...crumbs(parts));
  put(byId("main"), view.node);
  await view.load();
}

function crumbs(parts) {
  const runs = watched ? "#/runs" : "#/";
  const here = parts[0] ?? (watched ? "issues" : "runs");
  if (!watched && !parts.length) return [];
  const rest = { run: [parts[1]], issue: [`issue ${parts[1]}`], compare: [`compare ${parts[1]} with ${parts[2]}`] }[here] ?? [];
  return [
    watched ? h("a", { href: "#/", "aria-current": here === "issues" && "page" }, "issues") : null,
    offline || here === "issue" ? null : h("a", { href: runs, "aria-current": here === "runs" && "page" }, "runs"),
    ...rest.map((name) => h("span", { title: name }, short(name, 60))),
  ].filter(Boolean);
}

const KEYS = [
  ["/", "filter"],
  ["j  k  ↓  ↑", "next or previous step"],
  ["Enter", "to the details of the step"],
  ["Esc", "out of a field; clear the filter"],
  ["s", "to the steps"],
  ["t", "to the timeline"],
  ["+  −  0  ←  →", "in the timeline: zoom, everything, move"],
  ["g", "issues, or all runs"],
  ["d", "dark or light"],
  ["?", "this list"],
];

function showKeys() {
  const dialog = byId("keys");
  put(
    dialog,
    h("h2", {}, "Keys"),
    h(
      "dl",
      {},
      KEYS.map(([key, what]) => h("div", {}, h("dt", {}, h("kbd", {}, key)), h("dd", {}, what))),
    ),
    h("form", { method: "dialog" }, h("button", { class: "primary" }, "Close")),
  );
  dialog.showModal();
}

function turnTheme() {
  const dark =
    getComputedStyle(document.documentElement).colorScheme.trim() === "dark" ||
    (document.documentElement.dataset.theme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  view?.flame?.draw();
  for (const flame of view?.flames || []) flame.draw();
}

const ACTS = {
  "/": () => document.querySelector("input.filter")?.focus(),
  "?": showKeys,
  d: turnTheme,
  g: () => (location.hash = "#/"),
  s: () => view?.steps?.list.focus(),
  t: () => view?.flame?.canvas.focus(),
  j: () => view?.steps?.key({ key: "j", preventDefault() {} }),
  k: () => view?.steps?.key({ key: "k", preventDefault() {} }),
};

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && event.target.matches("input")) {
    event.target.value = "";
    event.target.dispatchEvent(new Event("input"));
    event.target.blur();
  }
  if (
    event.defaultPrevented ||
    event.ctrlKey ||
    event.metaKey ||
    event.altKey ||
    event.target.matches("input, textarea, select, dialog *")
  )
    return;
  if (!ACTS[event.key] || (event.target.matches(".list") && "jk".includes(event.key))) return;
  event.preventDefault();
  ACTS[event.key]();
});
byId("help").addEventListener("click", showKeys);
byId("theme").addEventListener("click", turnTheme);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => view?.flame?.draw());
window.addEventListener("hashchange", open);
open();
