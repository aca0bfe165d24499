"""A cancel does not wait for the model: calls in flight are broken off, counted and recorded, and nothing of them is left."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sonde.api.ask_run import aask, ask
from sonde.api.rerun import replay
from sonde.api.result import Answer
from sonde.api.settings import Settings
from sonde.core.cancellation import Stop
from sonde.core.events import Event, ModelFailed, SubcallEnded
from sonde.core.status import RunStatus
from sonde.models import Model, ModelSettings, open_model
from sonde.sandbox import Limits
from sonde.testing import ScriptedModel, ScriptedReply, ScriptedServer, SeenRequest

SOON_S = 60.0
"""Generous, for slow machines; the models here would take ten minutes."""
NEVER = ScriptedReply(hang=True)
SLEEPER = """
import os, signal, subprocess, sys
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "600"])
with open(sys.argv[1], "w") as begun:
    begun.write(f"{os.getpid()} {child.pid}")
if "deaf" in sys.argv:
    os.close(1), os.close(2)
child.wait()
"""


@contextmanager
def silent_server(begun: threading.Event, calls: int = 1, reply: ScriptedReply = NEVER) -> Generator[Model]:
    """A model behind real HTTP that never answers; `begun` is set when so many calls are waiting."""
    waiting: list[SeenRequest] = []

    def answer(seen: SeenRequest) -> ScriptedReply:
        waiting.append(seen)
        if len(waiting) == calls:
            begun.set()
        return reply

    with ScriptedServer(answer) as server:
        yield open_model("openai:silent", ModelSettings(base_url=server.base_url, timeout_s=600))


def asked(model: Model | None, cancel: threading.Event, tmp_path: Path, **options: Any) -> tuple[Answer, list[Event]]:
    """Ask, and see that it ends soon and leaves no thread behind."""
    events: list[Event] = []
    path = tmp_path / "a.txt"
    path.write_text("alpha is 42\n")
    before, started = threads(), time.monotonic()
    answer = ask(
        "What is alpha?",
        path,
        model=model,
        cancel=cancel,
        on_event=events.append,
        runs_dir=tmp_path / "runs",
        settings=options.pop("settings", Settings()),
        **options,
    )
    assert time.monotonic() - started < SOON_S
    for each in threading.enumerate():  # a cancelled timer takes a moment to end
        if isinstance(each, threading.Timer) and each.finished.is_set():
            each.join(60)
    assert threads() <= before
    return answer, events


def threads() -> set[str]:
    """All threads but those of the test's own server, and the one that all sandboxes of a process share."""
    names = {each.name for each in threading.enumerate() if "process_request_thread" not in each.name}
    return names - {"sonde-forkserver"}


def failures(events: list[Event]) -> list[ModelFailed]:
    return [each for each in events if isinstance(each, ModelFailed)]


def was_cancelled(answer: Answer, events: list[Event]) -> bool:
    """Whether the record says so, and counts what was sent."""
    sent = sum(each.tokens_in for each in failures(events))
    error = answer.record.error
    assert error is not None and error.message == "cancelled by the user"
    assert [each.cancelled for each in failures(events)] == [True] * len(failures(events))
    assert sent > 0
    assert answer.record.runtime_ref.usage.tokens_in >= sent
    return answer.status is RunStatus.PARTIAL and "cancelled by the user" in answer.gaps


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


@pytest.mark.parametrize("cancel", [Stop, threading.Event])
def test_a_server_that_never_answers_is_not_waited_for(tmp_path: Path, cancel: type[threading.Event]) -> None:
    stop = cancel()
    with silent_server(stop) as model:
        answer, events = asked(model, stop, tmp_path)

    assert was_cancelled(answer, events)
    assert len(failures(events)) == 1
    assert "interrupted" in failures(events)[0].message


class Stalling(list[str]):
    """The pieces of a reply of which only the first ever comes."""

    def __init__(self, stalled: threading.Event, over: threading.Event) -> None:
        super().__init__()
        self._stalled = stalled
        self._over = over

    def __iter__(self) -> Iterator[str]:
        yield "one"
        self._stalled.set()
        self._over.wait(600)


def test_a_reply_that_stalls_in_the_middle_is_not_waited_for(tmp_path: Path) -> None:
    stop, over, pieces = Stop(), threading.Event(), list[str]()

    def heard(_session: str, text: str) -> None:
        pieces.append(text)

    with silent_server(threading.Event(), reply=ScriptedReply(pieces=Stalling(stop, over))) as model:
        answer, events = asked(model, stop, tmp_path, on_text=heard)
        over.set()

    assert pieces == ["one"]
    assert was_cancelled(answer, events)


