"""Which requirement numbers have passing tests, and which have none.

    python scripts/requirements.py [--read FILE] [--strict] [PYTEST ARGUMENTS...]

Runs the suite (the same selection as `make test`) with the marks written down by tests/conftest.py, or reads the file of an earlier run.
Exit code 1 when a marked test failed, or with --strict when a number has no passing test.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROWS = [str(number) for number in range(1, 138)] + [f"O{number}" for number in range(1, 18)]
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


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--read", type=Path, metavar="FILE", help="read what `pytest --requirements FILE` wrote")
    parser.add_argument("--strict", action="store_true", help="a number without a passing test is a failure")
    chosen, arguments = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        source: Path = chosen.read or Path(folder) / "requirements.jsonl"
        code = 0 if chosen.read else run_suite(source, arguments)
        if not source.is_file():
            print(f"{source} is not there: pytest ended with {code} before it ran a test", file=sys.stderr)
            return code or 2
        rows = read(source)
    print("\n".join(report(rows)))
    bad = {"FAILED", "no test", "skipped"} if chosen.strict else {"FAILED"}
    return 1 if any(rows.get(number, Row()).word in bad for number in ROWS) else 0


if __name__ == "__main__":
    sys.exit(main())
