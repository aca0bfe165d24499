"""One invocation from request to result, over the same session as `ask`.

Runs in a process of its own (`python -m sonde.rlms`), so that the wrapper can end it whatever it is doing. Every ending is a result: a
value that was set is ok, also when some of its citations did not hold (those are dropped); anything else is a failure with its class.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from sonde.api.launch import launch
from sonde.api.result import Result
from sonde.api.settings import Settings
from sonde.core.budget import Budget
from sonde.core.deadline import Deadline, SystemClock
from sonde.core.evidence import Citation
from sonde.engines.rlms import NO_TOKEN_LIMIT, RLMS, StepLine
from sonde.errors import BudgetExceeded, ModelOutputInvalid, RunError, SondeError, WallTimeLimitReached
from sonde.rlms.calls import RunnerModel, Watch
from sonde.rlms.files import LoopFiles, open_files
from sonde.rlms.request import Request
from sonde.rlms.result import FALLBACK_SIGNAL, Effort, citation_row, failure, failure_class, success
from sonde.runtime.run import RunSpec

FALLBACK_FILES = 5
RUNS = "runs"


def work(request: Request, environ: Mapping[str, str], *, used_s: float = 0.0) -> dict[str, Any]:
    """The result of one invocation; `used_s` of its time have passed already."""
    deadline = Deadline(SystemClock(), max(0.0, request.limits.timeout_seconds - used_s))
    try:
        result = _work(request, environ, deadline)
    except SondeError as error:
        result = failure(request, failure_class(error), error.message, Effort())
    result["stats"]["elapsed_seconds"] = round(used_s + deadline.elapsed(), 3)
    return result


def _work(request: Request, environ: Mapping[str, str], deadline: Deadline) -> dict[str, Any]:
    root = RunnerModel(request.root, request.repo, environ)
    subcall = RunnerModel(request.subcall, request.repo, environ)
    watch = Watch(root, subcall)
    context = open_files(request.context_file_list, request.repo)
    _tell_left_out(context)
    settings = Settings(environ=environ)
    spec = replace(
        _spec(request, context, root, subcall, deadline),
        runs_dir=Path(request.output_dir, RUNS),
        on_event=watch,
        secrets=settings.secrets(),
        needs_files=True,
    )
    result = launch(spec, settings)
    effort = Effort(steps=watch.steps, subcalls=watch.subcalls, trace=watch.trace())
    if result.value is not None and result.annotator_kind == "LLM":
        return success(request, context.survey, result.value, _citations(request, context, result), effort)
    error_code, words = _cause(request, result.error, watch, deadline)
    return failure(request, error_code, words, effort)


def _spec(request: Request, context: LoopFiles, root: RunnerModel, subcall: RunnerModel, deadline: Deadline) -> RunSpec:
    limits = request.limits
    line = StepLine(max_steps=limits.max_steps, max_subcalls=limits.max_subcalls, max_depth=limits.max_depth)
    left = deadline.remaining()
    if left <= 0:
        raise WallTimeLimitReached(_timeout_words(request), limit="max_wall_time_sec")
    return RunSpec(
        engine=replace(RLMS, left_line=line),
        objective=_objective(request),
        context=context,
        model=root,
        sub_model=subcall,
        budget=Budget(
            max_iterations=limits.max_steps,
            max_depth=limits.max_depth,
            max_subcalls=limits.max_subcalls,
            max_tokens_total=NO_TOKEN_LIMIT,
            max_cost_usd=None,
            max_wall_time_sec=left,
        ),
        params={"metadata": dict(request.metadata), "require_citations": request.require_citations},
        profile="strict",
        recipe={"engine": "rlms", "given": True},
    )


def _objective(request: Request) -> str:
    return (
        f"The role {request.role!r} of the loop {request.loop_id!r} is about to start its iteration {request.iteration}. "
        "Find out what it must know about these files for its work (the metadata says what is known of it), keep it as "
        "highlights, and cite the lines that show it."
    )


def _tell_left_out(context: LoopFiles) -> None:
    for name, reason in context.survey.left_out.items():
        print(f"left out: {name!r}: {reason}", file=sys.stderr)  # noqa: T201  # the wrapper keeps this as worker-stderr.log


def _citations(request: Request, context: LoopFiles, result: Result) -> list[dict[str, Any]]:
    proved = [citation_row(citation) for citation in result.citations if not citation.fallback]
    if proved or not request.require_citations:
        return proved
    return [citation_row(citation) for citation in _fallback(context)]


def _fallback(context: LoopFiles) -> list[Citation]:
    """The first line with text of each file: so that readers have something to open. Marked, and no gate counts them."""
    found: list[Citation] = []
    for row in context.survey.rows[:FALLBACK_FILES]:
        first = context.first_text(row.path)
        if first is not None:
            line, text = first
            pointer: dict[str, Any] = {"path": row.path, "start_line": line, "end_line": line, "excerpt_hash": ""}
            snippet = " ".join(text.split())
            found.append(Citation(**pointer, signal=FALLBACK_SIGNAL, snippet=snippet, fallback=True))
    return found


def _cause(request: Request, error: RunError | None, watch: Watch, deadline: Deadline) -> tuple[str, str]:
    """Why there is no value: limits come before a model that they have ended, and a refusing gate before limits."""
    if error is None:
        return "worker_failure", "the run ended without a value and without an error"
    timed_out = deadline.expired() and isinstance(error, ModelOutputInvalid)
    limited = timed_out or failure_class(error) == "limit_exceeded"
    if limited and watch.last_fault == "gate":
        return (
            "sandbox_violation",
            f"{_words(request, error, timed_out=timed_out)}; the last code was refused by the gate",
        )
    if limited:
        return "limit_exceeded", _words(request, error, timed_out=timed_out)
    return failure_class(error), error.message


def _words(request: Request, error: RunError, *, timed_out: bool) -> str:
    limits = request.limits
    named = {
        "max_iterations": f"max_steps of {limits.max_steps} is used up without set_final(...)",
        "max_wall_time_sec": _timeout_words(request),
    }
    if timed_out:
        return f"{_timeout_words(request)}; {error.message}"
    return named.get(cast("BudgetExceeded", error).limit, error.message)


def _timeout_words(request: Request) -> str:
    return f"timeout_seconds of {request.limits.timeout_seconds} is used up"
