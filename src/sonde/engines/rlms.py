"""The `rlms` engine: what a role of an agent loop should know about a list of files, as highlights and proved citations.

It judges a final value as `ask` does, so both give the same value and citations for the same replies. In addition, highlights inside
the value join those that the code has kept, and citations may be optional. A turn is one run of the loop's program, a sub-call is
another one, and nothing runs a program that the loop's limits do not count. Without a final value it gives no output: an agent loop must
not take our guess for a finding.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sonde.core.budget import Budget
from sonde.core.canonical import canonical_json, cut, jsonable
from sonde.engines.ask import OVERCITED, conclude as conclude_answer
from sonde.engines.submission import fields_of, items_of
from sonde.runtime.engine import Conclusion, Engine, Gathered, Prefilter
from sonde.runtime.functions import HIGHLIGHT_CHARS, MAX_HIGHLIGHTS
from sonde.runtime.prompts import prompt_file

HELPERS = ("list_files", "read_file", "grep", "slice_text")
FUNCTIONS = ("append_highlight", "add_citation", "sub_rlm")
MAX_CITATIONS = 120
SUBCALL_CHARS = 120_000
NO_TOKEN_LIMIT = 10**12  # the loop's limits are steps, sub-calls and time; command models only estimate tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLine:
    """Words the budget as the loop counts it: step i of n, time, sub-calls, depth."""

    max_steps: int
    max_subcalls: int
    max_depth: int

    def __call__(self, left: Mapping[str, Any], *, elapsed_s: float, wall_s: float) -> str:
        step = min(self.max_steps, self.max_steps - left["iterations"] + 1)
        used = self.max_subcalls - left["subcalls"]
        return (
            f"Step {step}/{self.max_steps}. Elapsed: {elapsed_s:.0f} of {wall_s:.0f} s. "
            f"Sub-calls used: {used}/{self.max_subcalls}. Max depth: {self.max_depth}."
        )


def conclude(value: Any, gathered: Gathered) -> Conclusion:
    """The value as `ask` judges it, with its highlights; citations are asked for only where the loop wants them. They have a path: a loop
    knows none that point at a call.
    """
    in_files = {key: [each for each in found if each.path] for key, found in gathered.results.items()}
    conclusion = conclude_answer(value, replace(gathered, results=in_files, calls=()))
    problems = tuple(
        each for each in conclusion.problems if each.reason != OVERCITED
    )  # a loop gets the first ones anyway
    if not gathered.params.get("require_citations", True):
        problems = tuple(problem for problem in problems if problem.gate != "citations")
    output = conclusion.output
    if output is not None:
        output = {**output, "highlights": highlights_of(gathered.highlights, value)}
    return replace(conclusion, output=output, problems=problems, citations=conclusion.citations[:MAX_CITATIONS])


def highlights_of(kept: Sequence[str], value: Any, left_off: int = 0) -> list[str]:
    """What code kept and what a final value holds, each once, with a mark where something is missing. `left_off` were not even kept."""
    items = items_of(fields_of(value).get("highlights"))
    own = [item if isinstance(item, str) else canonical_json(jsonable(item)) for item in items]
    texts = dict.fromkeys(cut(" ".join(text.split()), HIGHLIGHT_CHARS) for text in (*kept, *own))
    found = [text for text in texts if text]
    if not left_off and len(found) <= MAX_HIGHLIGHTS:
        return found
    shown = found[: MAX_HIGHLIGHTS - 1]
    return [*shown, f"… and {len(found) - len(shown) + left_off} more: only {MAX_HIGHLIGHTS} are kept"]


def prefilter(gathered: Gathered) -> Prefilter:
    """The metadata of the role, for the prompt."""
    metadata: Any = gathered.params.get("metadata")
    return Prefilter(text=f"Metadata:\n{json.dumps(metadata, ensure_ascii=False, sort_keys=True)}")


def fallback(gathered: Gathered) -> Conclusion:
    """Nothing: without a final value the worker has failed and says why."""
    return Conclusion(output=None, gaps=(gathered.reason,))


RLMS = Engine(
    name="rlms",
    run_type="rlms",
    output_type="RlmsResult",
    system=prompt_file("engines/rlms"),
    child="",  # a sub-call is one question, never a session
    budget=Budget(max_tokens_total=NO_TOKEN_LIMIT, max_cost_usd=None),
    maxima=None,
    conclude=conclude,
    fallback=fallback,
    prefilter=prefilter,
    reply_form="longest",
    tools=HELPERS,
    functions=FUNCTIONS,
    fails_without_reply=True,
    max_subcall_chars=SUBCALL_CHARS,
    scripted=True,
    final_example='set_final({"highlights": ["what matters"], "citations": [{"path": "src/app.py", "start_line": 10, "end_line": 12}]})',
)
