"""The values of the sandbox: limits, the result of a turn, and what can be wrong with one.

`ExecFault` is a value, not an exception: the code failed, and its author, a model, must hear how. Exceptions are for the caller:
`ConfigError` (a bad argument; nothing was run), `SandboxUnavailable` (a kernel layer is missing), `SandboxLost` (state gone).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, Literal

from sonde.errors import CodeFault, ConfigError, ErrorCode, SandboxViolation

MIB = 1 << 20
DISPENSABLE = "landlock"
"""The one layer that a caller may leave off by name. Everything that it stops, seccomp and the unprivileged user stop as well: the escape
corpus shows it."""
MOST = 1 << 50
"""No limit needs more, and the kernel takes little more."""
FEWEST_CHARS = 512
MOST_CHARS = 500_000
"""Both streams keep this much twice, and a report is at most 16 MiB of JSON."""
UNITS = {
    "": 1,
    "b": 1,
    "k": 1000,
    "m": 1000**2,
    "g": 1000**3,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
}

FaultKind = Literal["error", "syntax", "gate", "import", "timeout", "memory", "crash", "violation", "quota", "output"]


class OutOfTime(Exception):
    """The time of the turn is over."""


class OverQuota(Exception):
    """The code made more host calls than a turn may."""


class Args(tuple[Any, ...]):  # noqa: SLOT001 - a tuple cannot have slots that hold anything
    """The positional arguments of a host call; `named` holds the keyword ones."""

    named: dict[str, Any]

    @classmethod
    def of(cls, positional: list[Any], named: dict[str, Any]) -> Args:
        args = cls(positional)
        args.named = named
        return args


Host = Callable[[str, Args], Any]
"""Serves one call of generated code: the name that was called and its arguments; returns a JSON-like value or bytes."""

MESSAGE_CHARS = 100_000
"""More is not a message, and all of it would go to the worker."""

Watch = Callable[[], object]
"""Called again and again while code runs: a `RunError` that it raises voids the turn, as one of the host does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one turn may use. `wall_s` counts the time of the code, not of the host functions it waits for."""

    wall_s: float = 30.0
    memory: str | int = "1GiB"
    """On top of the bare interpreter and of what is shared; also the bound on all kept states together."""
    cpu_s: float | None = None
    """Seconds of processor time per turn; None: twice the wall time and a minute, as a backstop."""
    output_chars: int = 8192
    host_calls: int = 10_000
    frame_bytes: int = 64 * MIB
    shared_bytes: int = 256 * MIB
    source_chars: int = 1_000_000

    def __post_init__(self) -> None:
        _check_limit("wall_s", self.wall_s, int | float)
        _check_limit("memory", self.memory_bytes, int)
        if self.cpu_s is not None:
            _check_limit("cpu_s", self.cpu_s, int | float)
        for name in ("output_chars", "host_calls", "frame_bytes", "shared_bytes", "source_chars"):
            _check_limit(name, getattr(self, name), int)
        if not FEWEST_CHARS <= self.output_chars <= MOST_CHARS:
            raise ConfigError(
                f"the limit output_chars must be from {FEWEST_CHARS}, to hold head and tail, to {MOST_CHARS}, not {self.output_chars}"
            )

    @property
    def memory_bytes(self) -> int:
        return parse_size(self.memory)

    @property
    def cpu_seconds(self) -> int:
        return math.ceil(self.cpu_s if self.cpu_s is not None else 2 * self.wall_s + 60)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeClock:
    """The clock that code sees: starts at `start` (seconds since 1970) each turn; every reading adds `step` seconds."""

    start: float
    step: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.start) and math.isfinite(self.step)):
            raise ConfigError(f"a clock starts at a time and takes finite steps, not {self.start} and {self.step}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecFault:
    """What went wrong in a turn, in words for whoever wrote the code."""

    kind: FaultKind
    message: str
    line: int | None = None
    hint: str | None = None
    traceback: str = ""

    @property
    def code(self) -> ErrorCode:
        """What a run record calls it."""
        return SandboxViolation.code if self.kind == "violation" else CodeFault.code

    @property
    def keeps_state(self) -> bool:
        """Did the turn's partial effects stay? A turn killed from outside leaves none."""
        return self.kind in {"error", "syntax", "gate", "import"} or (self.kind == "memory" and bool(self.traceback))


@dataclass(frozen=True, slots=True)
class Final:
    """The value that FINAL, FINAL_VAR, set_final or SUBMIT was given; a falsy one counts."""

    value: Any


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable that the turn made or changed; `size` is its length, or None where it has none."""

    name: str
    type: str
    size: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecUsage:
    """What the turn took."""

    wall_s: float = 0.0
    host_s: float = 0.0
    cpu_s: float = 0.0
    memory_bytes: int = 0
    host_calls: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """The outcome of one turn. Not ok means a fault; the state of earlier turns is intact in every case."""

    ok: bool
    turn: int
    stdout: str = ""
    stderr: str = ""
    fault: ExecFault | None = None
    final: Final | None = None
    variables: tuple[Variable, ...] = ()
    usage: ExecUsage = field(default_factory=ExecUsage)
    layers: tuple[str, ...] = ()
    output_chars: int = 0
    """True length of the output before it was cut."""
    warnings: tuple[str, ...] = ()


def host_error(error: Exception) -> tuple[str, str]:
    """Class and message of an exception of the host, for the code that made the call. Its own methods may do what they like."""
    match error:
        case KeyError(args=(str(key),)):
            message = key  # its str() has the quotes already, and would get them twice
        case _:
            try:
                message = str(error)
            except Exception as broken:  # noqa: BLE001 - the host's own class: nothing is known about what it raises
                message = f"<its message raised {type(broken).__name__}>"
    return type(error).__name__, message[:MESSAGE_CHARS]


def check_without(layer: str) -> None:
    """ConfigError for a layer that cannot be left off."""
    if layer not in ("", DISPENSABLE):
        raise ConfigError(
            f"{layer!r} cannot be left off; only {DISPENSABLE} can, because the other layers hold without it"
        )


def parse_size(size: str | int) -> int:
    """Bytes in `1GiB`, `512 MB` or a plain number."""
    if isinstance(size, int) and not isinstance(size, bool):
        return size
    match = re.fullmatch(r"\s*(-?\d{1,18}(?:\.\d+)?)\s*([A-Za-z]*)\s*", size) if isinstance(size, str) else None
    if match is None or match[2].lower() not in UNITS:
        raise ConfigError(f"{size!r} is not a size; write it like 512MiB, 1GiB or 1000000")
    return int(float(match[1]) * UNITS[match[2].lower()])


def _check_limit(name: str, value: Any, kind: type[int] | UnionType) -> None:
    if isinstance(value, bool) or not isinstance(value, kind):
        raise ConfigError(f"the limit {name} must be a {'whole ' if kind is int else ''}number, not {value!r}")
    if not value > 0:
        raise ConfigError(f"the limit {name} must be above zero, not {value}")
    if value > MOST:
        raise ConfigError(f"the limit {name} must be at most {MOST}, not {value}")
