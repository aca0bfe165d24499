"""Attacks on the supervisor and its protocol: run one, and see from outside that nothing but that turn was lost."""

from __future__ import annotations

import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from patience import SLOWNESS
from sonde.sandbox import Args, ForkServer, Limits, Sandbox
from sonde.sandbox.policy import OPEN_PRELOAD
from system_calls import translated

FOLDER = Path(__file__).parent / "attacks"
WALL_S = 1.0 * SLOWNESS
"""For attacks that may spin; one that ends by itself can have more, however busy the machine."""
PROBE = "print(double(kept) + next(open_generator))"


@dataclass(frozen=True, slots=True, kw_only=True)
class Siege:
    """What came of one attack.

    `later` are the outputs of harmless turns after it, `back` that of one after a rollback; `called` is what reached the host.
    """

    name: str
    fault: str | None
    message: str
    seconds: float
    later: tuple[str, ...]
    back: str
    called: tuple[str, ...]
    strays: int

    @property
    def recovered(self) -> bool:
        """Earlier variables, functions and generators are there: at once, after a lost turn, or after a rollback."""
        return "83" in self.later or self.back == "83"


def attacks() -> dict[str, str]:
    """Every attack's code by name."""
    return {
        f"{path.stem}.{name}": translated(str(fields["code"]))
        for path in sorted(FOLDER.glob("*.toml"))
        for name, fields in tomllib.loads(path.read_text())["attack"].items()
    }


def besiege(chosen: dict[str, str], server: ForkServer, wall_s: float = WALL_S) -> dict[str, Siege]:
    """All attacks, several boxes at once, as a busy supervisor would meet them."""
    with ThreadPoolExecutor(6) as pool:
        tasks = {name: pool.submit(attack, name, code, server, wall_s) for name, code in chosen.items()}
        return {name: task.result() for name, task in tasks.items()}


def attack(name: str, code: str, server: ForkServer, wall_s: float) -> Siege:
    called: list[str] = []

    def host(function: str, _: Args) -> object:
        called.append(function)
        return "x" * 1_000_000 if function == "big" else None

    limits = Limits(wall_s=60, memory="256MiB")
    box = Sandbox(profile="open", limits=limits, host=host, functions=["f", "big", "many"], server=server)
    with box:
        box.execute("kept = 41\ndef double(x): return 2 * x\nopen_generator = iter([1, 2, 3])")
        start = time.monotonic()
        result = box.execute(code, wall_s)
        later = tuple(box.execute(PROBE, 3 * wall_s).stdout.strip() for _ in range(3))
        box.rollback(1)
        back = box.execute(PROBE).stdout.strip()
        seconds = time.monotonic() - start
        group = box._family.group
    return Siege(
        name=name,
        fault=None if result.fault is None else result.fault.kind,
        message="" if result.fault is None else result.fault.message,
        seconds=seconds,
        later=later,
        back=back,
        called=tuple(called),
        strays=members_after(group, 60.0),
    )


def members(group: int) -> int:
    """Living processes of a process group."""
    found = 0
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                fields = (path / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # gone while we looked
            found += int(fields[2]) == group and fields[0] not in "ZX"
    return found


def members_after(group: int, patience_s: float) -> int:
    """How many are left once they have had time to die."""
    pause, until = threading.Event(), time.monotonic() + patience_s
    while (left := members(group)) and time.monotonic() < until:
        pause.wait(0.02)
    return left


def open_server() -> ForkServer:
    return ForkServer(OPEN_PRELOAD)
