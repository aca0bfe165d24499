"""What else a user waits and pays for: a thousand sub-calls at once, the start over much data, memory, help, packages.

    python benchmarks/turn_scale.py

Memory is summed PSS of the process and all its children, plus the memory files that they hold. Data is made in a temporary folder.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from sonde.testing import ScriptedReply, ScriptedServer, SeenRequest

PROMPTS, IN_FLIGHT, REPLY_S = 1000, 100, 0.2
BARS = {
    f"llm_batch of {PROMPTS}, x ideal": 1.15,
    "sonde --help, s": 0.2,
    "packages of the base install": 25,
    "100,000 files: first turn, s": 3.0,
    "100,000 files: memory, MB": 300,
    "1 GB: first turn, s": 3.0,
    "1 GB: memory, MB": 300,
}
LINE = b"2026-01-01 12:00:00 INFO service-a request 12345 handled in 17 ms by worker 9, cache hit, user 4711 ....\n"
TURNS = [
    "print(len(list_files()))",
    "print(grep('worker 9', max_matches=3))",
    "print(read_file(list_files()[0], 1, 5)[:200])",
    "FINAL('done')",
    "FINAL('done')",
]


def batch() -> float:
    """How much longer than ideal a batch of prompts takes."""
    code = f"answers = llm_batch([f'prompt {{i}}' for i in range({PROMPTS})])\nprint(len(answers))"

    def answer(seen: SeenRequest) -> ScriptedReply:
        if seen.prompt().startswith("prompt "):
            return ScriptedReply(text="yes", delay_s=REPLY_S)
        return ScriptedReply(text=code if len(seen.body["messages"]) == 2 else "FINAL('done')")

    with ScriptedServer(answer) as server, tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a.txt").write_text("a\n")
        words = ["--max-subcalls", str(PROMPTS), "--max-parallel", str(IN_FLIGHT), "--max-cost-usd", "100"]
        run = ask(server, folder, "a.txt", "--max-tokens-total", "100000000", *words)
        run.communicate(timeout=300)
        events = [json.loads(line) for line in _journal(folder).read_text().splitlines()]
    ran = next(event for event in events if event["type"] == "code_ran")
    return ran["duration_s"] / (PROMPTS / IN_FLIGHT * REPLY_S)


def _journal(folder: str) -> Path:
    return next(Path(folder).glob("runs/*/events.jsonl"))


def ask(server: ScriptedServer, folder: str, *words: str) -> subprocess.Popen[bytes]:
    """`sonde ask` as a process."""
    command = [sys.executable, "-m", "sonde", "ask", "What is it?", *words, "--model", "openai:scripted", "--quiet"]
    command += ["--runs-dir", "runs"]
    env = os.environ | {"OPENAI_API_KEY": "sk-none-at-all", "OPENAI_BASE_URL": server.base_url}
    return subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.DEVNULL)


def start(folder: str, *words: str) -> tuple[float, float]:
    """Seconds to the first request, and the most memory in MB seen at any request."""
    seconds: list[float] = []
    memory: list[float] = []
    process: list[subprocess.Popen[bytes]] = []

    def answer(_seen: SeenRequest) -> str:
        seconds.append(time.perf_counter() - began)
        memory.append(megabytes(process[0].pid))
        return TURNS[min(len(seconds), len(TURNS)) - 1]

    with ScriptedServer(answer) as server:
        began = time.perf_counter()
        process.append(ask(server, folder, *words))
        process[0].wait(300)
    return seconds[0], max(memory)


def megabytes(pid: int) -> float:
    """Summed PSS of a process and its descendants, and the memory files that they hold."""
    files: dict[int, int] = {}
    total = 0
    for each in family(pid):
        with suppress(OSError):  # one that ends while we look holds nothing
            rollup = Path(f"/proc/{each}/smaps_rollup").read_text()
            total += next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
            for link in Path(f"/proc/{each}/fd").iterdir():
                if str(link.readlink()).startswith("/memfd:"):
                    found = link.stat()
                    files[found.st_ino] = found.st_blocks * 512
    return total / 1000 + sum(files.values()) / 1e6


def family(pid: int) -> Iterator[int]:
    """A process and all below it."""
    yield pid
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from family(int(child))


def many_files(folder: Path, count: int) -> None:
    """Files of 2 kB in folders of a thousand."""
    for number in range(count):
        if number % 1000 == 0:
            (folder / f"d{number // 1000}").mkdir()
        (folder / f"d{number // 1000}" / f"f{number}.log").write_bytes(LINE * 20)


def one_file(folder: Path, size: int) -> None:
    """One log."""
    with (folder / "big.log").open("wb") as file:
        for _ in range(size // (len(LINE) * 10_000)):
            file.write(LINE * 10_000)


def help_seconds() -> float:
    """The best of five: what it takes, not what the machine was doing."""

    def once() -> float:
        began = time.perf_counter()
        subprocess.run([Path(sys.executable).with_name("sonde"), "--help"], stdout=subprocess.DEVNULL, check=True)
        return time.perf_counter() - began

    return min(once() for _ in range(5))


def packages() -> int:
    """How many packages the base install has, by its pins."""
    pins = Path(__file__).resolve().parent.parent / "requirements" / "base.txt"
    listed = {line.split("==")[0] for line in pins.read_text().splitlines() if "==" in line and "win32" not in line}
    return len(listed) + 1


def figures() -> dict[str, float]:
    """Everything, measured, with the compiled modules that a user has from the second start on."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    found: dict[str, float] = {f"llm_batch of {PROMPTS}, x ideal": statistics.median([batch() for _ in range(3)])}
    found["sonde --help, s"] = help_seconds()
    found["packages of the base install"] = packages()
    for label, make in (("100,000 files", many_files), ("1 GB", one_file)):
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder, "data")
            data.mkdir()
            make(data, 100_000 if make is many_files else 1_000_000_000)
            found[f"{label}: first turn, s"], found[f"{label}: memory, MB"] = start(folder, "data")
    return found


def table(found: dict[str, float]) -> str:
    """The figures beside their bars."""
    lines = ["| | bar | measured | |", "|---|---|---|---|"]
    for label, bar in BARS.items():
        verdict = "" if found[label] <= bar else "missed"
        lines.append(f"| {label} | <= {bar:g} | {found[label]:.3g} | {verdict} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(figures()))
