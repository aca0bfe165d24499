"""The methods of a benchmark of questions: Sonde, Sonde without sub-calls, top-k retrieval with one prompt, and everything in one prompt.

All use the same model. Whatever a method answers is scored later, by code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from sonde.api.ask_run import ask
from sonde.api.settings import Settings
from sonde.bench import answers
from sonde.bench.questions import Questions, context_text, kind_of
from sonde.bench.results import Result
from sonde.bench.retrieval import top_pieces
from sonde.bench.suite import Case, Suite
from sonde.core.deadline import Deadline, SystemClock
from sonde.errors import ConfigError
from sonde.models import Message, Model, ModelRequest
from sonde.models.prices import price

QUESTION_METHODS = ("sonde", "no-subcalls", "retrieval", "plain")
ONE_PROMPT_SECONDS = 3600.0
ONE_PROMPT_TOKENS = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """A model and what it takes to ask it; `opened` is the same model for one-prompt methods."""

    model: str | Model
    opened: Model
    settings: Settings
    runs_dir: Path


def answered(suite: Questions, case: Case, blank: Result, asker: Asker) -> Result:
    """One question by the method that the blank result names."""
    match blank.method:
        case "sonde" | "no-subcalls":
            return _by_run(suite, case, blank, asker)
        case "retrieval":
            best = top_pieces(case.question, context_text(case.source))
            return one_prompt(suite, blank, asker.opened, suite.prompt(case, "\n[...]\n".join(best)))
        case "plain":
            return one_prompt(suite, blank, asker.opened, suite.plain_prompt(case))
        case _:
            raise ConfigError(f"{blank.method!r} is no method for questions; choose from {', '.join(QUESTION_METHODS)}")


def _by_run(suite: Questions, case: Case, blank: Result, asker: Asker) -> Result:
    most = 0 if blank.method == "no-subcalls" else None
    answer = ask(
        case.question,
        case.source,
        model=asker.model,
        settings=asker.settings,
        schema=answers.schema(kind_of(case)),
        runs_dir=asker.runs_dir,
        sampling_seed=blank.repeat,
        max_subcalls=most,
        max_depth=most,
    )
    used = answer.record.runtime_ref.usage
    return replace(
        blank,
        predicted=None if answer.value is None else suite.predicted(answer.value),
        status=answer.status.value,
        tokens=used.tokens_in + used.tokens_out,
        cost_usd=used.cost_usd,
        run_dir="" if answer.run_dir is None else str(answer.run_dir),
    )


def one_prompt(suite: Suite, blank: Result, model: Model, prompt: str | None) -> Result:
    """One prompt, one reply; a prompt that does not fit is not tried."""
    if prompt is None:
        return replace(blank, status="does not fit", fits=False)
    request = ModelRequest(messages=(Message("user", prompt),), max_output_tokens=ONE_PROMPT_TOKENS, seed=blank.repeat)
    reply = model.complete(request, deadline=Deadline(SystemClock(), ONE_PROMPT_SECONDS))
    cost = reply.cost_usd if reply.cost_usd is not None else price(reply.model, reply.usage)
    return replace(
        blank,
        predicted=suite.read_plain(reply.text),
        status="succeeded",
        tokens=reply.usage.tokens_in + reply.usage.tokens_out,
        cost_usd=cost or 0.0,
    )
