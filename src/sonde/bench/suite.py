"""What a benchmark is to the harness: cases, what an engine may read of them, and how a prediction is scored.

An engine gets `Case.source` and `Case.trace_id` only. Gold labels lie elsewhere and are opened by `score`, after the prediction exists.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

METHODS = ("sonde", "no-subcalls", "retrieval", "plain", "rule")
MOST_PLAIN_CHARS = 400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One thing to judge. `key` names it in results; `source` is the file or folder that an engine reads.

    A trace is named by `trace_id`; a question has its text, the kind of answer it wants and the size of its context.
    """

    key: str
    source: Path
    trace_id: str = ""
    question: str = ""
    kind: str = ""
    size: int = 0


class Suite(Protocol):
    """One benchmark over a folder of data."""

    name: str
    taxonomy: str | None

    def cases(self) -> list[Case]:
        """All cases, in a stable order."""
        ...

    def predicted(self, report: Mapping[str, Any]) -> Any:
        """The prediction in an engine's report, as JSON."""
        ...

    def by_rule(self, case: Case, report: Mapping[str, Any]) -> Any:
        """The prediction of the deterministic baseline, from a report made without a model."""
        ...

    def plain_prompt(self, case: Case) -> str | None:
        """Everything in one prompt; None when it does not fit."""
        ...

    def read_plain(self, text: str) -> Any:
        """The prediction in the answer to that prompt."""
        ...

    def score(self, case: Case, predicted: Any) -> dict[str, float]:
        """The metrics of one case."""
        ...

    def overall(self, predictions: Sequence[tuple[Case, Any]]) -> dict[str, float]:
        """Metrics that only all cases together have."""
        ...

    def tables(self, predictions: Sequence[tuple[Case, Any]]) -> str:
        """More, as Markdown: a table for each category or label."""
        ...


def fits(prompt: str) -> str | None:
    """The prompt, if a large model can be expected to read it."""
    return prompt if len(prompt) <= MOST_PLAIN_CHARS else None


def json_in(text: str, opening: str) -> Any:
    """The longest JSON value in an answer that begins with this bracket; None when all are empty. Words around it may hold brackets."""
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
