"""What every backend of the sandbox shares: its options, one turn at a time, names, injected values, branches.

`kernel` is `Sandbox`: CPython behind seccomp, landlock and rlimits. `monty` is `MontyBox`: an interpreter of a subset of Python, for
systems where the kernel has no such layers. Neither falls back to the other: whoever wants Monty says so.
"""

from __future__ import annotations

import contextlib
import copy
import keyword
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Generator
from typing import Any, Self

from sonde.core.events import JOURNAL_FORMAT
from sonde.errors import ConfigError, SandboxLost
from sonde.sandbox import frames
from sonde.sandbox.base import CodeClock, ExecFault, ExecResult, Host, Limits, Watch, check_without
from sonde.sandbox.forkserver import ForkServer
from sonde.sandbox.policy import FINISH_NAMES, profile_named
from sonde.sandbox.prepare import Preparation, Prepared
from sonde.sandbox.share import Shareable

BACKENDS = ("kernel", "monty")
RESERVED = FINISH_NAMES | {"ToolError"}
"""Names that mean the same in every box."""


def open_box(backend: str, **options: Any) -> Box:
    """A new box; the options are those of `Box`. SandboxUnavailable says what this machine lacks for it."""
    if backend == "kernel":
        from sonde.sandbox.kernel_box import Sandbox  # noqa: PLC0415 - it is a Box, so it imports this module

        return Sandbox(**options)
    if backend == "monty":
        from sonde.sandbox.portable import MontyBox  # noqa: PLC0415 - as above

        return MontyBox(**options)
    raise ConfigError(f"unknown backend {backend!r}; choose one of: {', '.join(BACKENDS)}")


def describe(backend: str) -> str:
    """What a model has to know about the backend's Python; nothing when all of Python is there."""
    if backend == "kernel":
        return ""
    from sonde.sandbox.portable.language import language  # noqa: PLC0415 - only whoever wants Monty pays for it

    return language().describe()


