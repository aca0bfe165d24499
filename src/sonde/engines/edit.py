"""The `edit` engine: a task in a workspace, done by small reads, a plan from a sub-call, one patch, and a second look.

It finishes only with citations of lines it really read, and only after it read every changed file again. Three budgets:
the one of `sonde edit` and ACP, a larger one behind a flag, and the small one of the protocol's document (R68), for a host
that sends no limits. Without a model it changes nothing and says so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from sonde.core.budget import Budget
from sonde.engines.ask import conclude as conclude_answer, conclude_child
from sonde.runtime.engine import Conclusion, Engine, Gathered, Problem
from sonde.runtime.prompts import prompt_file

EDIT_BUDGET = Budget(
    max_iterations=60,
    max_depth=2,
    max_tool_calls=220,
    max_subcalls=30,
    max_tokens_per_subcall=8000,
    max_tokens_total=200_000,
    max_cost_usd=None,
    max_wall_time_sec=600,
)
LARGE_BUDGET = replace(
    EDIT_BUDGET,
    max_iterations=120,
    max_tool_calls=1000,
    max_subcalls=90,
    max_tokens_per_subcall=16_000,
    max_tokens_total=1_000_000,
    max_wall_time_sec=1800,
)
PROTOCOL_BUDGET = replace(
    EDIT_BUDGET, max_subcalls=6, max_tokens_per_subcall=1000, max_tokens_total=6000, max_wall_time_sec=60
)
EDIT_MAXIMA = Budget(
    max_iterations=240,
    max_depth=3,
    max_tool_calls=4000,
    max_subcalls=240,
    max_tokens_total=4_000_000,
    max_cost_usd=None,
    max_wall_time_sec=7200,
)
"""The settings of a repository may change a budget; these bound what a stranger's can make you spend."""


@runtime_checkable
class Verified(Protocol):
    """A context that knows which files were changed and not read again since."""

    def unverified(self) -> list[str]:
        """Paths that still need a second look."""
        ...


def conclude(value: Any, gathered: Gathered) -> Conclusion:
    """The summary with its citations; a changed file that nobody has read again is a problem."""
    conclusion = conclude_answer(value, gathered, look=False)
    context = gathered.context
    stale = context.unverified() if isinstance(context, Verified) else []
    problems = tuple(
        Problem(gate="evidence", reason=reason, told=f"{reason}; read the changed lines to verify them")
        for reason in (f"{path} was changed and not read again" for path in stale)
    )
    return replace(conclusion, problems=(*conclusion.problems, *problems))


def fallback(gathered: Gathered) -> Conclusion:
    """Nothing can be edited without a model; the text names what was changed before a limit."""
    context = gathered.context
    changed = list(getattr(context, "changed", ()))
    text = f"Nothing was edited: {gathered.reason}."
    if changed:
        text = f"Stopped: {gathered.reason}. Changed so far: {', '.join(changed)}."
    output = {
        "answer": text,
        "value": None,
        "citations": [citation.model_dump(mode="json") for citation in gathered.citations],
        "highlights": list(gathered.highlights),
    }
    return Conclusion(output=output, text=text, citations=gathered.citations)


EDIT = Engine(
    name="edit",
    run_type="edit",
    output_type="Edit",
    system=prompt_file("engines/edit"),
    child=prompt_file("engines/child"),
    budget=EDIT_BUDGET,
    maxima=EDIT_MAXIMA,
    conclude=conclude,
    conclude_child=conclude_child,
    fallback=fallback,
    fails_without_reply=True,
    functions=("llm_query", "summarize"),
    terse=True,
    max_output_tokens=1500,
    profile="general",
    final_example='FINAL("What was done. [a.ts:1-9]")',
)
