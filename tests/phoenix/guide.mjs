// Types each filter of docs/phoenix.md into its tab of a project, opens a trace, and prints as JSON what Phoenix showed.
// node guide.mjs PLAYWRIGHT_FOLDER PROJECT_ADDRESS '{"filters": [["Traces", "…"]], "trace": "http://…", "tab": …, "section": …}'
import { createRequire } from "node:module";

const [folder, project, text] = process.argv.slice(2);
const wanted = JSON.parse(text);
const { chromium } = createRequire(`${folder}/`)("playwright-core");
const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox"] });
const page = await browser.newPage({ viewport: { width: 1600, height: 1200 } });

// The page first asks whether a condition is valid, and only then for the rows of its table.
const asksRows = (request, condition) => {
    const { query = "", variables = {} } = request.url().endsWith("/graphql") ? request.postDataJSON() : {};
    return /(SpansTableSpans|TracesTable)Query/.test(query) && [variables.filterCondition, variables.traceFilterCondition].includes(condition);
};
const appears = (place) => place.first().waitFor({ timeout: 60_000 }).then(() => true, () => false);

const found = {};
for (const [tab, condition] of wanted.filters) {
    await page.goto(project, { waitUntil: "domcontentloaded", timeout: 90_000 });
    await page.getByRole("tab", { name: tab, exact: true }).click({ timeout: 60_000 });
    const asked = page.waitForResponse((reply) => asksRows(reply.request(), condition), { timeout: 30_000 });
    await page.locator(".cm-content").first().click();
    await page.keyboard.press("Control+a");
    await page.keyboard.insertText(condition);
    await page.keyboard.press("Enter");
    const rows = await asked.then((reply) => reply.text(), () => "");
    found[condition] = rows.includes('"edges":[{') && (await appears(page.locator("tbody").getByRole("link")));
}
await page.goto(wanted.trace, { waitUntil: "domcontentloaded", timeout: 90_000 });
const tab = await appears(page.getByRole("tab", { name: wanted.tab, exact: true }));
const section = await appears(page.getByRole("button", { name: wanted.section }));
await browser.close();
console.log(JSON.stringify({ found, tab, section }));
