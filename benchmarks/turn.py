"""A turn of the loop beside its peers: everything between two model requests, one table from one run.

    python benchmarks/turn.py [--turns 62] [--rounds 3] [--only sonde,rlms] [--json] [--scale]

A scripted server answers at once and takes the time between two requests; the code of a turn looks at the context and prints a
little. The systems take turns for some rounds, and of each the quietest round counts. Each runs in a process and an environment of
its own (.bench/turn-NAME, made with uv on first use), Sonde with its sandbox, checkpoints and journal on. Cells are medians in
milliseconds. The load is printed: compare columns, not absolute times.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import turn_scale

from sonde.testing import ScriptedServer, SeenRequest

HERE = Path(__file__).resolve().parent
SIZES = (1, 100)
LOOK = "print(len({context}), {context}[1000:1100])"
PEERS: dict[str, tuple[str, ...]] = {
    "rlms": ("rlms",),
    "dspy": ("dspy",),
    "smolagents": ("smolagents[openai]",),
    "pyrlm-runtime": ("pyrlm-runtime",),
}
NEWER = {"pyrlm-runtime": "3.12"}
ISOLATION = {
    "sonde": "kernel, process a turn, checkpoints, journal on disk",
    "rlms": "none: exec in this process",
    "dspy": "process (LocalInterpreter)",
    "smolagents": "interpreter in this process",
    "pyrlm-runtime": "none: exec in this process",
}


def _fields(code: str) -> str:
    fence = f"```python\n{code}\n```"
    return f"[[ ## reasoning ## ]]\nlook\n\n[[ ## code ## ]]\n{fence}\n\n[[ ## completed ## ]]"


Form = Callable[[str], str]
FORMS: dict[str, tuple[str, Form, Form]] = {
    "sonde": ("context", lambda code: f"```python\n{code}\n```", lambda code: f"```python\nFINAL({code})\n```"),
    "rlms": (
        "context",
        lambda code: f"```repl\n{code}\n```",
        lambda code: f'```repl\nanswer["content"] = {code}\nanswer["ready"] = True\n```',
    ),
    "dspy": (
        "context",
        _fields,
        lambda code: _fields(f"SUBMIT(answer={code})"),
    ),
    "smolagents": (
        "context",
        lambda code: f"Thought: look\n<code>\n{code}\n</code>",
        lambda code: f"Thought: done\n<code>\nfinal_answer({code})\n</code>",
    ),
    "pyrlm-runtime": ("P", lambda code: f"```python\n{code}\n```", lambda code: f"FINAL: {code}"),
}


class Stopwatch:
    """A model that says the same until the last turn, and notes when it was asked."""

    def __init__(self, name: str, turns: int) -> None:
        context, self._code, self._final = FORMS[name]
        self._look = LOOK.format(context=context)
        self._turns = turns
        self.at: list[float] = []

    def __call__(self, _seen: SeenRequest) -> str:
        self.at.append(time.perf_counter())
        turn = len(self.at)
        return self._code(self._look) if turn < self._turns else self._final("'done'")

    def gaps(self) -> list[float]:
        return [1000 * (after - before) for before, after in zip(self.at, self.at[1:], strict=False)]


def python_of(name: str) -> Path | None:
    """The interpreter of a peer's environment, made on first use; None when it cannot be made here."""
    if name == "sonde":
        return Path(sys.executable)
    place = HERE.parent / ".bench" / f"turn-{name}"
    python = place / "bin" / "python"
    uv = Path(sys.prefix) / "bin" / "uv"
    wanted = _newer(NEWER[name]) if name in NEWER else sys.executable
    if wanted is None:
        return None
    if not python.exists():
        subprocess.run([uv, "venv", "--quiet", "--python", wanted, place], check=True)
        subprocess.run([uv, "pip", "install", "--quiet", "--python", python, *PEERS[name]], check=True)
    return python


def _newer(version: str) -> str | None:
    found = shutil.which(f"python{version}")
    managed = sorted(Path.home().glob(f".pyenv/versions/{version}*/bin/python"))
    return str(managed[-1]) if managed else found


def measure(name: str, python: Path, megabytes: int, turns: int) -> dict[str, Any]:
    """One run of one system."""
    watch = Stopwatch(name, turns)
    with ScriptedServer(watch) as server, tempfile.TemporaryDirectory() as folder:
        env = os.environ | {"OPENAI_API_KEY": "sk-none", "OPENAI_BASE_URL": server.base_url, "LLM_API_KEY": "sk-none"}
        command = [python, HERE / "turn_peers.py", name, server.base_url, str(megabytes), str(turns)]
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=900, check=False)
    gaps = watch.gaps()
    if len(gaps) < min(turns, 12) - 2:
        return {"error": (done.stderr or done.stdout)[-400:]}
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {}
    return {
        "gap": statistics.median(gaps),
        "best": min(gaps),
        "turn 10": statistics.median(gaps[5:15]),
        "turn 60": statistics.median(gaps[50:60]) if len(gaps) >= 60 else None,
        **said,
    }


def measured(pythons: dict[str, Path], turns: int) -> dict[str, dict[int, dict[str, Any]]]:
    """One round: each system once at each size."""
    return {name: {size: measure(name, python, size, turns) for size in SIZES} for name, python in pythons.items()}


def quietest(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Of several rounds the one that the rest of the machine disturbed least."""
    return min(rows, key=lambda row: row.get("gap", float("inf")))


def table(found: dict[str, dict[int, dict[str, Any]]]) -> str:
    labels = [
        "| system | 1 MB: gap (best) | 100 MB: gap (best) | 100 MB / 1 MB | turn 60 / turn 10 | CPU a turn | isolation |"
    ]
    lines = [*labels, "|---|---|---|---|---|---|---|"]
    for name, sizes in found.items():
        one, hundred = sizes[SIZES[0]], sizes[SIZES[1]]
        lines.append(
            f"| {one.get('name', name)} | {_cell(one)} | {_cell(hundred)} | {_ratio(hundred.get('gap'), one.get('gap'))} "
            f"| {_ratio(one.get('turn 60'), one.get('turn 10'))} | {_cpu(one)} | {ISOLATION[name]} |"
        )
    return "\n".join(lines)


def _cell(row: dict[str, Any]) -> str:
    return f"{row['gap']:.1f} ({row['best']:.1f})" if "gap" in row else f"failed: {row['error'][-60:]!r}"


def _cpu(row: dict[str, Any]) -> str:
    return f"{row['cpu_ms']:.1f}" if row.get("cpu_ms") is not None else "-"


def _ratio(over: float | None, under: float | None) -> str:
    return f"{over / under:.2f}" if over and under else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=62)
    parser.add_argument("--rounds", type=int, default=3, help="the quietest one counts")
    parser.add_argument("--only", default=",".join(FORMS))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--scale", action="store_true", help="also batches, much data, help and packages")
    chosen = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else every start compiles every module again
    pythons: dict[str, Path] = {}
    for name in chosen.only.split(","):
        python = python_of(name)
        if python is None:
            print(f"{name}: needs Python {NEWER[name]}, which is not here", file=sys.stderr)
            continue
        pythons[name] = python
    rounds = [measured(pythons, chosen.turns) for _ in range(chosen.rounds)]
    found = {name: {size: quietest([each[name][size] for each in rounds]) for size in SIZES} for name in pythons}
    print(json.dumps(found, indent=1) if chosen.json else table(found))
    if chosen.scale:
        print(f"\n{turn_scale.table(turn_scale.figures())}")
    print(f"\nload average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", file=sys.stderr)


if __name__ == "__main__":
    main()
