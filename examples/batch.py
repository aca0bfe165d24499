"""One question a file, many at once, under one limit of money; started again, it goes on where it stopped.

    python examples/batch.py "Which licence is this under?" docs/*.md

The manifest is one JSON object a line. The same command after a crash pays for no recorded reply twice: each item is a run with a journal.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def main(question: str, *paths: str) -> int:
    manifest = Path("questions.jsonl")
    items = [{"id": path, "engine": "ask", "question": question, "paths": [path]} for path in paths]
    manifest.write_text("".join(f"{json.dumps(item)}\n" for item in items))
    command = ["sonde", "batch", str(manifest), "--concurrency", "4", "--max-cost-usd", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # exit 1: some items did not end
    if not done.stdout:
        sys.exit(done.stderr)
    report = json.loads(done.stdout)
    print(f"{report['folder']}: {report['items']}")
    return done.returncode


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
