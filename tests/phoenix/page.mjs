// Opens pages of a Phoenix server in chromium and prints, as JSON, which of the wanted words each one shows.
// node page.mjs PLAYWRIGHT_FOLDER SHOTS_FOLDER '[["http://…/redirects/spans/…", ["rca.evidence"]], …]'
import { createRequire } from "node:module";

const [folder, shots, wanted] = process.argv.slice(2);
const { chromium } = createRequire(`${folder}/`)("playwright-core");
const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox"] });
const page = await browser.newPage({ viewport: { width: 1600, height: 1200 } });
const seen = [];
for (const [number, [address, words]] of JSON.parse(wanted).entries()) {
    await page.goto(address, { waitUntil: "domcontentloaded", timeout: 90_000 });
    const opener = page.getByRole("button", { name: /^Annotations/ }).first();
    await opener.click({ timeout: 60_000 }).catch(() => undefined);
    const table = page.getByText("Table", { exact: true }).first(); // the list shows names and scores, the table labels too
    await table.click({ timeout: 10_000 }).catch(() => undefined);
    const found = [];
    for (const word of words) {
        const place = page.getByText(word, { exact: false }).first();
        await place.waitFor({ state: "attached", timeout: 60_000 }).then(
            () => found.push(word),
            () => undefined,
        );
    }
    await page.screenshot({ path: `${shots}/phoenix-${number}.png` });
    seen.push({ address: page.url(), found });
}
await browser.close();
console.log(JSON.stringify(seen));
