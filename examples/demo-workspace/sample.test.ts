import { describe, expect, it } from "vitest";
import { shorten } from "./sample";

describe("shorten", () => {
  it("leaves a short text alone", () => {
    expect(shorten("abc", 5)).toBe("abc");
  });

  it("marks the cut", () => {
    expect(shorten("abcdef", 4)).toBe("abc…");
  });
});