@pytest.mark.parametrize("habit", ["", "stubborn", "deaf"])
def test_a_command_that_sleeps_is_ended_with_its_children(tmp_path: Path, habit: str) -> None:
    stop, begun, pids = Stop(), tmp_path / "begun", list[int]()
    os.mkfifo(begun)
    program = tmp_path / "sleeper.py"
    program.write_text(SLEEPER)
    settings = ModelSettings(timeout_s=600, environ={"PATH": os.environ["PATH"]})
    model = open_model([sys.executable, str(program), str(begun), habit], settings)

    def cancel_once_begun() -> None:
        pids.extend(map(int, begun.read_text().split()))
        stop.set()

    waiting = threading.Thread(target=cancel_once_begun)
    waiting.start()
    answer, events = asked(model, stop, tmp_path)
    waiting.join()

    assert was_cancelled(answer, events)
    assert len(pids) == 2 and not any(map(alive, pids))


def test_sub_calls_in_parallel_end_too(tmp_path: Path) -> None:
    stop = Stop()
    root = ScriptedModel(["print(read_file('a.txt'))", "llm_batch([f'ask {i}' for i in range(6)])"])
    with silent_server(stop, calls=6) as model:
        answer, events = asked(root, stop, tmp_path, sub_model=model)

    ended = [each for each in events if isinstance(each, SubcallEnded)]
    assert was_cancelled(answer, events)
    assert len(failures(events)) == 6
    assert [each.status for each in ended] == ["terminated_budget"] * 6


def test_children_in_parallel_end_too(tmp_path: Path) -> None:
    stop = Stop()
    root = ScriptedModel(["print(read_file('a.txt'))", "rlm_batch(['look at a', 'look at b'])"])
    with silent_server(stop, calls=2) as model:
        answer, events = asked(root, stop, tmp_path, sub_model=model)

    assert was_cancelled(answer, events)
    assert len(failures(events)) == 2


@pytest.mark.parametrize("backend", ["kernel", pytest.param("monty", marks=pytest.mark.monty)])
@pytest.mark.parametrize("child", [False, True])
def test_code_that_runs_for_ever_is_not_waited_for(tmp_path: Path, backend: str, child: bool) -> None:
    if backend == "monty":
        pytest.importorskip("pydantic_monty", reason="needs the extra monty")
    stop = Stop()

    def ready() -> None:
        """Say that the code runs."""
        stop.set()

    forever = "ready()\nwhile True:\n    pass"
    script = ["print(read_file('a.txt'))", *(["rlm_batch(['go', 'on'])"] if child else []), forever, forever]
    options: dict[str, Any] = {"tools": [ready], "limits": Limits(wall_s=600), "settings": Settings(backend=backend)}
    answer, _ = asked(ScriptedModel(script), stop, tmp_path, max_wall_time_sec=1000, **options)

    assert answer.status is RunStatus.PARTIAL
    assert "cancelled by the user" in answer.gaps


def test_a_cancelled_run_replays_to_the_same_end(tmp_path: Path) -> None:
    stop = Stop()
    with silent_server(stop) as model:
        answer, _ = asked(model, stop, tmp_path)
    assert answer.run_dir is not None

    assert replay(answer.run_dir, settings=Settings()).equal


def test_a_line_that_was_cut_does_not_hurt_the_next_run(tmp_path: Path) -> None:
    stop = Stop()
    hello = "```python\nFINAL('42 [a.txt:1]')\n```"

    def answer(_seen: SeenRequest) -> ScriptedReply:
        if stop.is_set():
            return ScriptedReply(text=hello)
        stop.set()
        return NEVER

    with ScriptedServer(answer) as server:
        model = open_model("openai:silent", ModelSettings(base_url=server.base_url, timeout_s=600))
        asked(model, stop, tmp_path)
        again, _ = asked(model, Stop(), tmp_path)

    assert again.text.startswith("42")


def test_cancelling_the_task_of_an_asynchronous_run_ends_it(tmp_path: Path) -> None:
    begun = threading.Event()

    async def go(model: Model) -> None:
        options = {"model": model, "settings": Settings(), "runs_dir": tmp_path / "runs"}
        task = asyncio.create_task(aask("What is alpha?", "alpha is 42\n", **options))
        await asyncio.to_thread(begun.wait, SOON_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, SOON_S)

    with silent_server(begun) as model:
        asyncio.run(go(model))

    assert len(list(tmp_path.glob("runs/*/run_record.json"))) == 1
