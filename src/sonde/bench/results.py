"""Results of a benchmark as lines of a file: written one by one, read back to go on and to sum up."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One case by one method. `predicted` is None when there was no usable end; `fits` is False when it was not tried."""

    case: str
    method: str
    repeat: int
    predicted: Any = None
    status: str = ""
    seconds: float = 0.0
    tokens: int = 0
    cost_usd: float = 0.0
    run_dir: str = ""
    fits: bool = True
    model: str = ""

    @property
    def key(self) -> tuple[str, str, int]:
        """What makes it one of a kind."""
        return (self.method, self.case, self.repeat)


def read_results(path: Path) -> list[Result]:
    """The results so far; a line that was cut off by a crash is left out."""
    if not path.is_file():
        return []
    found: list[Result] = []
    for line in path.read_text("utf-8").split("\n"):  # answers may hold what else ends a line
        try:
            found.append(Result(**json.loads(line)))
        except (ValueError, TypeError):
            continue
    return found


def append_result(path: Path, result: Result) -> None:
    """One line, written at once, so that processes may share the file; after a line that was cut off it begins a new one."""
    torn = path.is_file() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
    with path.open("a", encoding="utf-8") as file:
        file.write("\n" * torn + json.dumps(asdict(result)) + "\n")
