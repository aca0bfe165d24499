"""Listing, searching and reading 100,000 files and 1 GB: Sonde's file tools beside grep and ripgrep where they are installed.

    .venv/bin/python benchmarks/files.py [--files 100000] [--megabytes 1000] [--keep FOLDER]

The data is generated below a temporary folder. Seconds of wall time, best of three; the page cache is warm for everyone.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from sonde.contexts.files import FilesContext

LINE = "2024-05-{day:02d}T12:00:{second:02d}Z INFO service=checkout request={number} took {took}ms user=u{user} status=200\n"
NEEDLE = "2024-05-31T12:00:00Z FATAL service=ledger quota of tenant zebra-77 exhausted\n"


def lines(first: int, count: int) -> str:
    return "".join(
        LINE.format(day=n % 28 + 1, second=n % 60, number=n, took=n % 997, user=n % 4_099)
        for n in range(first, first + count)
    )


def make_many(folder: Path, files: int) -> None:
    for number in range(files):
        below = folder / f"d{number % 100:02d}" / f"e{number // 100 % 10}"
        if number < 1_000:
            below.mkdir(parents=True, exist_ok=True)
        (below / f"f{number}.log").write_text(lines(number, 8) + (NEEDLE if number == files // 2 else ""))


def make_large(folder: Path, megabytes: int) -> None:
    folder.mkdir(parents=True)
    block = lines(0, 10_000)
    with (folder / "app.log").open("w") as file:
        for number in range(megabytes * 1_000_000 // len(block)):
            file.write(block)
            if number * len(block) < megabytes * 900_000 <= (number + 1) * len(block):
                file.write(NEEDLE)


def best(action: Callable[[], object], times: int = 3) -> float:
    taken: list[float] = []
    for _ in range(times):
        started = time.perf_counter()
        action()
        taken.append(time.perf_counter() - started)
    return min(taken)


def peer(*command: str) -> float | None:
    """Seconds of a command; its output goes to a pipe, because GNU grep stops at the first match when it writes to /dev/null."""
    if shutil.which(command[0]) is None:
        return None
    return best(lambda: subprocess.run(command, stdout=subprocess.PIPE, check=False))


def measure(title: str, folder: Path) -> None:
    print(f"\n{title}")
    context = FilesContext(folder)
    row("list, describe and share (fresh)", best(lambda: (fresh := FilesContext(folder)).describe() and fresh.shared()))
    row("list_files()", best(context.list_files))
    for pattern, flags in (
        ("zebra-77", ""),
        (r"quota .* exhausted$", ""),
        ("FATAL|PANIC", "i"),
        (r"took 99[0-9]ms user=u4\d\d\d ", ""),
    ):
        grep = ["-E", *(["-i"] if flags else []), pattern, str(folder)]
        ours = best(lambda p=pattern, f=flags: context.grep(p, flags=f))
        row(f"grep {pattern} {flags}", ours, peer("rg", *grep[1:]), peer("grep", "-r", *grep))
    row("search 'zebra tenant quota' (first)", best(lambda: FilesContext(folder).search("zebra tenant quota"), 1))
    row("search again", best(lambda: context.search("zebra tenant quota")))
    row("read 40 lines at the end", best(lambda: read_end(context)))


def read_end(context: FilesContext) -> None:
    last = context.list_files().value[-1]
    total = context.file_info(last).value["lines"]
    context.read_file(last, max(1, total - 40), total)


def row(name: str, ours: float, ripgrep: float | None = None, grep: float | None = None) -> None:
    shown = [f"{value:8.3f}" if value is not None else "       -" for value in (ours, ripgrep, grep)]
    print(f"  {name:48s} sonde {shown[0]}   rg {shown[1]}   grep {shown[2]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--megabytes", type=int, default=1_000)
    parser.add_argument("--keep", type=Path, help="make the data here and leave it for the next time")
    options = parser.parse_args()
    root = options.keep or Path(tempfile.mkdtemp(prefix="sonde-bench-"))
    try:
        if not root.joinpath("many").exists():
            make_many(root / "many", options.files)
        if not root.joinpath("large").exists():
            make_large(root / "large", options.megabytes)
        measure(f"{options.files:,} files", root / "many")
        measure(f"one file of {options.megabytes:,} MB", root / "large")
        print(f"\npeak memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")
    finally:
        if options.keep is None:
            shutil.rmtree(root)


if __name__ == "__main__":
    main()
