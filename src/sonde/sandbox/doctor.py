"""Could untrusted code run safely here? `examine()` tries it for real and returns what it found as data.

It starts a fork server and a worker and lets it try what must fail. It never raises: what is wrong is in the answer.
"""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass
from importlib import metadata

from sonde.errors import SandboxLost, SandboxUnavailable
from sonde.sandbox.base import Limits
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
            box.execute("kept = 1")
            for name, (code, expected) in ATTEMPTS.items():
                fault = box.execute(code, wall_s=0.5 if expected == "timeout" else None).fault
                met = fault.kind if fault else None
                checks.append(Check(name=name, ok=met == expected, detail=fault.message if fault else ""))
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
