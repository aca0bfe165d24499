"""Every benchmark with one command, and docs/benchmarks.md written from what was measured.

    python benchmarks/all.py [--only sandbox,turn] [--page docs/benchmarks.md] [--small]

Each benchmark is a program of its own; its table is kept with the machine, the load and the date in .bench/results/, so that one can be
measured again alone and the others stay. The page gets what is kept, between its two marks. `--small` uses sizes that take minutes, not
an hour, and says so. Exit code 1 when a benchmark failed. `quick.py` is the one that judges; this one only reports.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
KEPT = ROOT / ".bench" / "results"
BEGIN, END = "<!-- figures:begin", "<!-- figures:end -->"
PATIENCE_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One benchmark: its title, its words, the words of its small variant, and where its peers live."""

    title: str
    words: tuple[str, ...]
    small: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()


PROGRAMS = {
    "sandbox": Program(
        title="The sandbox beside other sandboxes",
        words=("sandbox.py",),
        small=("--turns", "20"),
        peers=("sandbox",),
    ),
    "turn": Program(
        title="A turn of the loop beside its peers",
        words=("turn.py", "--scale"),
        small=("--turns", "20", "--rounds", "1"),
        peers=("turn-rlms", "turn-dspy", "turn-smolagents", "turn-pyrlm-runtime"),
    ),
    "tokens": Program(
        title="Tokens beside its peers",
        words=("tokens.py",),
        small=("--tasks", "log,batch"),
        peers=("turn-rlms", "turn-dspy", "turn-smolagents"),
    ),
    "files": Program(
        title="Files: listing, searching, reading", words=("files.py",), small=("--files", "5000", "--megabytes", "100")
    ),
    "traces": Program(title="Traces: index and reads", words=("traces.py",), small=("--spans", "50000")),
    "batch": Program(title="Batches", words=("batch.py", "--full"), small=("--counts", "50,100")),
    "waiting": Program(
        title="Editors, the page, lists and the journal",
        words=("waiting.py",),
        small=("--events", "2000", "--runs", "100"),
    ),
    "quick": Program(title="Ratios that are guarded", words=("quick.py",)),
}
PEER_PACKAGES = ("pydantic-monty", "smolagents", "RestrictedPython", "rlms", "dspy", "pyrlm-runtime")
OURS = ("sonde-rlm", "pydantic", "msgspec", "httpx2", "google-re2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one program printed, where and when."""

    command: str
    text: str
    failed: str
    at: str
    seconds: float
    load: float
    commit: str
    versions: dict[str, str]


def measure(name: str, *, small: bool) -> Measured:
    """Run one program to its end."""
    program = PROGRAMS[name]
    words = [program.words[0], *program.words[1:], *(program.small if small else ())]
    load, started = os.getloadavg()[0], time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, HERE / words[0], *words[1:]],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        text, failed = done.stdout.strip(), "" if done.returncode == 0 else (done.stderr or done.stdout)[-600:]
    except subprocess.TimeoutExpired:
        text, failed = "", f"not done after {PATIENCE_S:.0f} s"
    return Measured(
        command=f"python benchmarks/{' '.join(words)}",
        text=text,
        failed=failed,
        at=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        seconds=round(time.monotonic() - started, 1),
        load=round(load, 1),
        commit=_commit(),
        versions=_own_versions() | _peer_versions(program),
    )


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def _own_versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in OURS}


def _peer_versions(program: Program) -> dict[str, str]:
    """The versions of peers as they are installed in their environments."""
    found: dict[str, str] = {}
    for place in program.peers:
        paths = [str(path) for path in (ROOT / ".bench" / place).glob("lib/python*/site-packages")]
        for package in importlib.metadata.distributions(path=paths):
            if package.name.lower() in {name.lower() for name in PEER_PACKAGES}:
                found[package.name] = package.version
    return found


def machine() -> str:
    """The machine in a line."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    model = next(
        (line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name")), "unknown CPU"
    )
    return (
        f"{model}, {os.cpu_count()} cores, {memory:.0f} GB; Linux {platform.release()}, "
        f"{platform.machine()}; Python {platform.python_version()}"
    )


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.is_file() else []


def figures(kept: dict[str, Measured]) -> str:
    """The part of the page between its marks."""
    head = f"Machine: {machine()}. Only what was measured stands here; load is the average before each program."
    return "\n\n".join([head, *(section(PROGRAMS[name], kept[name]) for name in PROGRAMS if name in kept)])


def section(program: Program, found: Measured) -> str:
    """One program's part."""
    versions = ", ".join(f"{name} {version}" for name, version in found.versions.items())
    about = (
        f"`{found.command}`, {found.at}, commit {found.commit}, {found.seconds:.0f} s, load {found.load}. {versions}."
    )
    if found.failed:
        return f"### {program.title}\n\n{about}\n\nFailed:\n\n```text\n{found.failed}\n```"
    return f"### {program.title}\n\n{about}\n\n{_shown(found.text)}"


def _shown(text: str) -> str:
    """Tables as they are, everything else as plain text."""
    parts: list[str] = []
    plain: list[str] = []
    for line in [*text.splitlines(), "|"]:
        if line.startswith("|"):
            if any(each.strip() for each in plain):
                parts.append("```text\n" + "\n".join(plain).strip("\n") + "\n```\n")
            plain = []
            parts.append(line)
        else:
            if parts and parts[-1].startswith("|"):
                parts.append("")
            plain.append(line)
    return "\n".join(parts[:-1]).strip()


def write_page(page: Path, text: str) -> None:
    """Put the figures between the marks of the page; a page without marks is made anew."""
    body = page.read_text("utf-8") if page.is_file() else f"# Benchmarks\n\n{BEGIN} -->\n{END}\n"
    if BEGIN not in body or END not in body:
        sys.exit(f"{page} lacks the marks {BEGIN} ... --> and {END}: put them where the figures belong")
    before, _, rest = body.partition(BEGIN)
    mark, _, rest = rest.partition("-->")
    page.write_text(f"{before}{BEGIN}{mark}-->\n\n{text}\n\n{END}{rest.partition(END)[2]}", "utf-8")


def read_kept() -> dict[str, Measured]:
    """What earlier runs have measured."""
    paths = {name: KEPT / f"{name}.json" for name in PROGRAMS}
    return {name: Measured(**json.loads(path.read_text())) for name, path in paths.items() if path.is_file()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PROGRAMS))
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "benchmarks.md")
    parser.add_argument("--small", action="store_true")
    chosen = parser.parse_args()
    names = chosen.only.split(",")
    unknown = [name for name in names if name not in PROGRAMS]
    if unknown:
        parser.error(f"no benchmark {unknown[0]!r}; choose from {', '.join(PROGRAMS)}")
    KEPT.mkdir(parents=True, exist_ok=True)
    for name in names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        found = measure(name, small=chosen.small)
        (KEPT / f"{name}.json").write_text(json.dumps(asdict(found), indent=1))
        print(f"{name}: {'failed' if found.failed else 'done'} in {found.seconds:.0f} s", file=sys.stderr, flush=True)
        write_page(chosen.page, figures(read_kept()))
    return 1 if any(read_kept()[name].failed for name in names) else 0


if __name__ == "__main__":
    sys.exit(main())
