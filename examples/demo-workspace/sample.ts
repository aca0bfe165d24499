/** Cuts a text to at most `limit` characters and marks the cut. */
export function shorten(text: string, limit: number): string {
  if (text.length <= limit) {
    return text;
  }
  return `${text.slice(0, limit - 1)}…`;
}
