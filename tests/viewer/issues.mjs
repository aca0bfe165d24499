// Looks at the issues of a watch in a real browser and does something about one; prints what it saw as JSON.
// node issues.mjs URL SHOTS TOOLS   (the issues are those of test_issue_pictures.py)

import { createRequire } from "node:module";

const [url, shots, tools] = process.argv.slice(2);
const { chromium } = createRequire(`${tools}/`)("playwright-core");
const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox"] });
const seen = { problems: [], foreign: [], looks: [] };
const plain = url.split("#")[0];

async function newPage(width, colorScheme) {
  const page = await browser.newPage({ viewport: { width, height: 900 }, colorScheme });
  page.on("console", (message) => message.type() === "error" && seen.problems.push(message.text()));
  page.on("pageerror", (error) => seen.problems.push(error.message));
  page.on("request", (request) => !/^(http:\/\/127\.0\.0\.1:|data:)/.test(request.url()) && seen.foreign.push(request.url()));
  return page;
}

for (const scheme of ["light", "dark"])
  for (const width of [1440, 420]) {
    const page = await newPage(width, scheme);
    const look = { scheme, width };
    await page.goto(url);
    await page.locator(".issues tbody tr").first().waitFor();
    look.front = await page.locator(".issues .what a").allTextContents();
    look.said = await page.locator(".warnings .problem").allTextContents();
    look.sparks = await page.locator(".issues svg.spark").count();
    look.fits = await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth);
    await page.screenshot({ path: `${shots}/issues-${scheme}-${width}.png` });
    await page.goto(`${plain}#/issue/2`);
    await page.locator(".trace .span").first().waitFor();
    look.failed = await page.locator(".trace .span.failed > text").allTextContents();
    look.suspects = await page.locator(".rates line.change").count();
    look.fits &&= await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth);
    await page.screenshot({ path: `${shots}/issue-${scheme}-${width}.png`, fullPage: true });
    await page.goto(`${plain}#/issue/1`);
    await page.locator(".issue h1", { hasText: "search_stock" }).waitFor();
    look.hostile = await page.locator(".issue h1").innerText();
    seen.looks.push(look);
    await page.close();
  }

const page = await newPage(1440, "light");
await page.goto(url);
await page.locator(".issues .what a", { hasText: "search_stock" }).click();
await page.getByLabel("A note").fill("see <img src=x onerror=alert(1)>");
await page.getByRole("button", { name: "note" }).click();
await page.locator(".told li", { hasText: "noted" }).waitFor();
seen.noted = (await page.locator(".told li", { hasText: "noted" }).allTextContents()).map((text) => text.split("noted: ")[1]);
seen.address = page.url();
const other = await newPage(1440, "light"); // changes show up in another tab by themselves
await other.goto(`${plain}#/issue/1`);
await other.locator(".issue .pill").first().waitFor();
seen.stranger = await other.locator(".acts button").count();
await page.getByRole("button", { name: "resolve" }).click();
await other.locator(".issue .pill.resolved").first().waitFor();
seen.live = await other.locator(".issue .pill").first().innerText();
await browser.close();
console.log(JSON.stringify(seen));
