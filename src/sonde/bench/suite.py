"""What a benchmark is to the harness: cases, what an engine may read of them, how a prediction is scored, and the file of results.

An engine gets `BenchCase.source` and `BenchCase.trace_id` only. Gold labels lie elsewhere; `score` opens them once the prediction exists.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from sonde.disk import open_to_write

METHODS = ("sonde", "no-subcalls", "retrieval", "plain", "rule")
MOST_PLAIN_CHARS = 400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchCase:
    """One case. `key` names it in results; `source` is the file or folder that an engine reads.

    A trace is named by `trace_id`; a question has its text, the kind of answer it wants and the size of its context.
    """

    key: str
    source: Path
    trace_id: str = ""
    question: str = ""
    kind: str = ""
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One case by one method. `predicted` is None when there was no usable end; `fits` is False when it was not tried."""

    case: str
    method: str
    repeat: int
    predicted: Any = None
    status: str = ""
    seconds: float = 0.0
    tokens: int = 0
    cost_usd: float = 0.0
    cached: int = 0
    """How many of the tokens a provider had in its cache."""
    run_dir: str = ""
    fits: bool = True
    model: str = ""

    @property
    def key(self) -> tuple[str, str, int]:
        """What identifies it in a file of results."""
        return (self.method, self.case, self.repeat)


def read_results(path: Path) -> list[Trial]:
    """The results so far; a line that a crash cut off is left out."""
    if not path.is_file():
        return []
    found: list[Trial] = []
    for line in path.read_text("utf-8").split("\n"):  # splitlines would also split at separators inside answers
        try:
            found.append(Trial(**json.loads(line)))
        except (ValueError, TypeError):
            continue
    return found


def append_result(path: Path, result: Trial) -> None:
    """Append one line in a single write, so that processes may share the file; a torn last line is ended first."""
    torn = path.is_file() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
    with os.fdopen(open_to_write(path, append=True, mode=0o644), "a", encoding="utf-8") as file:
        file.write("\n" * torn + json.dumps(asdict(result)) + "\n")


class Suite(Protocol):
    """One benchmark over a folder of data."""

    name: str
    taxonomy: str | None

    def cases(self) -> list[BenchCase]:
        """All cases, in a stable order."""
        ...

    def predicted(self, report: Mapping[str, Any]) -> Any:
        """The prediction in an engine's report, as JSON."""
        ...

    def by_rule(self, case: BenchCase, report: Mapping[str, Any]) -> Any:
        """The prediction of the deterministic baseline, from a report made without a model."""
        ...

    def plain_prompt(self, case: BenchCase) -> str | None:
        """Everything in one prompt; None when it does not fit."""
        ...

    def read_plain(self, text: str) -> Any:
        """The prediction in the answer to that prompt."""
        ...

    def score(self, case: BenchCase, predicted: Any) -> dict[str, float]:
        """The metrics of one case."""
        ...

    def overall(self, predictions: Sequence[tuple[BenchCase, Any]]) -> dict[str, float]:
        """Metrics that only all cases together have."""
        ...

    def tables(self, predictions: Sequence[tuple[BenchCase, Any]]) -> str:
        """More, as Markdown: a table for each category or label."""
        ...


def fits(prompt: str) -> str | None:
    """The prompt, if a large model can be expected to read it."""
    return prompt if len(prompt) <= MOST_PLAIN_CHARS else None


def json_in(text: str, opening: str) -> Any:
    """The longest JSON value in an answer that begins with this bracket, or None. The words around it may hold brackets too."""
    decoder, best, longest, at = json.JSONDecoder(), None, len("[]"), text.find(opening)
    while at >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
        except ValueError:
            end = at + 1
        except RecursionError:
            return None
        else:
            best, longest = (value, end - at) if end - at > longest else (best, longest)
        at = text.find(opening, end)
    return best
