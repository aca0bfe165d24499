// Building the page. Text only ever enters as text nodes: a run may hold hostile HTML, and no markup is ever parsed here.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, each] of Object.entries(value)) node.style.setProperty(key, each);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(4)) {
    if (child === undefined || child === null || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

export function svg(tag, props, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

export function put(parent, ...children) {
  parent.replaceChildren(...children.flat(4).filter((child) => child instanceof Node));
  return parent;
}

export function byId(id) {
  return document.getElementById(id);
}

export function seconds(value) {
  if (!Number.isFinite(value)) return "";
  if (value < 0.001) return "0 ms";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 90) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
  const minutes = Math.floor(value / 60);
  return minutes < 90 ? `${minutes} min ${Math.round(value % 60)} s` : `${(value / 3600).toFixed(1)} h`;
}

export function money(value) {
  if (!value) return "$0";
  return value < 0.01 ? `$${value.toFixed(4)}` : `$${value.toFixed(2)}`;
}

// Null is a cost that nobody knows. Runs of old versions show it as tokens that cost nothing.
export function costOf(value, tokens, unpriced) {
  return value === null || unpriced || (unpriced === undefined && !value && tokens) ? "unknown" : money(value);
}

export function count(value) {
  return Number(value || 0).toLocaleString("en-US");
}

export function many(number, word) {
  return `${count(number)} ${word}${number === 1 ? "" : "s"}`;
}

export function short(text, limit) {
  const line = String(text ?? "")
    .replace(/\s+/g, " ")
    .trim();
  return line.length > limit ? `${line.slice(0, limit - 1)}…` : line;
}

export function when(text) {
  return text ? text.replace("T", " ").replace("Z", " UTC") : "";
}

// The resolved colour of a custom property, for canvases: `light-dark()` is resolved by the browser only in use.
const probe = document.createElement("i");
export function colour(name) {
  if (!probe.isConnected) {
    probe.hidden = true;
    document.body.append(probe);
  }
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

export function pill(status) {
  return h("span", { class: `pill ${status}` }, String(status).replace(/_/g, " "));
}

export function copyable(text, label) {
  const button = h(
    "button",
    { class: "hash", title: `${label || "hash"}: ${text} (click to copy)` },
    text.slice(0, 12),
  );
  button.addEventListener("click", () => {
    navigator.clipboard?.writeText(text);
    button.classList.add("copied");
    setTimeout(() => button.classList.remove("copied"), 900);
  });
  return button;
}

export function tip(text, x, y) {
  const box = byId("tip");
  box.hidden = !text;
  if (!text) return;
  put(box, ...text.split("\n").map((line, place) => h("div", { class: place ? "" : "strong" }, line)));
  box.style.left = `${Math.max(8, Math.min(x + 14, innerWidth - box.offsetWidth - 12))}px`;
  box.style.top = `${Math.max(8, Math.min(y + 16, innerHeight - box.offsetHeight - 12))}px`;
}
