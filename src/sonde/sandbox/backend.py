"""The backends of the sandbox by name. There is no fallback from one to the other: whoever wants Monty says so.

`kernel` is `Sandbox`: CPython behind seccomp, landlock and rlimits. `monty` is `MontyBox`: an interpreter of a subset of Python, for
systems where the kernel has no such layers.
"""

from __future__ import annotations

from typing import Any, Protocol

from sonde.errors import ConfigError
from sonde.sandbox.base import CodeClock, ExecResult, Limits, Watch
from sonde.sandbox.box import Sandbox
from sonde.sandbox.share import Shareable

BACKENDS = ("kernel", "monty")


class Box(Protocol):
    """What every backend offers; see `Sandbox` for what each promises."""

    limits: Limits
    clock: CodeClock | None
    watch: Watch | None

    @property
    def layers(self) -> tuple[str, ...]: ...
    @property
    def turn(self) -> int: ...
    def share(self, name: str, content: Shareable) -> None: ...
    def inject(self, name: str, value: Any) -> None: ...
    def execute(self, code: str, wall_s: float | None = None) -> ExecResult: ...
    def rollback(self, turn: int) -> None: ...
    def branch(self) -> Box: ...
    def close(self) -> None: ...


def open_box(backend: str, **options: Any) -> Box:
    """A new box; the options are those of Sandbox. SandboxUnavailable says what this machine lacks for it."""
    return _box_type(backend)(**options)


def describe(backend: str) -> str:
    """What a model has to know of the backend's Python; nothing when it is all there."""
    if backend == "kernel":
        return ""
    from sonde.sandbox.portable.language import language  # noqa: PLC0415 - only whoever wants Monty pays for it

    return language().describe()


def _box_type(backend: str) -> Any:
    if backend == "kernel":
        return Sandbox
    if backend == "monty":
        from sonde.sandbox.monty import MontyBox  # noqa: PLC0415 - as above

        return MontyBox
    raise ConfigError(f"unknown backend {backend!r}; choose one of: {', '.join(BACKENDS)}")
