"""Ctrl-C: the first one asks the run to end with the best it has, the second one kills it.

The run looks at `cancel` between its steps, and setting it interrupts the model calls of all threads. While the main thread waits for a
model, for code, for a person's yes or for a pipe it cannot look, so there, and only there, the signal breaks the waiting off by
KeyboardInterrupt, which the run takes as a cancel too. Modules and packages that wait say so themselves, by `INTERRUPTIBLE = True`.
Anywhere else an exception could leave a record half written. SIGTERM counts as a Ctrl-C, so that a service manager gets a complete
record too.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

import sonde
from sonde.core.cancellation import Stop

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SHOW_CURSOR = "\x1b[?25h"
_OURS = f"{sonde.__name__}."
_STOPPING = "sonde: stopping; the answer so far follows (once more kills)\n"


@contextmanager
def soft_stop(said: str | None = _STOPPING) -> Generator[threading.Event]:
    """An event that the first Ctrl-C sets, with a word about it; outside the main thread nothing is caught."""
    cancel = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield cancel
        return

    def stop(number: int, frame: FrameType | None) -> None:
        if cancel.is_set():
            _die(number)
        cancel.set()
        _say(said or "")
        if _is_waiting(frame):
            raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in _SIGNALS}
    try:
        yield cancel
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def _is_waiting(frame: FrameType | None) -> bool:
    """Whether the innermost of our functions may be interrupted: its module, or a package around it, is marked INTERRUPTIBLE."""
    while frame is not None and not str(frame.f_globals.get("__name__")).startswith(_OURS):
        frame = frame.f_back
    name = str(frame.f_globals["__name__"]) if frame is not None else ""
    while name:
        if getattr(sys.modules.get(name), "INTERRUPTIBLE", False):
            return True
        name = name.rpartition(".")[0]
    return False


def _say(text: str) -> None:
    """Written past the buffers: a signal may arrive while one of them is being written."""
    os.write(sys.stderr.fileno(), text.encode())


def _die(number: int) -> None:
    """Die of the signal itself, so that the caller sees how; children go with us."""
    if sys.stderr.isatty():
        _say(_SHOW_CURSOR)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
