import { defineConfig } from "vitest/config";

export default defineConfig({
  test: { include: ["test/*.test.ts"], testTimeout: 300_000, hookTimeout: 90_000, fileParallelism: false },
});
