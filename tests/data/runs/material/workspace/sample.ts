export function trim(text: string): string {
  return text.trim();
}

export function squeeze(text: string): string {
  return text.replace(/ +/g, " ").trim();
}
