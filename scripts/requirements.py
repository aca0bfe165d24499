"""Which requirement numbers have passing tests, and which have none; and the page docs/requirements.md, which lists them.

    python scripts/requirements.py [--read FILE] [--strict] [PYTEST ARGUMENTS...]
    python scripts/requirements.py --write

Runs the suite (the same selection as `make test`) with the marks written down by tests/conftest.py, or reads the file of an earlier run.
Exit code 1 when a marked test failed, with --strict when a number has no passing test, or when the page is out of date: its last column
must name the marked tests. --write brings that column up to date and runs nothing.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROWS = [str(number) for number in range(1, 138)] + [f"O{number}" for number in range(1, 18)]
ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "requirements.md"
NAMED = 2
"""Tests that the page names for each number; the others are counted."""
_LINE = re.compile(r"\| (R\d+|O\d+) \| (.+?) \|(.*)\|")
SELECTION = ["-q", "-n", "2", "-m", "requirement and not slow and not phoenix and not browser"]


@dataclass
class Row:
    """The tests of one number, by outcome."""

    passed: list[str] = field(default_factory=list[str])
    failed: list[str] = field(default_factory=list[str])
    skipped: list[str] = field(default_factory=list[str])

    @property
    def word(self) -> str:
        """The outcome in one word: a single failure counts more than any number of passes."""
        return "FAILED" if self.failed else "passed" if self.passed else "skipped" if self.skipped else "no test"


def run_suite(target: Path, arguments: list[str]) -> int:
    command = [sys.executable, "-m", "pytest", f"--requirements={target}", *(arguments or SELECTION)]
    return subprocess.run(command, check=False).returncode


def read(path: Path) -> dict[str, Row]:
    rows: dict[str, Row] = defaultdict(Row)
    for line in path.read_text().splitlines():
        seen = json.loads(line)
        for number in seen["requirements"]:
            getattr(rows[number], seen["outcome"]).append(seen["test"])
    return rows


def name(number: str) -> str:
    return number if number.startswith("O") else f"R{number}"


def report(rows: Mapping[str, Row]) -> Iterable[str]:
    for number in ROWS:
        row = rows.get(number, Row())
        tests = row.failed or row.passed or row.skipped
        yield f"{name(number):5} {row.word:8} {len(tests):3}  {tests[0] if tests else ''}".rstrip()
    for word in ("passed", "FAILED", "skipped", "no test"):
        numbers = [name(number) for number in ROWS if rows.get(number, Row()).word == word]
        yield f"{word}: {len(numbers)}" + ("" if word == "passed" or not numbers else f" ({' '.join(numbers)})")


@cache
def marked_tests() -> dict[str, list[str]]:
    """The tests that carry each number, read from their source without running it."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text("utf-8")
        if "pytest.mark.requirement" not in text:  # parsing is what takes long
            continue
        for node in ast.walk(ast.parse(text)):
            for mark in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.requirement":
                    for number in mark.args:
                        found[str(ast.literal_eval(number))].append(f"{path.relative_to(ROOT)}::{node.name}")
    return found


def page(text: str) -> str:
    """The page with its last column as it should be; ValueError when a number is missing or stands there twice."""
    tests = marked_tests()
    listed: list[str] = []

    def row(line: re.Match[str]) -> str:
        number = line[1].removeprefix("R")
        listed.append(number)
        names = [f"`{test}`" for test in sorted(tests[number])]
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        return f"| {line[1]} | {line[2]} | {', '.join(names[:NAMED]) or 'none'}{more} |"

    fresh = "\n".join(_LINE.sub(row, line) for line in text.split("\n"))
    if listed != ROWS:
        wrong = set(ROWS) ^ set(listed) or {number for number in listed if listed.count(number) > 1}
        raise ValueError(f"{PAGE} must list every number once and in order; look at {sorted(wrong)}")
    return fresh


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--read", type=Path, metavar="FILE", help="read what `pytest --requirements FILE` wrote")
    parser.add_argument("--strict", action="store_true", help="a number without a passing test is a failure")
    parser.add_argument("--write", action="store_true", help="bring the page up to date, and do nothing else")
    chosen, arguments = parser.parse_known_args()
    text = PAGE.read_text("utf-8")
    if chosen.write:
        PAGE.write_text(page(text), "utf-8")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        source: Path = chosen.read or Path(folder) / "requirements.jsonl"
        code = 0 if chosen.read else run_suite(source, arguments)
        if not source.is_file():
            print(f"{source} is not there: pytest ended with {code} before it ran a test", file=sys.stderr)
            return code or 2
        rows = read(source)
    print("\n".join(report(rows)))
    stale = page(text) != text
    if stale:
        print(
            f"{PAGE.relative_to(ROOT)} is out of date: run scripts/requirements.py --write and commit it",
            file=sys.stderr,
        )
    bad = {"FAILED", "no test", "skipped"} if chosen.strict else {"FAILED"}
    return 1 if stale or any(rows.get(number, Row()).word in bad for number in ROWS) else 0


if __name__ == "__main__":
    sys.exit(main())
