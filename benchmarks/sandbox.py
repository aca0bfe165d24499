"""The sandbox beside its peers, one table from one run.

    python benchmarks/sandbox.py [--turns 60] [--json]

Peers are installed into .bench/sandbox with uv. A cell is the median, with the best in brackets. The bars are meant for the median
on a quiet machine: the load is printed, so compare columns, not absolute times.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

from sandbox_measure import Figure, Host, Rows, Session, measure

from sonde.sandbox import Args, Limits, Sandbox

HERE = Path(__file__).resolve().parent
ENVIRONMENT = HERE.parent / ".bench" / "sandbox"
PEERS = ["pydantic-monty", "smolagents", "RestrictedPython"]
BARS = {
    "new session, ms": 10.0,
    "turn, small heap, ms": 3.0,
    "turn, 100 MB shared, ms": 3.0,
    "turn, 50 MB of objects, ms": 8.0,
    "kill overshoot, ms": 20.0,
    "host call, µs": 150.0,
    "host call, µs CPU in the parent": 60.0,
    "1 MB host result, ms": 10.0,
    "5M-iteration loop, x plain CPython": 1.1,
    "sharing 100 MB and first use, s": 0.15,
}
FACTS: dict[str, tuple[str, str, str]] = {
    "sonde": ("kernel: seccomp, landlock, rlimits", "yes", "yes"),
    "CPython a turn": ("none", "yes", "no state at all"),
    "pydantic-monty": ("own interpreter, own process", "yes", "no guarantee"),
    "smolagents": ("interpreter in this process", "no", "no kill"),
    "RestrictedPython": ("rewritten source in this process", "no", "no kill"),
}


class SondeSession:
    def __init__(self, hosts: dict[str, Host], wall_s: float | None) -> None:
        def serve(name: str, args: Args) -> Any:
            return hosts[name](*args)

        limits = Limits(wall_s=wall_s or 120.0)
        self._box = Sandbox(limits=limits, host=serve if hosts else None, functions=list(hosts) if hosts else None)

    def run(self, code: str) -> None:
        result = self._box.execute(code)
        assert result.ok or (result.fault is not None and result.fault.kind == "timeout"), result

    def share(self, text: bytes) -> None:
        self._box.share("context", text)

    def close(self) -> None:
        self._box.close()


class Sonde:
    name = "sonde"
    loop_part = 1

    def open(self, hosts: dict[str, Host], wall_s: float | None) -> Session:
        return SondeSession(hosts, wall_s)


_TURN = """
import pickle, sys
path, code = sys.argv[1:]
with open(path, "rb") as file: state = pickle.load(file)
exec(code, state)
with open(path, "wb") as file: pickle.dump({k: v for k, v in state.items() if k != "__builtins__"}, file)
"""


class SpawnSession:
    """State goes through a pickle on a memory file system from process to process."""

    def __init__(self, wall_s: float | None) -> None:
        self._wall_s = wall_s
        self._state = Path("/dev/shm", f"sonde-bench-{os.getpid()}.pickle")
        self._write({})

    def _write(self, state: dict[str, Any]) -> None:
        self._state.write_bytes(pickle.dumps(state))

    def run(self, code: str) -> None:
        try:
            subprocess.run([sys.executable, "-I", "-c", _TURN, self._state, code], check=True, timeout=self._wall_s)
        except subprocess.TimeoutExpired:
            return

    def share(self, text: bytes) -> None:
        self._write({"context": text.decode()})

    def close(self) -> None:
        self._state.unlink()


class Spawn:
    name = "CPython a turn"
    loop_part = 1

    def open(self, hosts: dict[str, Host], wall_s: float | None) -> Session:
        if hosts:
            raise NotImplementedError("no channel")
        return SpawnSession(wall_s)


def peers(turns: int) -> dict[str, Rows]:
    """Measured in their own environment, which is made on first use."""
    python = ENVIRONMENT / "bin" / "python"
    uv = Path(sys.prefix) / "bin" / "uv"
    if not python.exists():
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, ENVIRONMENT], check=True)
    subprocess.run([uv, "pip", "install", "--quiet", "--python", python, *PEERS], check=True)
    done = subprocess.run(
        [python, HERE / "sandbox_peers.py", str(turns)], stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout)


def with_facts(name: str, rows: Rows) -> Rows:
    isolation, kills, survives = FACTS[next(known for known in FACTS if name.startswith(known))]
    return rows | {"isolation": isolation, "a runaway is killed": kills, "state survives a killed turn": survives}


def table(columns: dict[str, Rows]) -> str:
    labels = [*BARS, "isolation", "a runaway is killed", "state survives a killed turn"]
    lines = [["", "bar", *columns]]
    for label in labels:
        bar = f"<= {BARS[label]:g}" if label in BARS else ""
        lines.append([label, bar, *(shown(rows.get(label, "-")) for rows in columns.values())])
    head, *body = (f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([head, f"|{'---|' * len(lines[0])}", *body])


def shown(value: Figure | str) -> str:
    return value if isinstance(value, str) else f"{_short(value[0])} ({_short(value[1])})"


def _short(number: float) -> str:
    return f"{number:.2g}" if number < 100 else f"{number:,.0f}"


def missed(rows: Rows) -> list[str]:
    """Bars that the median does not meet."""
    found = {label: rows.get(label, "-") for label in BARS}
    return [label for label, value in found.items() if isinstance(value, str) or value[0] > BARS[label]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    columns = {engine.name: measure(engine, chosen.turns) for engine in (Sonde(), Spawn())}
    columns |= peers(chosen.turns)
    columns = {name: with_facts(name, rows) for name, rows in columns.items()}
    print(json.dumps(columns, indent=1) if chosen.json else table(columns))
    load = f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    print(f"\n{load}; bars missed by the median: {', '.join(missed(columns['sonde'])) or 'none'}", file=sys.stderr)


if __name__ == "__main__":
    main()