class Box(ABC):
    """Runs Python that nobody has read. One turn at a time; several boxes at once are fine, from any threads."""

    def __init__(
        self,
        profile: str = "analysis",
        *,
        packages: Collection[str] = (),
        limits: Limits | None = None,
        host: Host | None = None,
        functions: Collection[str] | None = None,
        sharing: Collection[str] = (),
        session_id: str = "",
        unsafe: bool = False,
        without: str = "",
        seed: int = 0,
        clock: CodeClock | None = None,
        keep_states: int = 16,
        first_turn: int = 0,
        as_of: int = JOURNAL_FORMAT,
        server: ForkServer | None = None,
    ) -> None:
        """`functions` are the names that `host` serves; None: every name that code calls and nobody has bound.

        `packages` are installed ones that code may import too (numpy, pandas). `sharing` are functions that take `share=[names]` and
        get the variables of these names. `unsafe` lets the kernel backend start without some of its layers; `without`
        leaves one off ("landlock"), and all others must hold; `server` is the fork server it uses instead of the shared one.
        `as_of` is the journal format of the recorded code that is to run as it did then.
        """
        self.profile = profile_named(profile).having(packages).as_of(as_of)
        self.as_of = as_of
        self.limits = limits or Limits()
        self.clock = clock
        self.watch: Watch | None = None
        self.fatal_files = False  # whether code that reaches for a file ends as a violation, not with a PermissionError
        self.ready_names = True  # whether code has READY_NAMES without an import; monty has none of them
        if not isinstance(keep_states, int) or keep_states < 1:  # pyright: ignore[reportUnnecessaryIsInstance] - callers are not all typed
            raise ConfigError(f"keep_states must be at least 1, not {keep_states!r}")
        if not isinstance(seed, int):  # pyright: ignore[reportUnnecessaryIsInstance] - as above
            raise ConfigError(f"seed must be an int, not {seed!r}")
        if isinstance(functions, str):
            raise ConfigError(f"functions must be a list of names, not the text {functions!r}")
        if host is None and functions:
            raise ConfigError("functions are named but there is no host to serve them; pass host=...")
        for name in functions or ():
            if not _is_name(name) or name in RESERVED:
                raise ConfigError(f"{name!r} cannot be the name of a host function")
        check_without(without)
        self._host = host
        self._functions = None if functions is None else frozenset(functions)
        self._sharing = tuple(sharing)
        self._keep_states = keep_states
        self._preparation = Preparation(self.profile, self._functions, session_id, self.limits, host)
        self._shares: dict[str, Any] = {}
        self._pending: dict[str, Any] = {}
        self._turn = first_turn
        self._closed = False
        self._busy = threading.Lock()
        self._start(seed=seed, unsafe=unsafe, without=without, server=server)

    @property
    def turn(self) -> int:
        return self._turn

    @property
    @abstractmethod
    def layers(self) -> tuple[str, ...]:
        """What stands between the code and the machine."""

    @abstractmethod
    def share(self, name: str, content: Shareable) -> None:
        """Give code a text, or a mapping of texts; a str is text, a Path is a file to read."""

    def inject(self, name: str, value: Any) -> None:
        """Set a variable to a plain value (JSON-like or bytes) from the next turn on."""
        with self._alone():
            self._check_name(name, self._shares)
            try:
                size = len(frames.encode(value))
            except (ValueError, TypeError):
                raise ConfigError(
                    f"{name!r} holds a {type(value).__name__} that is not JSON-like; inject str, numbers, lists, dicts or bytes"
                ) from None
            if size > self.limits.memory_bytes // 2:
                raise ConfigError(
                    f"{name!r} takes {size} bytes, too much for {self.limits.memory}; use share() for text"
                )
            self._pending[name] = value

    def execute(self, code: str, wall_s: float | None = None) -> ExecResult:
        """Run one turn. Whatever the code does, the answer is a result; see `ExecFault` for what can be wrong."""
        wall = self.limits.wall_s if wall_s is None else wall_s
        if not 0 < wall <= self.limits.cpu_seconds:
            raise ConfigError(
                f"wall_s must be above zero and at most {self.limits.cpu_seconds} (the CPU limit), not {wall}"
            )
        if not isinstance(code, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers are not all typed
            raise ConfigError(f"code must be a str, not {type(code).__name__}")
        with self._alone():
            self._turn += 1
            prepared = self._prepare(code)
            if isinstance(prepared, ExecFault):
                result = ExecResult(ok=False, turn=self.turn, fault=prepared, layers=self.layers)
            else:
                result = self._run(prepared, wall)
            return self._preparation.charged(result)

    @abstractmethod
    def rollback(self, turn: int) -> None:
        """Go back to the state after that turn (0 is the beginning); later turns are forgotten."""

    def branch(self) -> Self:
        """A second box that starts from this one's state. Allowed in the middle of a turn too: then from before the turn."""
        self._check_open()
        twin = copy.copy(self)
        twin._busy = threading.Lock()
        twin._pending = dict(self._pending)
        twin._shares = dict(self._shares)
        twin._preparation = self._preparation.copy()
        twin._keep_newest_state()
        return twin

    @abstractmethod
    def close(self) -> None:
        """End every process of this box. A second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def _start(self, *, seed: int, unsafe: bool, without: str, server: ForkServer | None) -> None:
        """Make the state before the first turn."""

    @abstractmethod
    def _prepare(self, code: str) -> Prepared | ExecFault:
        """The code as it will run, or why it will not."""

    @abstractmethod
    def _run(self, prepared: Prepared, wall: float) -> ExecResult:
        """One turn."""

    @abstractmethod
    def _keep_newest_state(self) -> None:
        """This is a new branch, still a plain copy: hold the newest state of the box it came from, and only that."""

    @contextlib.contextmanager
    def _alone(self) -> Generator[None]:
        """Alone with the box, or a ConfigError that says how to have a second one."""
        self._check_open()
        if not self._busy.acquire(blocking=False):
            raise ConfigError("this box is in the middle of a turn; use box.branch() for a second one")
        try:
            yield
        except (OSError, ValueError, KeyError) as error:
            if not self._closed:
                raise
            raise SandboxLost("this box was closed in the middle of a turn; open a new one") from error
        finally:
            self._busy.release()

    def _check_open(self) -> None:
        if self._closed:
            raise SandboxLost("this box is closed; open a new one")

    def _check_name(self, name: str, taken: Collection[str]) -> None:
        """ConfigError for what cannot be the name of a variable in the code."""
        if not _is_name(name):
            raise ConfigError(f"{name!r} is not a name for a variable; use letters, digits and _, like 'context'")
        if name in RESERVED or name in (self._functions or ()):
            raise ConfigError(f"{name!r} is a function of the host; choose another name for the variable")
        if name in taken:
            raise ConfigError(f"{name!r} is shared or injected already; choose another name")


def _is_name(name: object) -> bool:
    """Can code use it as a name of its own?"""
    return isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("__")
