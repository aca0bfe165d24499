// Python with colours, and the little Markdown that answers use. Both build nodes; nothing is parsed as HTML.

import { h } from "./dom.js";

const PYTHON = new RegExp(
  [
    /(?<comment>#[^\n]*)/,
    /(?<string>[rbfRBF]{0,2}(?:"""[\s\S]*?(?:"""|$)|'''[\s\S]*?(?:'''|$)|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?))/,
    /(?<number>\b\d[\d_]*(?:\.\d+)?(?:e[+-]?\d+)?\b)/,
    /(?<word>\b(?:and|as|assert|async|await|break|class|continue|def|del|elif|else|except|finally|for|from|global|if|import|in|is|lambda|None|nonlocal|not|or|pass|raise|return|True|False|try|while|with|yield|match|case)\b)/,
    /(?<call>\b[A-Za-z_]\w*(?=\())/,
  ]
    .map((part) => part.source)
    .join("|"),
  "g",
);

export function python(code) {
  const block = h("pre", { class: "code", tabindex: "0" });
  let at = 0;
  for (const match of code.matchAll(PYTHON)) {
    block.append(code.slice(at, match.index));
    const kind = Object.entries(match.groups).find((entry) => entry[1] !== undefined)[0];
    block.append(h("span", { class: `py-${kind}` }, match[0]));
    at = match.index + match[0].length;
  }
  block.append(code.slice(at));
  return block;
}

// `cite(text)` turns a reference into a node, or gives null when it is none.
export function inline(text, cite) {
  const parts = [];
  let at = 0;
  for (const match of text.matchAll(/`([^`\n]+)`|\*\*([^*\n]+)\*\*|\[([^\][\n]{1,300})\]/g)) {
    const node =
      match[1] !== undefined
        ? h("code", {}, match[1])
        : match[2] !== undefined
          ? h("strong", {}, match[2])
          : cite(match[3]);
    if (!node) continue;
    parts.push(text.slice(at, match.index), node);
    at = match.index + match[0].length;
  }
  parts.push(text.slice(at));
  return parts;
}

// The blocks of a text: [{node, text}], so that evidence can be set beside each.
export function blocks(text, cite) {
  const found = [];
  for (const part of text.split(/(```[\s\S]*?(?:```|$))/)) {
    if (part.startsWith("```")) {
      const body = part.replace(/^```[^\n]*\n?/, "").replace(/\n?```$/, "");
      found.push({ text: "", node: python(body) });
      continue;
    }
    for (const paragraph of part.split(/\n\s*\n|\n(?=\s*(?:[-*•]|\d+[.)])\s)|\n(?=#{1,4} )/)) {
      if (paragraph.trim()) found.push({ text: paragraph, node: paragraphNode(paragraph.trim(), cite) });
    }
  }
  return found;
}

function paragraphNode(text, cite) {
  const heading = text.match(/^#{1,4} (.*)$/s);
  if (heading) return h("h3", {}, inline(heading[1], cite));
  const item = text.match(/^(?:[-*•]|(\d+)[.)])\s+(.*)$/s);
  if (item) return h("p", { class: "item", "data-mark": item[1] ? `${item[1]}.` : "•" }, inline(item[2], cite));
  return h("p", {}, inline(text, cite));
}

export function json(value) {
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 2);
  return h("pre", { class: "data", tabindex: "0" }, text ?? "");
}
