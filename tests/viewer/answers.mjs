// Looks at runs with unusual answers, and at the list of runs in a wide and in a narrow window: answers.mjs URL EXPORTED TOOLS ID...

import { createRequire } from "node:module";

const [url, exported, tools, ...ids] = process.argv.slice(2);
const { chromium } = createRequire(`${tools}/package.json`)("playwright-core");
const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox"] });
const page = await browser.newPage();
const seen = {};
const texts = (selector) => page.$$eval(selector, (found) => found.map((each) => each.innerText.replace(/\s+/g, " ")));

for (const width of [1400, 420]) {
  await page.setViewportSize({ width, height: 900 });
  await page.goto(url);
  await page.locator(".runs tbody tr").first().waitFor();
  seen[`hidden_${width}`] = await page.$eval(".home .scroll", (box) => box.scrollWidth - box.clientWidth);
  seen[`model_${width}`] = await page.$eval('.runs .model[title*="a-long-name"]', (cell) => ({
    title: cell.title,
    cut: cell.scrollWidth > cell.clientWidth,
  }));
}
await page.setViewportSize({ width: 1400, height: 900 });
for (const [name, address] of [...ids.map((id) => [id, `${url}#/run/${id}`]), ["exported", `file://${exported}`]]) {
  await page.goto(address);
  await page.waitForFunction((id) => id === "exported" || document.getElementById("crumbs").innerText.includes(id), name);
  await page.locator(".answer .card-head").waitFor();
  await page.locator(".excerpt").first().waitFor();
  await page.waitForFunction(() => document.querySelectorAll(".budget path").length > 0);
  seen[name] = {
    tiles: await texts(".tile"),
    legend: await texts(".plot-head .legend span"),
    badges: await texts(".badge"),
    chips: await texts(".prose button.cite"),
    cells: await texts("table.values td"),
    red: await texts(".row.failed"),
    gap: await page.$$eval(".line", (lines) =>
      lines.map((line) => parseFloat(getComputedStyle(line, "::before").width) / parseFloat(getComputedStyle(line).fontSize)),
    ),
  };
}
await browser.close();
console.log(JSON.stringify(seen));
