"""Ctrl-C with real signals: the first stops softly, the second kills."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from types import FunctionType, ModuleType

import pytest

import sonde.api.launch
import sonde.cli.approval
import sonde.contexts.files.file_list
import sonde.core.budget
import sonde.models.base
import sonde.models.chat
import sonde.models.command
import sonde.runs.journal
import sonde.runtime.delegate
import sonde.runtime.session
import sonde.sandbox.box
import sonde.sandbox.portable.dialogue
from sonde.cli.interrupt import soft_stop

WAITS = (
    sonde.cli.approval,
    sonde.contexts.files.file_list,
    sonde.models.base,
    sonde.models.chat,
    sonde.models.command,
    sonde.runtime.delegate,
    sonde.sandbox.box,
    sonde.sandbox.portable.dialogue,
)
WRITES = (sonde.api.launch, sonde.core.budget, sonde.runs.journal, sonde.runtime.session)

PROGRAM = """
import sys
from sonde.cli.interrupt import soft_stop
with soft_stop() as cancel:
    print("ready", flush=True)
    cancel.wait(300)
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
    out, err = process.communicate(timeout=250)

    assert (out, process.returncode) == ("stopping\ncomplete\n", 0)
    assert "Ctrl-C again kills" in err


def test_the_second_signal_kills() -> None:
    process = start("stubborn")
    assert process.stdout is not None
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "stopping\n"
    process.send_signal(signal.SIGINT)
    process.wait(timeout=60)
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
    thread.join(60)
    assert seen == [False]


def interrupt_in(module: ModuleType) -> None:
    """Ctrl-C while a function of the module runs."""

    def press() -> None:
        signal.raise_signal(signal.SIGINT)

    FunctionType(press.__code__, vars(module) | {"signal": signal})()


@pytest.mark.parametrize("module", WAITS, ids=lambda module: module.__name__)
def test_whoever_waits_is_interrupted(module: ModuleType) -> None:
    with soft_stop(None) as cancel, pytest.raises(KeyboardInterrupt):
        interrupt_in(module)

    assert cancel.is_set()


@pytest.mark.parametrize("module", WRITES, ids=lambda module: module.__name__)
def test_whoever_writes_is_not_interrupted(module: ModuleType) -> None:
    with soft_stop(None) as cancel:
        interrupt_in(module)

    assert cancel.is_set()
