// The demo in a real VS Code: code-server, chromium, the packaged extension, and a runtime with a scripted model.
//
//   node test/vscode/demo.mjs REPOSITORY       screenshots go to REPOSITORY/.tools/shots
//
// Three runs in one window: accept and follow a citation, reject with a reason, cancel.
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { cp, mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

const repository = process.argv[2];
const tools = join(repository, ".tools/code-server");
const { chromium } = createRequire(join(tools, "package.json"))("playwright-core");
const server = join(tools, "node_modules/code-server/out/node/entry.js");
const shots = join(repository, ".tools/shots");
const DEMO = "Add a function that normalizes whitespace in sample.ts and update its test";

const home = await mkdtemp(join(tmpdir(), "sonde-vscode-"));
const workspace = join(home, "demo");
const [data, extensions] = [join(home, "data"), join(home, "extensions")];
const PYTHON = join(repository, ".venv/bin/python");

async function prepare() {
  await mkdir(shots, { recursive: true });
  await mkdir(join(data, "User"), { recursive: true });
  await cp(join(repository, "examples/demo-workspace"), workspace, { recursive: true });
  const settings = {
    "sonde.pythonPath": PYTHON,
    "sonde.model": `command:${PYTHON} ${join(repository, "tests/server/scripted_model.py")}`,
    "workbench.startupEditor": "none",
    "workbench.tips.enabled": false,
    "telemetry.telemetryLevel": "off",
    "extensions.autoCheckUpdates": false,
  };
  await writeFile(join(data, "User/settings.json"), JSON.stringify(settings));
  const install = ["--install-extension", join(repository, "vscode/sonde.vsix"), "--extensions-dir", extensions];
  execFileSync("node", [server, ...install, "--user-data-dir", data], {
    stdio: "inherit",
    env: { ...process.env, HOME: home },
  });
}

function freePort() {
  return new Promise((resolve) => {
    const probe = createServer().listen(0, "127.0.0.1", () => {
      const { port } = probe.address();
      probe.close(() => resolve(port));
    });
  });
}

/** code-server on a port of its own; resolves when it listens. */
async function serve(port) {
  const options = [
    "--auth",
    "none",
    "--bind-addr",
    `127.0.0.1:${port}`,
    "--user-data-dir",
    data,
    "--extensions-dir",
    extensions,
  ];
  const quiet = ["--disable-telemetry", "--disable-update-check", "--disable-getting-started-override"];
  const child = spawn("node", [server, ...options, ...quiet, workspace], { env: { ...process.env, HOME: home } });
  await new Promise((resolve, reject) => {
    child.stdout.on("data", (text) => String(text).includes("HTTP server listening") && resolve());
    child.once("exit", (code) => reject(new Error(`code-server ended with ${code}`)));
  });
  return child;
}

async function command(page, name, input) {
  const box = page.locator(".quick-input-widget input");
  const found = page.locator(".quick-input-list .monaco-list-row", { hasText: name }).first();
  await until(async () => {
    // A new window may not know the commands yet, and the list does not grow while it is open.
    await page.keyboard.press("Escape");
    await page.keyboard.press("F1");
    await box.fill(`>${name}`);
    return found.waitFor({ timeout: 5_000 }).then(
      () => true,
      () => false,
    );
  });
  await found.click();
  if (input !== undefined) {
    await page.locator(".quick-input-widget .quick-input-title", { hasText: /Sonde|Reject/ }).waitFor();
    await box.fill(input);
    await page.keyboard.press("Enter");
  }
}

let count = 0;
async function shot(page, name) {
  count += 1;
  await page.screenshot({ path: join(shots, `${count}-${name}.png`) });
  console.log(`  ${count}-${name}.png`);
}

const button = (page, name) => page.locator(".notifications-toasts a", { hasText: new RegExp(`^${name}$`) });
const row = (page, text) => page.locator(".pane-body .monaco-list-row", { hasText: text }).first();
const sampleTest = () => readFile(join(workspace, "sample.test.ts"), "utf8");
const sample = () => readFile(join(workspace, "sample.ts"), "utf8");

async function until(condition) {
  for (let tries = 0; !(await condition()); tries += 1) {
    assert.ok(tries < 100, "it did not happen in time");
    await page.waitForTimeout(50);
  }
}

async function reset() {
  for (const name of ["sample.ts", "sample.test.ts"]) {
    await cp(join(repository, "examples/demo-workspace", name), join(workspace, name));
  }
}

async function untrustedFirst(page) {
  await page.getByRole("button", { name: /No, I don't trust/ }).click({ timeout: 60_000 });
  await page.locator(".activitybar .action-label[aria-label^='Sonde']").first().click();
  await page
    .locator(".welcome-view-content", { hasText: "Sonde starts nothing in a folder that is not trusted" })
    .waitFor();
  await page.keyboard.press("F1");
  await page.locator(".quick-input-widget input").fill(">Sonde: ");
  await page.locator(".quick-input-list .monaco-list-row", { hasText: "Sonde: Restart Runtime" }).waitFor();
  assert.equal(await page.locator(".quick-input-list .monaco-list-row", { hasText: "Sonde: Run Task" }).count(), 0);
  await shot(page, "untrusted");
  await page.keyboard.press("Escape");
  await page.locator(".welcome-view-content .monaco-button", { hasText: "Manage Trust" }).click();
  await page
    .locator(".workspace-trust-editor .monaco-button", { hasText: /^Trust$/ })
    .first()
    .click();
  await page.locator(".welcome-view-content", { hasText: "Nothing has run yet" }).waitFor();
}

async function acceptAndCite(page) {
  await command(page, "Sonde: Run Task", DEMO);
  await button(page, "Accept").waitFor();
  await row(page, "apply_patch").waitFor();
  await page.locator(".monaco-diff-editor, .multiDiffEntry").first().waitFor();
  await shot(page, "diff");
  await button(page, "Accept").click();
  await row(page, /^sample\.ts:9-12/).waitFor();
  await shot(page, "result");
  assert.match(await sample(), /export function normalizeWhitespace/);
  assert.match(await sampleTest(), /describe\("normalizeWhitespace"/);
  await row(page, /^sample\.ts:9-12/).click();
  await page.locator(".tab.active", { hasText: "sample.ts" }).waitFor();
  await page.locator(".statusbar-item", { hasText: /Ln 12/ }).waitFor();
  await shot(page, "citation");
  await page.locator(".editor-instance .view-lines").first().click();
  await page.keyboard.press("Control+z");
  await page.locator(".view-lines", { hasNotText: "normalizeWhitespace" }).first().waitFor();
  await command(page, "File: Save All Files");
  await until(async () => !/normalizeWhitespace/.test((await sample()) + (await sampleTest())));
  await shot(page, "undone");
}

async function acceptInTitle(page) {
  await command(page, "Sonde: Clear Trace");
  await command(page, "Sonde: Run Task", DEMO);
  await page.locator(".editor-actions .action-label[aria-label^='Accept Change']").first().click();
  await row(page, /^sample\.ts:9-12/).waitFor();
  assert.match(await sample(), /export function normalizeWhitespace/);
}

async function rejectWithReason(page) {
  await reset();
  await command(page, "Sonde: Run Task", DEMO);
  await button(page, "Reject…").click();
  await page.locator(".quick-input-widget .quick-input-title", { hasText: "Reject" }).waitFor();
  await page.locator(".quick-input-widget input").fill("use trimEnd instead");
  await shot(page, "reason");
  await page.keyboard.press("Enter");
  await page.locator(".view-lines", { hasText: "use trimEnd instead" }).first().waitFor();
  await shot(page, "rejected");
  assert.doesNotMatch(await sample(), /normalizeWhitespace/);
}

async function cancel(page) {
  await command(page, "Sonde: Run Task", `wait: ${DEMO}`);
  await row(page, "Plan the change slowly").waitFor();
  await page
    .locator(
      ".pane-header .action-label[aria-label^='Cancel Task'], .title-actions .action-label[aria-label^='Cancel Task']",
    )
    .first()
    .waitFor();
  await shot(page, "running");
  await command(page, "Sonde: Cancel Task");
  await page
    .locator(".pane-body .monaco-list-row", { hasText: /^wait: .*cancelled/ })
    .first()
    .waitFor();
  await shot(page, "cancelled");
}

/** 5,000 nodes in the tree: the window must still answer at once. */
async function manyNodes(page) {
  const folder = join(home, "many");
  await mkdir(join(folder, ".vscode"), { recursive: true });
  // Both in the folder: a new window may have read the folder's settings and not yet the user's.
  const settings = { "sonde.pythonPath": PYTHON, "sonde.serveArguments": [join(repository, "tests/server/double.py")] };
  await writeFile(join(folder, ".vscode/settings.json"), JSON.stringify(settings));
  await page.goto(page.url().replace(/folder=.*/, `folder=${folder}`));
  await page.getByRole("button", { name: /Yes, I trust the authors/ }).click({ timeout: 60_000 });
  await command(page, "Sonde: Run Task", "many 5000");
  await row(page, /^many 5000.*succeeded/).waitFor();
  await row(page, "4801 to 5000").or(row(page, "event 4999")).first().waitFor();
  const started = performance.now();
  await page.keyboard.press("F1");
  await page.locator(".quick-input-widget input").waitFor();
  const answered = Math.round(performance.now() - started);
  await page.keyboard.press("Escape");
  await shot(page, "many");
  console.log(`  the window answered after ${answered} ms with 5,000 nodes in the tree`);
  assert.ok(answered < 1000);
}

await prepare();
const port = await freePort();
const code = await serve(port);
const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox"] });
const page = await browser.newPage({ viewport: { width: 1500, height: 900 } });
page.setDefaultTimeout(30_000);
try {
  await page.goto(`http://127.0.0.1:${port}/?folder=${workspace}`);
  for (const step of [untrustedFirst, acceptAndCite, acceptInTitle, rejectWithReason, cancel, manyNodes]) {
    console.log(step.name);
    await step(page);
  }
  console.log("all seen");
} catch (error) {
  await shot(page, "failed");
  throw error;
} finally {
  await browser.close();
  code.kill();
  await rm(home, { recursive: true, force: true, maxRetries: 5 });
}
