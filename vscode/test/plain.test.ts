// Words from elsewhere in a notification are words.
import { describe, expect, it } from "vitest";
import { named, visible, withoutLinks } from "../src/plain";

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

describe("a change that somebody has to judge", () => {
  it("has nothing hidden in it", () => {
    expect(visible("a\u2028b\u202ec\u200bd\u{e0041}e\x85f\x1b")).toBe(
      "a<U+2028>b<U+202E>c<U+200B>d<U+E0041>e<U+0085>f<U+001B>",
    );
    expect(visible("plain\r\n\ttext é 日本 ✔️ 1️⃣")).toBe("plain\r\n\ttext é 日本 ✔️ 1️⃣");
    expect(visible("check # \rexit 1\r\n")).toBe("check # <U+000D>exit 1\r\n");
    expect(visible("key\ufe0f ✔️\ufe0f")).toBe("key<U+FE0F> ✔️<U+FE0F>");
  });

  it("has a title that names both places of a move, and says that a file goes", () => {
    expect(named([{ path: "a.ts", action: "move", target: "b/\u202ea.ts" }])).toBe("move a.ts → b/<U+202E>a.ts");
    expect(named([{ path: "a.ts", action: "delete" }])).toBe("delete a.ts");
    expect(named([{ path: "a.ts", action: "update" }])).toBe("change a.ts");
    const gone = ["b", "c", "d", "e", "f"].map((path) => ({ path, action: "delete" as const }));
    expect(named([{ path: "a.ts", action: "add" }, ...gone])).toBe(
      "change 6 files, delete b, delete c, delete d, 2 more moves and deletions",
    );
  });
});
