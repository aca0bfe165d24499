"""How a session ends: with a value that passed its gates, with one that did not, or with the best that can be said.

Schema, then evidence, then citations. A value with problems after its one repair keeps what can be kept and ends
partial. Without a value the engine's fallback speaks, and says that it is CODE: a model's judgement is claimed only
where there was one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from sonde.core.status import RunStatus
from sonde.errors import (
    EvidenceValidationFailed,
    ModelOutputInvalid,
    RunError,
    SchemaValidationFailed,
)
from sonde.runtime.engine import Conclusion, Problem

if TYPE_CHECKING:
    from sonde.runtime.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a session ended. `annotator` is LLM only if a model's judgement is in the output."""

    status: RunStatus
    conclusion: Conclusion
    annotator: Literal["LLM", "CODE"]
    error: RunError | None = None

    @property
    def gaps(self) -> tuple[str, ...]:
        """What is missing, in words."""
        return self.conclusion.gaps


def settled(session: Session, conclusion: Conclusion) -> Outcome:
    """The outcome of a final value: succeeded without problems, else partial with the reasons as gaps."""
    judge: Literal["LLM", "CODE"] = "CODE" if conclusion.by_model is False else "LLM"
    if not conclusion.problems:
        return Outcome(status=RunStatus.SUCCEEDED, conclusion=_with_gaps(session, conclusion), annotator=judge)
    error = error_of(conclusion.problems)
    if conclusion.output is None:
        spoken = session.engine.fallback(session.gathered(error.message))
        gaps = (*conclusion.gaps, *(problem.reason for problem in conclusion.problems), *spoken.gaps)
        return Outcome(
            status=RunStatus.PARTIAL if spoken.output is not None else RunStatus.FAILED,
            conclusion=_with_gaps(session, replace(spoken, gaps=gaps, problems=conclusion.problems)),
            annotator="LLM" if spoken.by_model else "CODE",
            error=error,
        )
    gaps = (*conclusion.gaps, *(problem.reason for problem in conclusion.problems))
    return Outcome(
        status=RunStatus.PARTIAL,
        conclusion=_with_gaps(session, replace(conclusion, gaps=gaps)),
        annotator=judge,
        error=error,
    )


def best_effort(session: Session, error: RunError) -> Outcome:
    """What can be said after a limit or a failure: the draft if it holds, else the fallback."""
    draft = session.memory.draft
    if draft is None and isinstance(error, ModelOutputInvalid) and session.memory.prose:
        draft = session.memory.last_words or None
    if draft is not None:
        conclusion = session.conclude(draft)
        if conclusion.output is not None:
            gaps = (*conclusion.gaps, error.message, *(problem.reason for problem in conclusion.problems))
            kept = replace(conclusion, gaps=gaps)
            judge = "CODE" if conclusion.by_model is False else "LLM"
            return Outcome(status=RunStatus.PARTIAL, conclusion=_with_gaps(session, kept), annotator=judge, error=error)
    if session.errand is not None:
        return Outcome(
            status=RunStatus.FAILED,
            conclusion=_with_gaps(session, Conclusion(output=None, gaps=(error.message,))),
            annotator="CODE",
            error=error,
        )
    spoken = session.engine.fallback(session.gathered(error.message))
    spoken = replace(spoken, gaps=(error.message, *spoken.gaps))
    return Outcome(
        status=RunStatus.PARTIAL if spoken.output is not None else RunStatus.FAILED,
        conclusion=_with_gaps(session, spoken),
        annotator="LLM" if spoken.by_model else "CODE",
        error=error,
    )


def _with_gaps(session: Session, conclusion: Conclusion) -> Conclusion:
    below = [gap for result in session.host.subcalls for gap in result.get("gaps", ())]
    gaps = tuple(dict.fromkeys((*conclusion.gaps, *session.prefilter.gaps, *below)))
    return replace(conclusion, gaps=gaps)


def error_of(problems: tuple[Problem, ...]) -> RunError:
    """The error of the gate that comes first: schema, then evidence."""
    reasons = "; ".join(problem.reason for problem in problems)
    if any(problem.gate == "schema" for problem in problems):
        return SchemaValidationFailed(reasons)
    return EvidenceValidationFailed(reasons)
