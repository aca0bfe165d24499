import type { PlannedChange } from "./protocol";

/**
 * Words of a model, a server or a file for a notification. VS Code turns `[text](command:…)` in those into links that run commands, so
 * none may come from elsewhere.
 */
export function withoutLinks(text: string): string {
  return text.replaceAll("](", "] (");
}

/** Characters that look like nothing, like the end of a line, or that turn the order of others around. As in workspace/text.py. */
export const WRITTEN_OUT =
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what it looks for
  // biome-ignore lint/suspicious/noMisleadingCharacterClass: each of these stands for itself
  /(?![\u{fe0e}\u{fe0f}])[\u{0}-\u{8}\u{b}\u{c}\u{e}-\u{1f}\u{7f}-\u{9f}\u{2028}\u{2029}\u{ad}\u{34f}\u{61c}\u{115f}\u{1160}\u{17b4}\u{17b5}\u{180b}-\u{180f}\u{200b}-\u{200f}\u{202a}-\u{202e}\u{2060}-\u{206f}\u{2800}\u{3164}\u{fe00}-\u{fe0f}\u{feff}\u{ffa0}\u{fff0}-\u{fffb}\u{13430}-\u{13440}\u{16fe4}\u{1bca0}-\u{1bca3}\u{1d159}\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}]|\u{d}(?!\u{a})|(?<![\u{a9}\u{ae}\u{203c}\u{2049}\u{2122}\u{2190}-\u{27bf}\u{2900}-\u{2bff}\u{3030}\u{303d}\u{3297}\u{3299}\u{1f000}-\u{1faff}])[\u{fe0e}\u{fe0f}](?!\u{20e3})/gu;

/** The text for somebody who has to judge it: what is hidden in it is written out, such as <U+202E>. */
export function visible(text: string): string {
  return text.replace(
    WRITTEN_OUT,
    (found) => `<U+${(found.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}>`,
  );
}

/** What a proposal does, for titles: a move names both places, and a deletion says so, since an empty side of a diff does not. */
export function named(changes: readonly PlannedChange[]): string {
  const [first, ...others] = changes;
  const one = (change: PlannedChange): string => {
    const path = visible(change.path);
    switch (change.action) {
      case "move":
        return `move ${path} → ${visible(change.target ?? "")}`;
      case "delete":
        return `delete ${path}`;
      case "add":
        return `add ${path}`;
      default:
        return `change ${path}`;
    }
  };
  if (first && others.length === 0) {
    return one(first);
  }
  const notable = changes.filter((change) => change.action === "move" || change.action === "delete").map(one);
  const more = notable.length > 3 ? [`${notable.length - 3} more moves and deletions`] : [];
  return [`change ${changes.length} files`, ...notable.slice(0, 3), ...more].join(", ");
}
