// Drives the viewer in a real browser as a person would, and prints what it saw as JSON on its last line.
// node drive.mjs URL ONE_FILE SHOTS TOOLS   (the runs are those of test_browser.py)

import { createRequire } from "node:module";

const [url, oneFile, shots, tools] = process.argv.slice(2);
const { chromium } = createRequire(`${tools}/`)("playwright-core");
const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox"] });
const seen = { problems: [], foreign: [], dialogs: 0 };

async function newPage(scheme) {
  const page = await browser.newPage({ viewport: { width: 1440, height: 960 }, colorScheme: scheme });
  page.on("console", (message) => message.type() === "error" && seen.problems.push(message.text()));
  page.on("pageerror", (error) => seen.problems.push(error.message));
  page.on(
    "request",
    (request) => !/^(http:\/\/127\.0\.0\.1:|data:|file:)/.test(request.url()) && seen.foreign.push(request.url()),
  );
  page.on("dialog", (dialog) => {
    seen.dialogs += 1;
    dialog.dismiss();
  });
  return page;
}

const total = (page) => page.locator(".steps .card-head > .muted").textContent();

async function home(page) {
  await page.goto(url);
  await page.locator("tbody tr").first().waitFor();
  seen.runs = await page.locator("tbody tr").count();
  await page.keyboard.press("/");
  await page.keyboard.type("story-b");
  await page.locator("tbody tr").nth(1).waitFor({ state: "detached" });
  seen.filtered_runs = await page.locator("tbody tr").count();
  await page.keyboard.press("Escape");
}

async function story(page) {
  await page.goto(`${url}#/run/story-a`);
  await page.locator(".excerpt").nth(1).waitFor();
  seen.verified = await page.locator(".badge.verified").count();
  seen.excerpt = (await page.locator(".excerpt pre").first().innerText()).trim();
  await page.locator(".prose .cite").nth(1).click();
  seen.pointed = await page.locator(".excerpt.on .where").innerText();
  seen.pointed_lines = await page.locator(".excerpt.on .muted").innerText();
  await page.locator(".excerpt.on .link").click();
  await page.locator(".row.on", { hasText: "read_file" }).waitFor();
  seen.hashes = await page.locator(".pane .hash").count();
}

async function steps(page) {
  seen.all_steps = await total(page);
  await page.locator(".steps input.filter").fill("grep");
  await page.locator(".row", { hasText: "list_files" }).waitFor({ state: "detached" });
  seen.filtered_steps = await total(page);
  await page.locator(".steps input.filter").press("Escape");
  await page.locator(".chip", { hasText: "Gates" }).click();
  seen.gate_steps = await total(page);
  await page.locator(".chip", { hasText: "Gates" }).click();
  await page.locator(".row.k-model").nth(1).click();
  await page.locator(".message").nth(2).waitFor();
  seen.messages = await page.locator(".message").count();
  await page.locator(".message summary").first().click();
  seen.system_prompt = await page.locator(".message pre").first().innerText();
  await page.locator(".row.k-code").first().click();
  await page.locator(".pane pre.code").waitFor();
  seen.highlighted = await page.locator(".pane .py-call").count();
}

async function keys(page) {
  await page.keyboard.press("s");
  await page.keyboard.press("Home");
  await page.keyboard.press("j");
  await page.keyboard.press("ArrowDown");
  seen.chosen = await page.locator(".row.on").getAttribute("id");
  await page.keyboard.press("?");
  seen.help = await page.locator("dialog[open]").count();
  await page.keyboard.press("Escape");
  await page.keyboard.press("t");
  await page.keyboard.press("+");
  seen.focused = await page.evaluate(() => document.activeElement.tagName);
  const before = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  await page.keyboard.press("d");
  seen.theme_turned = before !== (await page.evaluate(() => getComputedStyle(document.body).backgroundColor));
  await page.keyboard.press("d");
}

async function flame(page) {
  const box = await page.locator("canvas").boundingBox();
  await page.locator("canvas").scrollIntoViewIfNeeded();
  await page.mouse.move(box.x + 60, box.y + 32);
  seen.tip = await page.locator("#tip").innerText();
  seen.curves = await page.locator(".budget path").count();
}

