"""Ctrl-C: the first one asks the run to end with the best it has, the second one kills it.

The run checks `cancel` between its steps, and setting it interrupts the model calls of all threads. While the main thread waits for a
model, for code, for a person's yes or for a pipe it cannot check. There, and only there, the signal ends the wait with a
KeyboardInterrupt, which the run also takes as a cancel. Modules and packages that wait say so with `INTERRUPTIBLE = True`.
Anywhere else an exception could leave a record half written. SIGTERM counts as Ctrl-C, so that a service manager gets a complete
record too. A command that was stopped ends with 128 and the number of the signal, whatever it still printed.
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
_STOPPING = "sonde: stopping; the answer so far follows (Ctrl-C again kills)\n"


class SignalStop(Stop):
    """A stop that knows which signal set it."""

    number: int | None = None

    def exit_code(self, code: int) -> int:
        """130 after Ctrl-C and 143 after SIGTERM, as shells say it; otherwise `code`."""
        return code if self.number is None else 128 + self.number


@contextmanager
def soft_stop(said: str | None = _STOPPING) -> Generator[SignalStop]:
    """An event that the first Ctrl-C sets; `said` is then printed. Outside the main thread no signal is caught."""
    cancel = SignalStop()
    if threading.current_thread() is not threading.main_thread():
        yield cancel
        return

    def stop(number: int, frame: FrameType | None) -> None:
        if cancel.is_set():  # die of the signal itself, so that the caller sees how; children go with us
            if sys.stderr.isatty():
                _say(_SHOW_CURSOR)
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        cancel.number = number
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
    """Write past the buffers: the signal may have arrived while one of them was being written."""
    os.write(sys.stderr.fileno(), text.encode())
