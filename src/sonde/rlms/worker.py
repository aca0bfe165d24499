"""One invocation from request to result, over the same session as `ask`.

It runs in its own process (`python -m sonde.rlms.worker`), so that the wrapper can end it whatever it is doing: a request as JSON on
standard input; notes of what it has so far and last the result as lines of JSON on standard output; remarks on standard error. Every
ending is a result: a value that was set is ok, even if some of its citations did not hold (those are dropped); anything else is a failure
with its class, and with all that the run had by then.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from sonde.api.launch import launch
from sonde.api.settings import Settings
from sonde.contexts.files.bm25 import hearts
from sonde.core.budget import Budget
from sonde.core.canonical import cut, jsonable
from sonde.core.deadline import Deadline, SystemClock
from sonde.core.redaction import clean_value, secret_forms
from sonde.engines.rlms import NO_TOKEN_LIMIT, RLMS, StepLine, conclude
from sonde.errors import (
    BudgetExceeded,
    ConfigError,
    ModelOutputInvalid,
    RunError,
    SondeError,
    ToolFault,
    WallTimeLimitReached,
)
from sonde.rlms.calls import CallLog, RunnerModel
from sonde.rlms.files import SNIPPET_CHARS, LoopFiles, open_files, read_list, split_list
from sonde.rlms.request import RUNS, Request
from sonde.rlms.result import FALLBACK_SIGNAL, LoopFindings, citation_row, failure, failure_class, success, survey_note
from sonde.runtime.engine import Conclusion, Gathered
from sonde.runtime.run import RunSpec
from sonde.sandbox.worker.tables import PR_SET_PDEATHSIG

FALLBACK_CITATIONS = 20
FALLBACK_QUERY_CHARS = 4000
NOTHING_TO_CITE = "citations are required, and the listed files hold no text that could be cited"


def work(
    request: Request, environ: Mapping[str, str], *, used_s: float = 0.0, kept: LoopFindings | None = None
) -> dict[str, Any]:
    """The result of one invocation; `used_s` of its time have passed already."""
    deadline = Deadline(SystemClock(), max(0.0, request.limits.timeout_seconds - used_s))
    kept = kept or LoopFindings()
    try:
        result = _run(request, environ, deadline, kept)
    except SondeError as error:
        result = failure(request, failure_class(error), error.message, kept)
    result["stats"]["elapsed_seconds"] = round(used_s + deadline.elapsed(), 3)
    return result


def _run(request: Request, environ: Mapping[str, str], deadline: Deadline, kept: LoopFindings) -> dict[str, Any]:
    root = RunnerModel(request.root, request.repo, environ, again=True)
    subcall = RunnerModel(request.subcall, request.repo, environ, again=False)  # sub_rlm tries again, and counts it
    calls = CallLog(root, subcall, kept)
    names = split_list(read_list(request.context_file_list)) if request.listed is None else request.listed
    context = open_files(request.context_file_list, names, request.repo)
    kept.add("survey", survey_note(context.survey))
    for name, reason in context.survey.left_out.items():
        print(f"left out: {name!r}: {reason}", file=sys.stderr)  # noqa: T201  # the wrapper keeps this as worker-stderr.log
    if request.require_citations and not _first_lines(context, 1):
        raise ConfigError(NOTHING_TO_CITE)  # before any program runs
    limits, left = request.limits, deadline.remaining()
    if left <= 0:
        raise WallTimeLimitReached(_timeout_words(request), limit="max_wall_time_sec")
    settings = Settings(environ=environ)
    keys = secret_forms(settings.secrets())

    def judge(value: Any, gathered: Gathered) -> Conclusion:
        conclusion = conclude(value, gathered)
        kept.add("final", clean_value(jsonable(value), keys))
        for citation in conclusion.citations:
            kept.add("citation", citation_row(citation))
        return conclusion

    line = StepLine(max_steps=limits.max_steps, max_subcalls=limits.max_subcalls, max_depth=limits.max_depth)
    spec = RunSpec(
        engine=replace(RLMS, left_line=line, conclude=judge),
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
        runs_dir=Path(request.runs_dir or Path(request.output_dir, RUNS)),
        on_event=calls,
        secrets=settings.secrets(),
        needs_files=bool(request.runs_dir),
    )
    result = launch(spec, settings)
    if result.value is None or result.annotator_kind != "LLM":
        error_code, words = _cause(request, result.error, calls, deadline)
        return failure(request, error_code, words, kept)
    kept.citations = [citation_row(citation) for citation in result.citations if not citation.fallback]
    if not kept.citations and request.require_citations:
        kept.citations = _fallback(context, [json.dumps(kept.final, ensure_ascii=False), *kept.highlights])
        if not kept.citations:
            return failure(request, "invalid_config", NOTHING_TO_CITE, kept)
    return success(request, kept)


def _fallback(context: LoopFiles, words: Sequence[str]) -> list[dict[str, Any]]:
    """Places in all files, best first, so that readers have something to open: passages that share words with what was found, then the
    first line with text of each other file. They are marked, and no gate counts them.
    """
    query = " ".join(words)[:FALLBACK_QUERY_CHARS]
    passages: list[tuple[str, int, str]] = []
    with suppress(ToolFault):  # no words to look for
        passages = [
            (row["path"], row["start_line"], row["text"]) for row in context.search(query, FALLBACK_CITATIONS).value
        ]
    found: list[dict[str, Any]] = []
    chosen = hearts([(path, text) for path, _, text in passages], query)
    for (path, start, text), (first, last) in zip(passages, chosen, strict=True):
        lines = text.split("\n")[first : last + 1]
        found.append(_reference(path, start + first, start + last, " ".join(lines)))
    others = _first_lines(context, FALLBACK_CITATIONS - len(found), {row["path"] for row in found})
    return [row for row in (*found, *others) if row["snippet"]]


def _first_lines(context: LoopFiles, most: int, without: Collection[str] = ()) -> list[dict[str, Any]]:
    """The first line with text of each file, in the order of the list, until there are enough."""
    found: list[dict[str, Any]] = []
    for row in context.survey.rows:
        if len(found) >= most:
            break
        if row.path not in without:
            hits = context.grep(r"\S", row.path, 1).value
            found += [_reference(row.path, hit["line"], hit["line"], hit["text"]) for hit in hits]
    return found


def _reference(path: str, start: int, end: int, text: str) -> dict[str, Any]:
    snippet = cut(" ".join(text.split()), SNIPPET_CHARS)
    return {"path": path, "start_line": start, "end_line": end, "signal": FALLBACK_SIGNAL, "snippet": snippet}


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
        limits = request.limits
        named = {
            "max_iterations": f"step limit exceeded: max_steps of {limits.max_steps} is used up without set_final(...)",
            "max_wall_time_sec": _timeout_words(request),
            "max_depth": f"subcall depth exceeded: {error.message}",
            "max_subcalls": f"subcall limit exceeded: max_subcalls of {limits.max_subcalls} is used up",
        }
        words = named.get(cast("BudgetExceeded", error).limit, error.message)
    if calls.last_fault == "gate":
        return "sandbox_violation", f"{words}; the last code was refused by the gate: {cut(calls.last_words, 300)}"
    return (
        "limit_exceeded",
        f"{words}; the last code failed: {cut(calls.last_words, 300)}" if calls.last_words else words,
    )


def _timeout_words(request: Request) -> str:
    return f"timeout exceeded: timeout_seconds of {request.limits.timeout_seconds} is used up"


def main() -> None:
    """One invocation."""
    answer = os.dup(1)
    os.dup2(2, 1)  # a stray print must not end up in the result
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ended from outside, it ends its programs first
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)  # and also when the wrapper is gone
    order = json.loads(sys.stdin.buffer.read())
    request = Request.from_wire(order["request"])
    with os.fdopen(answer, "wb") as out:

        def tell(what: str, value: Any) -> None:
            out.write(json.dumps([what, value]).encode() + b"\n")
            out.flush()

        kept = LoopFindings(tell)
        try:
            used_s = max(0.0, time.monotonic() - order["started"])
            result = work(request, os.environ, used_s=used_s, kept=kept)
        except Exception as error:  # noqa: BLE001  # the top of a worker: a fault of ours must become a result
            traceback.print_exc()
            result = failure(request, "worker_failure", f"{type(error).__name__}: {error}", kept)
        tell("result", result)


if __name__ == "__main__":
    main()