async function hostile(page) {
  await page.goto(`${url}#/run/story-b`);
  await page.locator(".excerpt").first().waitFor();
  for (const kind of ["model", "code", "tool", "subcall", "evidence", "gate", "note"]) {
    await page.locator(`.row.k-${kind}`).first().click();
    await page.locator(`.pane-head`).waitFor();
  }
  seen.hostile_nodes = await page.locator("main img, main script, main iframe").count();
  seen.hostile_text = (await page.locator("h1").innerText()).includes("<img src=x");
}

async function long(page) {
  const times = [];
  for (let attempt = 0; attempt < 3; attempt++) {
    await page.goto("about:blank");
    const began = Date.now();
    await page.goto(`${url}#/run/long`);
    await page.locator(".steps .card-head > .muted", { hasText: /\d,\d+ steps/ }).waitFor();
    times.push(Date.now() - began);
  }
  seen.long_ms = Math.min(...times);
  seen.long_steps = await total(page);
  seen.frames = await page.evaluate(async () => {
    const list = document.querySelector(".list");
    const times = [];
    let last = performance.now();
    for (let at = 0; at < 60; at++) {
      list.scrollTop = (at / 60) * list.scrollHeight;
      await new Promise((done) => requestAnimationFrame(done));
      times.push(performance.now() - last);
      last = performance.now();
    }
    return times.sort((a, b) => a - b)[30];
  });
  seen.rows_built = await page.locator(".row").count();
}

async function compare(page) {
  await page.goto(`${url}#/`);
  for (const name of ["story-a", "story-c"]) await page.getByLabel(`Choose ${name} for comparison`).check();
  await page.getByRole("button", { name: "Compare two runs" }).click();
  await page.locator(".verdict").waitFor();
  seen.same = await page.locator(".verdict h1").innerText();
  await page.goto(`${url}#/compare/story-a/story-b`);
  await page.locator(".verdict .sides").waitFor();
  seen.differs = await page.locator(".verdict h1").innerText();
  seen.two_timelines = await page.locator("canvas").count();
}

async function broken(page) {
  await page.goto(`${url}#/run/tampered`);
  seen.tampered = await page.locator(".problem").first().innerText();
  await page.goto(`${url}#/run/nosuch`);
  seen.nosuch = await page.locator(".problem", { hasText: "nosuch" }).innerText();
}

async function single(page) {
  await page.goto(`file://${oneFile}`);
  await page.locator(".excerpt").first().waitFor();
  await page.locator(".row.k-model").nth(1).click();
  await page.locator(".message").first().waitFor();
  seen.one_file = await page.locator("h1").innerText();
  seen.one_file_verified = await page.locator(".badge.verified").count();
}

async function live(page) {
  await page.goto(`${url}#/run/live`);
  await page.locator(".live").waitFor();
  const before = await total(page);
  console.log("READY");
  await page.locator(".pill.succeeded").waitFor();
  await page.locator(".live").waitFor({ state: "detached" });
  seen.live = [before, await total(page)];
  seen.live_answer = await page.locator(".answer .prose").first().innerText();
}

for (const scheme of ["light", "dark"]) {
  const page = await newPage(scheme);
  await home(page);
  await page.screenshot({ path: `${shots}/home-${scheme}.png` });
  await story(page);
  await page.evaluate(() => scrollTo(0, 0));
  await page.screenshot({ path: `${shots}/run-${scheme}.png`, fullPage: true });
  seen[`paper_${scheme}`] = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  if (scheme === "light")
    for (const part of [steps, keys, flame, hostile, long, broken, single, live]) await part(page);
  await compare(page);
  await page.screenshot({ path: `${shots}/compare-${scheme}.png`, fullPage: true });
  await page.close();
}
const phone = await newPage("light");
await phone.setViewportSize({ width: 390, height: 800 });
await phone.goto(`${url}#/run/story-a`);
await phone.locator(".excerpt").first().waitFor();
seen.phone_overflow = await phone.evaluate(() => document.documentElement.scrollWidth - innerWidth);
await phone.screenshot({ path: `${shots}/phone.png`, fullPage: true });
await browser.close();
console.log(JSON.stringify(seen));
