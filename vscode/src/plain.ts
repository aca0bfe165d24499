/**
 * Words of a model, a server or a file for a notification. VS Code turns `[text](command:…)` in those into links that run commands, so
 * none may come from elsewhere.
 */
export function withoutLinks(text: string): string {
  return text.replaceAll("](", "] (");
}
