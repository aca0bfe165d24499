"""One invocation from request to result, over the same session as `ask`.

It runs in its own process (`python -m sonde.rlms.worker`), so that the wrapper can end it whatever it is doing: a request as JSON on
standard input, a result as JSON on standard output, remarks on standard error. Every ending is a result: a value that was
set is ok, even if some of its citations did not hold (those are dropped); anything else is a failure with its class.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from sonde.api.launch import launch
from sonde.api.settings import Settings
from sonde.core.budget import Budget
from sonde.core.deadline import Deadline, SystemClock
from sonde.core.evidence import Citation, Excerpt
from sonde.engines.rlms import NO_TOKEN_LIMIT, RLMS, StepLine
from sonde.errors import BudgetExceeded, ModelOutputInvalid, RunError, SondeError, WallTimeLimitReached
from sonde.rlms.calls import CallLog, RunnerModel
from sonde.rlms.files import LoopFiles, open_files
from sonde.rlms.request import Request
from sonde.rlms.result import FALLBACK_SIGNAL, Effort, failure, failure_class, success
from sonde.runtime.run import RunSpec
from sonde.sandbox.worker.tables import PR_SET_PDEATHSIG

FALLBACK_FILES = 5
HEAD_LINES = 200
RUNS = "runs"


def work(request: Request, environ: Mapping[str, str], *, used_s: float = 0.0) -> dict[str, Any]:
    """The result of one invocation; `used_s` of its time have passed already."""
    deadline = Deadline(SystemClock(), max(0.0, request.limits.timeout_seconds - used_s))
    try:
        result = _run(request, environ, deadline)
    except SondeError as error:
        result = failure(request, failure_class(error), error.message, Effort())
    result["stats"]["elapsed_seconds"] = round(used_s + deadline.elapsed(), 3)
    return result


def _run(request: Request, environ: Mapping[str, str], deadline: Deadline) -> dict[str, Any]:
    root = RunnerModel(request.root, request.repo, environ)
    subcall = RunnerModel(request.subcall, request.repo, environ)
    calls = CallLog(root, subcall)
    context = open_files(request.context_file_list, request.repo)
    for name, reason in context.survey.left_out.items():
        print(f"left out: {name!r}: {reason}", file=sys.stderr)  # noqa: T201  # the wrapper keeps this as worker-stderr.log
    limits, left = request.limits, deadline.remaining()
    if left <= 0:
        raise WallTimeLimitReached(_timeout_words(request), limit="max_wall_time_sec")
    settings = Settings(environ=environ)
    line = StepLine(max_steps=limits.max_steps, max_subcalls=limits.max_subcalls, max_depth=limits.max_depth)
    spec = RunSpec(
        engine=replace(RLMS, left_line=line),
        objective=(
            f"The role {request.role!r} of the loop {request.loop_id!r} is about to start its iteration {request.iteration}. "
            "Find out what it must know about these files for its work (the metadata says what is known of it), keep it as "
            "highlights, and cite the lines that show it."
        ),
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
        runs_dir=Path(request.output_dir, RUNS),
        on_event=calls,
        secrets=settings.secrets(),
        needs_files=True,
    )
    result = launch(spec, settings)
    effort = Effort(steps=calls.steps, subcalls=calls.subcalls, trace=calls.trace())
    if result.value is not None and result.annotator_kind == "LLM":
        citations = [citation for citation in result.citations if not citation.fallback]
        if not citations and request.require_citations:
            citations = _fallback(context)
        return success(request, context.survey, result.value, citations, effort)
    error_code, words = _cause(request, result.error, calls, deadline)
    return failure(request, error_code, words, effort)


def _fallback(context: LoopFiles) -> list[Citation]:
    """The first line with text of each file, so that readers have something to open. Marked, and no gate counts them."""
    found: list[Citation] = []
    for row in context.survey.rows[:FALLBACK_FILES]:
        line, text = 1, context.reread(Excerpt.of_lines(row.path, 1, 1, ""))
        while text is not None and not text.strip() and line < HEAD_LINES:
            line += 1
            text = context.reread(Excerpt.of_lines(row.path, line, line, ""))
        if text is not None and text.strip():
            pointer: dict[str, Any] = {"path": row.path, "start_line": line, "end_line": line, "excerpt_hash": ""}
            snippet = " ".join(text.split())
            found.append(Citation(**pointer, signal=FALLBACK_SIGNAL, snippet=snippet, fallback=True))
    return found


def _cause(request: Request, error: RunError | None, calls: CallLog, deadline: Deadline) -> tuple[str, str]:
    """Why the run has no value: limits come before a model that they have ended, and a refusing gate before limits."""
    if error is None:
        return "worker_failure", "the run ended without a value and without an error"
    timed_out = deadline.expired() and isinstance(error, ModelOutputInvalid)
    if not timed_out and failure_class(error) != "limit_exceeded":
        return failure_class(error), error.message
    if timed_out:
        words = f"{_timeout_words(request)}; {error.message}"
    else:
        named = {
            "max_iterations": f"max_steps of {request.limits.max_steps} is used up without set_final(...)",
            "max_wall_time_sec": _timeout_words(request),
        }
        words = named.get(cast("BudgetExceeded", error).limit, error.message)
    if calls.last_fault == "gate":
        return "sandbox_violation", f"{words}; the last code was refused by the gate"
    return "limit_exceeded", words


def _timeout_words(request: Request) -> str:
    return f"timeout_seconds of {request.limits.timeout_seconds} is used up"


def main() -> None:
    """One invocation."""
    answer = os.dup(1)
    os.dup2(2, 1)  # a stray print must not end up in the result
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ended from outside, it ends its programs first
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)  # and also when the wrapper is gone
    order = json.loads(sys.stdin.buffer.read())
    request = Request.from_wire(order["request"])
    try:
        result = work(request, os.environ, used_s=max(0.0, time.monotonic() - order["started"]))
    except Exception as error:  # noqa: BLE001  # the top of a worker: a fault of ours must become a result
        traceback.print_exc()
        result = failure(request, "worker_failure", f"{type(error).__name__}: {error}")
    with os.fdopen(answer, "wb") as out:
        out.write(json.dumps(result).encode("utf-8", "replace"))


if __name__ == "__main__":
    main()
