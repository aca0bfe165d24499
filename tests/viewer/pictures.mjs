// Looks at the pictures of investigations in a real browser, light and dark, wide and narrow; prints what it saw as JSON.
// node pictures.mjs URL ONE_FILE SHOTS TOOLS BATCH_REPORT   (the runs are those of test_pictures.py)

import { createRequire } from "node:module";

const [url, oneFile, shots, tools, report] = process.argv.slice(2);
const { chromium } = createRequire(`${tools}/`)("playwright-core");
const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox"] });
const seen = { problems: [], foreign: [], looks: [] };

async function newPage(width, colorScheme) {
  const page = await browser.newPage({ viewport: { width, height: 900 }, colorScheme });
  page.on("console", (message) => message.type() === "error" && seen.problems.push(message.text()));
  page.on("pageerror", (error) => seen.problems.push(error.message));
  page.on(
    "request",
    (request) => !/^(http:\/\/127\.0\.0\.1:|data:|file:)/.test(request.url()) && seen.foreign.push(request.url()),
  );
  return page;
}

const colourOf = (place) => place.evaluate((node) => getComputedStyle(node).fill);
const texts = (page, selector) => page.locator(selector).allTextContents();

for (const scheme of ["light", "dark"])
  for (const width of [1440, 420]) {
    const page = await newPage(width, scheme);
    const look = { scheme, width };
    await page.goto(`${url}#/run/rca`);
    await page.locator(".trace .pin").first().waitFor();
    look.headline = await page.locator(".headline").innerText();
    look.names = await texts(page, ".trace .span > text");
    look.failed = await texts(page, ".trace .span.failed > text");
    look.pins = await page.locator(".trace .pin").count();
    look.first = await texts(page, ".trace .pins .first b");
    look.arrows = await page.locator(".trace .arrow").count();
    look.fits = await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth);
    look.ink = await colourOf(page.locator(".trace .span > text").first());
    await page.locator(".trace .pin").first().focus();
    await page.keyboard.press("Enter");
    look.pointed = await page.locator(".excerpt.on .where").innerText();
    await page.locator(".trace").screenshot({ path: `${shots}/trace-${scheme}-${width}.png` });
    await page.goto(`${url}#/run/comply`);
    await page.locator(".matrix tbody tr").first().waitFor();
    look.verdicts = await texts(page, ".matrix .cell");
    await page.locator(".trace .pin").first().waitFor();
    await page.locator(".controls").screenshot({ path: `${shots}/controls-${scheme}-${width}.png` });
    await page.goto(`${url}#/run/incident`);
    await page.locator(".incident .mark").first().waitFor();
    look.marks = await page.locator(".incident .mark.event").count();
    look.changes = await page.locator(".incident .mark.change").count();
    await page.locator(".incident").screenshot({ path: `${shots}/incident-${scheme}-${width}.png` });
    await page.goto(`${url}#/run/window`);
    await page.locator(".rates rect.hit").first().waitFor();
    look.groups = (await texts(page, ".rates .key b")).sort();
    look.hits = await page.locator(".rates rect.hit").count();
    look.dashed = await page.locator(".rates line.change").count();
    look.fits &&= await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth);
    await page.locator(".rates").screenshot({ path: `${shots}/rates-${scheme}-${width}.png` });
    await page.goto(`file://${report}`);
    look.batch = await page.evaluate(() => {
      const [scroll, name] = [document.querySelector(".scroll"), document.querySelector(".matrix tbody th")];
      scroll.scrollLeft = 10_000;
      return {
        signs: [...document.querySelectorAll(".matrix .v")].map((cell) => cell.textContent).join(""),
        first: document.querySelector(".matrix thead a").textContent,
        fits: document.documentElement.scrollWidth <= innerWidth,
        nameStays: name.getBoundingClientRect().left >= scroll.getBoundingClientRect().left,
        colours: ["fail", "insufficient_evidence"].map((kind) => getComputedStyle(document.querySelector(`.v.${kind}`)).backgroundColor),
      };
    });
    await page.locator(".scroll").screenshot({ path: `${shots}/batch-${scheme}-${width}.png` });
    seen.looks.push(look);
    await page.close();
  }

const alone = await newPage(1200, "light");
await alone.goto(`file://${oneFile}`);
await alone.locator(".trace .pin").first().waitFor();
seen.exported = await texts(alone, ".trace .span > text");

await browser.close();
console.log(JSON.stringify(seen));
