"""The `edit` engine: a task in a workspace, done by small reads, a plan from a sub-call, one patch, and a second look.

It finishes only with citations of lines it really read, and only after it read every changed file again. If nothing that it proposed
was applied, or the last run of a command failed, it ends partial with the reason; a limit leaves it the lines that were read and still
hold as citations. Three budgets: the one of `sonde edit` and ACP, a larger one behind a flag, and the small one of the protocol's
document (R68), for a host that sends no limits. Without a model it changes nothing and says so.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

from sonde.contexts.workspace import WorkspaceContext
from sonde.core.budget import Budget
from sonde.core.evidence import Citation, EvidenceKind, Refuted, merge
from sonde.engines.ask import answered, conclude as conclude_answer, conclude_child
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


MAX_CITED = 20
NOT_APPLIED = "no proposed change was applied"


def conclude(value: Any, gathered: Gathered) -> Conclusion:
    """The summary with its citations. A changed file that nobody has read again is a problem, and so are proposals of which none was
    applied, and a command whose last run failed. What sub-calls cited counts as long as it still holds: changing lines is the task.
    """
    held = [cited for cited in gathered.citations if not isinstance(_again(cited, gathered), Refuted)]
    conclusion = conclude_answer(value, replace(gathered, citations=tuple(held)), look=False)
    context = gathered.context
    if not isinstance(context, WorkspaceContext):
        return conclusion
    problems = [
        Problem(gate="evidence", reason=reason, told=f"{reason}; read the changed lines to verify them")
        for reason in (f"{path} was changed and not read again" for path in context.unverified())
    ]
    if context.rejected and not context.changed:
        reason = f"{NOT_APPLIED}: {context.rejected[-1]}"
        told = f"{reason}. Send a patch that applies, or finish again as it is"
        problems.append(Problem(gate="evidence", reason=reason, told=told, mendable=not context.by_user))
    for reason in context.failed_runs():
        told = f"{reason}. Mend what fails and run it again, or say that it failed and finish again as it is"
        problems.append(Problem(gate="evidence", reason=reason, told=told))
    return replace(conclusion, problems=(*conclusion.problems, *problems))


def _again(cited: Citation, gathered: Gathered) -> Citation | Refuted:
    if not cited.path:
        return gathered.prover.call(cited.ref, signal=cited.signal)
    return gathered.prover.lines(cited.path, cited.start_line, cited.end_line, signal=cited.signal)


def fallback(gathered: Gathered) -> Conclusion:
    """Nothing can be edited without a model; the text names what was changed before a limit, and what was read is cited as it is now."""
    context = gathered.context
    changed = list(getattr(context, "changed", ()))
    seen = [each for each in gathered.prover.log.excerpts() if each.kind is EvidenceKind.FILE]
    seen.sort(key=lambda each: each.start_line - each.end_line)  # whole reads before lines that a search found
    looks = [Citation(path=e.path, start_line=e.start_line, end_line=e.end_line, excerpt_hash=e.hash) for e in seen]
    found = (_again(each, gathered) for each in (*gathered.citations, *looks))
    citations = tuple(merge(list(islice((each for each in found if isinstance(each, Citation)), MAX_CITED))))
    text = f"Nothing was edited: {gathered.reason}."
    if changed:
        text = f"Stopped: {gathered.reason}. Changed so far: {', '.join(changed)}."
    failed = context.failed_runs() if isinstance(context, WorkspaceContext) else ()
    spoken = answered(text, citations, gathered)
    return replace(spoken, gaps=(*spoken.gaps, *failed))


EDIT = Engine(
    name="edit",
    run_type="edit",
    output_type="Edit",
    system=prompt_file("engines/edit"),
    child=prompt_file("engines/edit_child"),
    budget=EDIT_BUDGET,
    maxima=EDIT_MAXIMA,
    conclude=conclude,
    conclude_child=conclude_child,
    fallback=fallback,
    fails_without_reply=True,
    rests_on_children=False,  # what was changed is read again by the root itself
    functions=("llm_query", "summarize", "delegate_subcall"),
    terse=True,
    max_output_tokens=1500,
    profile="general",
    final_example='FINAL("What was done. [a.ts:1-9]")',
)
