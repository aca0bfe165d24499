"""Turns while something else goes on in the caller's process: signals, a second thread, objects that end late."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from watching import kind, run

from sonde.errors import SandboxLost
from sonde.sandbox import ExecResult, Limits, Sandbox


@contextmanager
def signals_all_the_time() -> Generator[list[int]]:
    """SIGUSR1 every half millisecond, as from a timer or a profiler of the caller's own."""
    came: list[int] = []
    ended = threading.Event()
    caller = threading.get_ident()

    def send() -> None:
        while not ended.wait(0.0005):
            signal.pthread_kill(caller, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda number, frame: came.append(number))
    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield came
    finally:
        ended.set()
        sender.join()
        signal.signal(signal.SIGUSR1, before)


def test_signals_of_the_callers_own_do_not_disturb_a_turn() -> None:
    with Sandbox(host=lambda name, args: 1, functions=["ask"]) as box, signals_all_the_time() as came:
        box.share("text", "x" * 1000)
        outputs = {run(box, "print(ask() + len(text))") for _ in range(60)}

    assert outputs == {"1001\n"} and len(came) > 10


def test_a_box_that_another_thread_closes_in_the_middle_of_a_turn_is_lost_and_no_other() -> None:
    begun = threading.Event()
    outcome: list[ExecResult | SandboxLost] = []
    with Sandbox("open") as other:
        run(other, "kept = 1")
        box = Sandbox("open", host=lambda name, args: begun.set(), functions=["begin"], limits=Limits(wall_s=100))

        def work() -> None:
            try:
                outcome.append(box.execute("begin()\nwhile True: pass"))
            except SandboxLost as lost:
                outcome.append(lost)

        worker = threading.Thread(target=work)
        worker.start()
        assert begun.wait(60)
        box.close()
        worker.join(60)

        assert not worker.is_alive()
        assert [type(each) for each in outcome] == [SandboxLost]
        assert run(other, "print(kept)") == "1\n"


LATE = {
    "a finalizer that calls the host": "class Late:\n    def __del__(self): ask()\nit = Late(); it.me = it; del it",
    "a finalizer that finishes": "class Late:\n    def __del__(self): FINAL(1)\nit = Late(); it.me = it; del it",
    "a generator that cleans up": (
        "def rows(me):\n    try:\n        me.append((yield))\n    finally:\n        ask()\n"
        "me = []\nme.append(rows(me))\nnext(me[0])\ndel me"
    ),
}


@pytest.mark.parametrize("name", LATE)
def test_what_ends_after_the_turn_has_nobody_to_talk_to_and_costs_nothing(name: str) -> None:
    asked: list[str] = []
    with Sandbox(host=lambda name, args: asked.append(name), functions=["ask"]) as box:
        result = box.execute(f"kept = 1\n{LATE[name]}\nprint('done')")

        assert kind(result) is None and (result.stdout, result.final, asked) == ("done\n", None, [])
        assert run(box, "ask()\nprint(kept)") == "1\n"


def test_a_box_leaves_no_descriptor_behind_whatever_became_of_its_turns() -> None:
    def once() -> None:
        with Sandbox("open", host=lambda name, args: 1 / 0, functions=["ask"]) as box:
            for code in (
                "x = 1",
                "ask()",
                "import os; os._exit(1)",
                "import os; os.fork()",
                "FINAL(1)",
                "print('y' * 10**5)",
            ):
                box.execute(code)
            with box.branch() as twin:
                twin.execute("x = 2")

    once()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        once()

    assert len(list(Path("/proc/self/fd").iterdir())) <= before  # fewer if something older was collected meanwhile
