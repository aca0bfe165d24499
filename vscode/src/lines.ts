/** Cuts a stream of bytes into lines; one that is too long is passed over and reported, never kept in memory. */
export class LineSplitter {
  private parts: Buffer[] = [];
  private size = 0;
  private skipping = false;

  constructor(
    private readonly line: (text: string) => void,
    private readonly tooLong: () => void,
    private readonly limit: number,
  ) {}

  push(chunk: Buffer): void {
    let start = 0;
    for (let end = chunk.indexOf(10); end !== -1; end = chunk.indexOf(10, start)) {
      this.keep(chunk.subarray(start, end));
      this.flush();
      start = end + 1;
    }
    this.keep(chunk.subarray(start));
  }

  private keep(part: Buffer): void {
    this.size += part.length;
    if (this.size > this.limit) {
      this.skipping = true;
      this.parts = [];
    } else if (part.length > 0) {
      this.parts.push(part);
    }
  }

  private flush(): void {
    const text = Buffer.concat(this.parts).toString("utf8");
    const skipped = this.skipping;
    this.parts = [];
    this.size = 0;
    this.skipping = false;
    if (skipped) {
      this.tooLong();
    } else if (text.trim()) {
      this.line(text);
    }
  }
}
