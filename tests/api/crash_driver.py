"""Runs a question once for every event and is killed right after it; then resumes. One JSON line a kill.

Its own process, and a fork for each run: a SIGKILL must take the whole run with it, as a power cut would.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from sonde.api.ask_run import ask
from sonde.api.rerun import resume
from sonde.api.settings import Settings
from sonde.core.events import Event, ModelReplied
from sonde.models.base import Secret
from sonde.runs.rundir import RunDir, run_ids


def settings(url: str) -> Settings:
    return Settings(model="openai:gpt-4o-mini", base_url=url, api_key=Secret("sk-test-key"), max_parallel=3)


def in_child(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        work()
        os._exit(0)
    return os.waitpid(pid, 0)[1]


def killed_at(number: int) -> Callable[[Event], None]:
    def watch(event: Event) -> None:
        if event.seq == number:
            os.kill(os.getpid(), signal.SIGKILL)

    return watch


def main(url: str, data: str, runs: str, first: int, step: int) -> None:
    number = first
    while True:
        where = Path(runs) / str(number)
        status = in_child(
            lambda where=where, number=number: ask(  # type: ignore[misc]  # bound at once
                "Which is it?", data, settings=settings(url), runs_dir=where, on_event=killed_at(number)
            )
        )
        if not os.WIFSIGNALED(status):
            return
        run = RunDir(where / run_ids(where)[0])
        known = [event.request_hash for event in run.read().events if isinstance(event, ModelReplied)]
        print(json.dumps({"kill": number, "known": known, "phase": "resume"}), flush=True)
        sys.stdin.readline()
        in_child(lambda run=run: _resume(url, run))  # type: ignore[misc]  # bound at once
        sys.stdin.readline()
        number += step


def _resume(url: str, run: RunDir) -> None:
    asked: list[str] = []

    def watch(event: Event) -> None:
        if isinstance(event, ModelReplied):
            asked.append(event.request_hash)

    finished = resume(run.path, settings=settings(url), on_event=watch)
    used = finished.record.runtime_ref.usage
    result = {
        "phase": "done",
        "status": finished.status.value,
        "text": finished.text,
        "citations": [c.ref for c in finished.citations],
        "usage": [used.iterations, used.tool_calls, used.llm_subcalls, used.tokens_in, used.tokens_out],
    }
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
