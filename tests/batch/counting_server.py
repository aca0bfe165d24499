"""A model server in a process of its own, so that batches may be killed around it: answers in two turns and counts who asked what.

Prints its address; for every line on standard input it prints the counts so far as one JSON object; ends when standard input ends.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter

from sonde.testing import ScriptedServer, SeenRequest

LOOK = "```python\nprint(read_file('note.txt'))\n```"
FINISH = "```python\nFINAL('it says so [note.txt:1-1]')\n```"


def turn_of(seen: SeenRequest) -> str:
    """Which request this is: the question's number and how far its conversation is."""
    messages = seen.body["messages"]
    asked = next(part for message in messages for part in message["content"].split() if part.startswith("#"))
    return f"{asked} {len(messages)}"


def reply(seen: SeenRequest) -> str:
    """Look, then finish."""
    return LOOK if len(seen.body["messages"]) < 3 else FINISH


def main(delay_s: float, port: int) -> None:
    counts: Counter[str] = Counter()
    times: list[float] = []

    def count(seen: SeenRequest) -> str:
        counts[turn_of(seen)] += 1
        times.append(time.monotonic())
        return reply(seen)

    with ScriptedServer(count, delay_s=delay_s, port=port) as server:
        print(server.base_url, flush=True)
        for _ in sys.stdin:
            print(json.dumps({"counts": dict(counts), "times": list(times)}), flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
