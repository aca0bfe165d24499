"""A watch as a process of its own that lives in the traces' time, and is killed where a seed says so.

    python watch_child.py POST.json KILL_AT

Reads a time in seconds from each line of stdin, works until there is nothing more to do, and replies with one line. It kills itself with
SIGKILL before its KILL_AT-th write (0: never), which may be in the middle of a window, of a run or between a reply and its bill.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from sonde.watch.loop import WatchOptions
from sonde.watch.state import WatchState
from watch.watch_scene import Post


class MortalState(WatchState):
    """Counts its writes, and dies before one of them."""

    left = 0

    def change(self, sql: str, *values: Any) -> int:
        self._live()
        return super().change(sql, *values)

    @contextmanager
    def transaction(self) -> Generator[None]:
        with super().transaction():
            yield
            self._live()

    def _live(self) -> None:
        if self.left:
            self.left -= 1
            if not self.left:
                os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    told = json.loads(Path(sys.argv[1]).read_text())
    post = Post(Path(told["path"]), options=WatchOptions(**told["options"]), flags=told["flags"])
    with MortalState(post.folder, create=True) as state, state.folder.held("sonde watch"):
        state.left = int(sys.argv[2])
        watching = post.watch(state)
        for line in sys.stdin:
            post.clock.seconds = float(line)
            outages = 0
            while True:
                turn = watching.turn()
                outages += bool(turn.outage)
                if not turn.worked:
                    break
            print(json.dumps({"outages": outages, "money": turn.money}), flush=True)


if __name__ == "__main__":
    main()
