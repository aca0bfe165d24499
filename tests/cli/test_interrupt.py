"""Ctrl-C with real signals: the first stops softly, the second kills."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from sonde.cli.interrupt import soft_stop

PROGRAM = """
import sys
from sonde.cli.interrupt import soft_stop
with soft_stop() as cancel:
    print("ready", flush=True)
    cancel.wait(30)
    print("stopping", flush=True)
    if "stubborn" in sys.argv:
        sys.stdin.read()
print("complete", flush=True)
"""


def start(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, *words]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_lets_the_run_end_by_itself(number: signal.Signals) -> None:
    process = start()
    process.send_signal(number)
    out, err = process.communicate(timeout=30)

    assert (out, process.returncode) == ("stopping\ncomplete\n", 0)
    assert "once more kills" in err


def test_the_second_signal_kills() -> None:
    process = start("stubborn")
    assert process.stdout is not None
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "stopping\n"
    process.send_signal(signal.SIGINT)
    process.wait(timeout=30)
    process.communicate()

    assert process.returncode == -signal.SIGINT


def test_signal_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with soft_stop():
        assert signal.getsignal(signal.SIGINT) is not before

    assert signal.getsignal(signal.SIGINT) is before


def test_outside_the_main_thread_nothing_is_caught() -> None:
    seen: list[bool] = []

    def work() -> None:
        with soft_stop() as cancel:
            seen.append(cancel.is_set())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(10)
    assert seen == [False]
