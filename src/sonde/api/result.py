"""What every public function returns: a `Result`, or the kind of it that the engine makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sonde.core.canonical import clip, plural
from sonde.core.evidence import Citation, EvidenceRef
from sonde.core.run_record import RunRecord
from sonde.core.status import RunStatus
from sonde.core.usage import Usage
from sonde.errors import RunError

MOST_RAN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of a run.

    `text` is what a person reads, `value` the same as data. Every citation and every reference in `evidence` was read again and hashed.
    `gaps` says what is missing and why. `annotator_kind` is LLM only if a model's judgement is in it, and HUMAN if a person's decides
    it. `cost` is in US dollars: None when a reply came from a model whose price is not known. `error` says what ended a run that did
    not succeed.
    """

    text: str
    value: Any
    status: RunStatus
    citations: tuple[Citation, ...]
    evidence: tuple[EvidenceRef, ...]
    gaps: tuple[str, ...]
    annotator_kind: Literal["LLM", "CODE", "HUMAN"]
    cost: float | None
    record: RunRecord
    run_dir: Path | None
    """None for a run in memory."""
    error: RunError | None

    @property
    def usage(self) -> Usage:
        """Turns, tool calls, sub-calls, tokens: as the record has them."""
        return self.record.runtime_ref.usage

    def __str__(self) -> str:
        return self.text


class Answer(Result):
    """What came of a question. `value` is the final value itself (an instance of the schema's model when one was given)."""

    __slots__ = ()


class Investigation(Result):
    """What came of an investigation of traces. `text` is the report as Markdown, `value` the same as data."""

    __slots__ = ()

    @property
    def report(self) -> dict[str, Any] | None:
        """The report as data."""
        return self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Edited(Result):
    """What came of a task in a workspace: `text` is the summary; citations are of the lines as they are now."""

    changed: tuple[str, ...]
    """The files that were changed by approved patches; `sonde.undo` takes these back."""
    changed_by_commands: tuple[str, ...] = ()
    """The listed files that changed while allowed commands ran."""
    ran: Mapping[str, int | None]
    """The commands that were run, with the exit code of each one's last run; None if it was stopped."""

    @property
    def summary(self) -> str:
        """The text."""
        return self.text


def ran_lines(ran: Mapping[str, int | None]) -> list[str]:
    """How commands ended, each on a line; of many the latest."""
    lines = [f"{clip(line, 200)} ({'stopped' if code is None else f'exit {code}'})" for line, code in ran.items()]
    left_out = len(lines) - MOST_RAN
    return lines if left_out <= 0 else [plural(left_out, "earlier command"), *lines[left_out:]]
