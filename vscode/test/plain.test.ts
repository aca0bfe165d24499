// Words from elsewhere in a notification are words.
import { describe, expect, it } from "vitest";
import { withoutLinks } from "../src/plain";

describe("a notification", () => {
  it("has no links that came with the words of a model, a server or a file name", () => {
    const link = /\[[^\]]+\]\((?:https?:\/\/|command:|file:)[^)\s]+/; // as VS Code finds them

    for (const text of [
      "failed: [Fix it](command:workbench.action.terminal.new)",
      "[[a](https://evil.example)](command:b)",
    ]) {
      expect(text).toMatch(link);
      expect(withoutLinks(text)).not.toMatch(link);
    }
    expect(withoutLinks("src/a[1].ts (new)")).toBe("src/a[1].ts (new)");
  });
});
