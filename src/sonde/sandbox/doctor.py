"""Could untrusted code run safely here? `examine()` tries it for real and returns what it found as data.

It starts a fork server and a worker and lets it try what must fail. `examine_portable()` does the same with the backend for systems
that lack the kernel's layers. Both never raise: what is wrong is in the answer.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata

from sonde.errors import SandboxLost, SandboxUnavailable
from sonde.sandbox.base import Limits
from sonde.sandbox.box import Box, open_box
from sonde.sandbox.kernel_box import Sandbox
from sonde.sandbox.launch import STOPS, LayersMissing
from sonde.sandbox.policy import PROFILES

PACKAGES = {"sonde": "sonde-rlm", "msgspec": "msgspec", "pydantic": "pydantic"}
"""The name that is shown, and the distribution it comes in."""
ATTEMPTS = {
    "a file cannot be read": ("open('/etc/passwd').read()", "error"),
    "a process cannot be started": ("import os\nos.fork()", "violation"),
    "a socket cannot be opened": ("import socket\nsocket.socket()", "violation"),
    "a loop is stopped": ("while True: pass", "timeout"),
    "earlier variables survive all that": ("assert kept == 1", None),
}
"""What the code tries, and the fault it must meet; None must work."""

PORTABLE_ATTEMPTS = {
    "a file cannot be read": ("open('/etc/passwd').read()", "error"),
    "a process cannot be started": ("import subprocess", "import"),
    "a socket cannot be opened": ("import socket", "import"),
    "a loop is stopped": ("while True: pass", "timeout"),
    "earlier variables survive all that": ("assert kept == 1", None),
}
PROMISED = (
    "code has no files, no network, no processes and no threads: the interpreter that runs it has none of them",
    "its time, memory and output are bounded, and its process is ended from outside",
    "citations are proved, and runs are recorded, resumed and replayed as on Linux",
)
NOT_PROMISED = (
    "a boundary of the kernel: a fault in the interpreter is a hole, so run no code of somebody who wants in",
    "all of Python: what it lacks is refused with a message, and --with (numpy, pandas) does not work",
    "confined parsers: documents and archives are read in processes that can be ended, but that see your files",
    "commands of `sonde edit` kept to the workspace: they reach what you can reach",
)
NOT_ON_WINDOWS = ("documents and archives, `edit`, `batch`, `rlms` and programs as models: WSL2 has all of them",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was tried."""

    name: str
    ok: bool
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What this machine offers. `safe` means that untrusted code is kept in; `problem` says why not and what to do."""

    safe: bool
    problem: str
    machine: str
    kernel: str
    python: str
    layers: tuple[str, ...]
    missing: dict[str, str]
    """Each layer that is not on, and what it would have stopped."""
    checks: tuple[Check, ...]
    profiles: tuple[str, ...]
    versions: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PortableDiagnosis:
    """The same of the portable backend, with what it promises and what it does not."""

    works: bool
    problem: str
    layers: tuple[str, ...]
    checks: tuple[Check, ...]
    promised: tuple[str, ...]
    not_promised: tuple[str, ...]


def examine_portable() -> PortableDiagnosis:
    """Try the portable backend."""
    layers: tuple[str, ...] = ()
    checks: list[Check] = []
    problem = ""
    try:
        with open_box("monty", profile="open", limits=Limits(wall_s=10, memory="256MiB")) as box:
            layers = box.layers
            checks = _attempts(box, PORTABLE_ATTEMPTS)
    except (SandboxUnavailable, SandboxLost) as error:
        problem = error.message
    failed = [check.name for check in checks if not check.ok]
    if failed:
        problem = "the interpreter does not hold: " + ", ".join(failed)
    return PortableDiagnosis(
        works=not problem,
        problem=problem,
        layers=layers,
        checks=tuple(checks),
        promised=PROMISED,
        not_promised=(*NOT_PROMISED, *(NOT_ON_WINDOWS if sys.platform == "win32" else ())),
    )


def _attempts(box: Box, attempts: Mapping[str, tuple[str, str | None]]) -> list[Check]:
    """Run each, and see whether it meets the fault that it must meet."""
    checks: list[Check] = []
    box.execute("kept = 1")
    for name, (code, expected) in attempts.items():
        fault = box.execute(code, wall_s=0.5 if expected == "timeout" else None).fault
        met = fault.kind if fault else None
        checks.append(Check(name=name, ok=met == expected, detail=fault.message if fault else ""))
    return checks


def examine(without: str = "") -> Diagnosis:
    """Try it, if need be without the layer that the caller gives up, and say what happened."""
    layers: tuple[str, ...] = ()
    missing: tuple[str, ...] = (without,) if without else ()
    checks: list[Check] = []
    versions: dict[str, str] = {}
    problem = ""
    try:
        with Sandbox(profile="open", limits=Limits(wall_s=10, memory="256MiB"), without=without) as box:
            layers = box.layers
            checks = _attempts(box, ATTEMPTS)
    except LayersMissing as error:
        layers, missing, problem = error.on, (*missing, *error.missing), error.message
    except (SandboxUnavailable, SandboxLost) as error:
        problem = error.message
    failed = [check.name for check in checks if not check.ok]
    if failed:
        problem = "the layers are on but do not hold: " + ", ".join(failed)
    for name, package in PACKAGES.items():
        try:
            versions[name] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return Diagnosis(
        safe=not problem,
        problem=problem,
        machine=platform.machine(),
        kernel=f"{platform.system()} {platform.release()}",
        python=f"{platform.python_implementation()} {platform.python_version()} ({sys.executable})",
        layers=layers,
        missing={layer: STOPS.get(layer.partition(" ")[0], "") for layer in missing},
        checks=tuple(checks),
        profiles=tuple(PROFILES),
        versions=versions,
    )
