"""Could untrusted code run safely here? Tried for real, and told as data.

`examine()` starts a fork server and a worker and lets it try what must fail. It never raises: what is wrong is in the answer.
"""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass
from importlib import metadata

from sonde.errors import SandboxLost, SandboxUnavailable
from sonde.sandbox.base import Limits
from sonde.sandbox.box import Sandbox
from sonde.sandbox.policy import PROFILES

PACKAGES = {"sonde": "sonde-rlm", "msgspec": "msgspec", "pydantic": "pydantic"}
"""What is named, and the distribution that it comes in."""
ATTEMPTS = {
    "a file cannot be read": ("open('/etc/passwd').read()", "error"),
    "a process cannot be started": ("import os\nos.fork()", "violation"),
    "a socket cannot be opened": ("import socket\nsocket.socket()", "violation"),
    "a loop is stopped": ("while True: pass", "timeout"),
    "earlier variables survive all that": ("assert kept == 1", None),
}
"""What the code tries, and the fault it must meet; None must work."""


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
    checks: tuple[Check, ...]
    profiles: tuple[str, ...]
    versions: dict[str, str]


def examine() -> Diagnosis:
    """Try it, and tell."""
    layers: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    problem = ""
    try:
        with Sandbox(profile="open", limits=Limits(wall_s=10, memory="256MiB")) as box:
            layers = box.layers
            checks = _try_everything(box)
    except (SandboxUnavailable, SandboxLost) as error:
        problem = error.message
    failed = [check.name for check in checks if not check.ok]
    if failed:
        problem = "the layers are on but do not hold: " + ", ".join(failed)
    return Diagnosis(
        safe=not problem,
        problem=problem,
        machine=platform.machine(),
        kernel=f"{platform.system()} {platform.release()}",
        python=f"{platform.python_implementation()} {platform.python_version()} ({sys.executable})",
        layers=layers,
        checks=checks,
        profiles=tuple(PROFILES),
        versions={name: _version(package) for name, package in PACKAGES.items()},
    )


def _try_everything(box: Sandbox) -> tuple[Check, ...]:
    box.execute("kept = 1")
    return tuple(_attempt(box, name, *attempt) for name, attempt in ATTEMPTS.items())


def _attempt(box: Sandbox, name: str, code: str, expected: str | None) -> Check:
    result = box.execute(code, wall_s=0.5 if expected == "timeout" else None)
    met = result.fault.kind if result.fault else None
    return Check(name=name, ok=met == expected, detail=result.fault.message if result.fault else "")


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
