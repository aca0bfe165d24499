"""What every box keeps, whatever runs its code: one turn at a time, nothing after it is closed, and names that are free."""

from __future__ import annotations

import contextlib
import keyword
import threading
from collections.abc import Collection, Generator

from sonde.errors import ConfigError, SandboxLost
from sonde.sandbox.policy import FINISH_NAMES

RESERVED = FINISH_NAMES | {"ToolError"}
"""Names that mean the same in every box."""


class Seat:
    """The place of whoever uses a box; a branch has its own."""

    def __init__(self) -> None:
        self.closed = False
        self._busy = threading.Lock()

    @contextlib.contextmanager
    def taken(self) -> Generator[None]:
        """Alone with the box, or a ConfigError that says how to have a second one."""
        self.check_open()
        if not self._busy.acquire(blocking=False):
            raise ConfigError("this box is in the middle of a turn; use box.branch() for a second one")
        try:
            yield
        except (OSError, ValueError, KeyError) as error:
            if not self.closed:
                raise
            raise SandboxLost("this box was closed in the middle of a turn; open a new one") from error
        finally:
            self._busy.release()

    def check_open(self) -> None:
        if self.closed:
            raise SandboxLost("this box is closed; open a new one")


def check_name(name: str, functions: Collection[str] | None, taken: Collection[str]) -> None:
    """ConfigError for what cannot be the name of a variable in the code."""
    if not is_name(name):
        raise ConfigError(f"{name!r} is not a name for a variable; use letters, digits and _, like 'context'")
    if name in RESERVED or name in (functions or ()):
        raise ConfigError(f"{name!r} is a function of the host; choose another name for the variable")
    if name in taken:
        raise ConfigError(f"{name!r} is shared or injected already; choose another name")


def is_name(name: object) -> bool:
    """Can code use it as a name of its own?"""
    return isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("__")
