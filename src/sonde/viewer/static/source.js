// Where the page's data comes from: the server beside it, or, in a page that was exported as one file, the data inside it.

const embedded = document.getElementById("sonde-data");
const held = embedded ? JSON.parse(embedded.textContent) : null;

export const offline = held !== null;

async function get(path) {
  const answer = await fetch(path);
  const data = await answer.json();
  if (!answer.ok) throw new Error(data.error || answer.statusText);
  return data;
}

export async function listRuns() {
  return held ? held.runs : get("api/runs");
}

export async function fetchNews(id, after) {
  if (!held) return get(`api/runs/${encodeURIComponent(id)}/events?after=${after}`);
  return after < 0 ? held.news[id] : { ...held.news[id], events: [] };
}

export async function fetchFull(id, numbers) {
  if (held) return numbers.map((n) => held.full[id][n]).filter(Boolean);
  const found = [];
  for (let at = 0; at < numbers.length; at += 400) {
    found.push(...(await get(`api/runs/${encodeURIComponent(id)}/full?n=${numbers.slice(at, at + 400).join(",")}`)));
  }
  return found;
}

export async function fetchExcerpts(id) {
  return held ? held.excerpts[id] : get(`api/runs/${encodeURIComponent(id)}/excerpts`);
}

export async function fetchTrace(id) {
  return held ? held.trace[id] : get(`api/runs/${encodeURIComponent(id)}/trace`);
}

export async function fetchComparison(left, right) {
  return get(`api/compare/${encodeURIComponent(left)}/${encodeURIComponent(right)}`);
}

export async function fetchIssues() {
  return held ? null : get("api/issues");
}

export async function fetchIssue(number) {
  return get(`api/issues/${encodeURIComponent(number)}`);
}

export async function fetchIssueLook(number) {
  return get(`api/issues/${encodeURIComponent(number)}/look`);
}

// Whoever opened the page with the key may change issues; it stays in this tab.
export function issueKey(given) {
  if (given) sessionStorage.setItem("key", given);
  return held ? null : sessionStorage.getItem("key");
}

export async function changeIssue(number, action, body) {
  const answer = await fetch(`api/issues/${encodeURIComponent(number)}/${action}`, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Sonde-Key": issueKey() || "" },
    body: JSON.stringify(body),
  });
  const data = await answer.json();
  if (!answer.ok) throw new Error(data.error || answer.statusText);
  return data;
}
