/**
 * Words of a model, a server or a file for a notification. VS Code turns `[text](command:…)` in those into links that run commands, so
 * none may come from elsewhere.
 */
export function withoutLinks(text: string): string {
  return text.replaceAll("](", "] (");
}

/** Characters that look like nothing, like the end of a line, or that turn the order of others around. As in workspace/text.py. */
export const HIDDEN =
  /(?![\t\n\r]|\u{fe0e}|\u{fe0f})[\u{2800}\u{13430}-\u{13440}\u{16fe4}\u{1bca0}-\u{1bca3}\u{1d159}\p{Cc}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}\p{Bidi_Control}]/gu;

/** The text for somebody who has to judge it: what is hidden in it is written out, such as <U+202E>. */
export function visible(text: string): string {
  return text.replace(
    HIDDEN,
    (found) => `<U+${(found.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}>`,
  );
}
