"""The methods of a benchmark of questions: Sonde, Sonde without sub-calls, top-k retrieval with one prompt, and everything in one prompt.

All use the same model. Whatever a method answers is scored later, by code.
"""

from __future__ import annotations

import heapq
import math
import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from sonde.api.ask_run import ask
from sonde.api.settings import Settings
from sonde.bench import answers
from sonde.bench.questions import Questions, context_text, kind_of
from sonde.bench.suite import BenchCase, Suite, Trial
from sonde.core.deadline import Deadline, SystemClock
from sonde.errors import ConfigError
from sonde.models import Message, Model, ModelRequest
from sonde.models.base import price

QUESTION_METHODS = ("sonde", "no-subcalls", "retrieval", "plain")
ONE_PROMPT_SECONDS = 3600.0
ONE_PROMPT_TOKENS = 8192
PIECE_CHARS = 2000
PIECES = 20
_SATURATION, _LENGTH_SHARE = 1.5, 0.75  # the two constants of BM25


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """A model and what it takes to ask it; `opened` is the same model for one-prompt methods."""

    model: str | Model
    opened: Model
    settings: Settings
    runs_dir: Path


def answered(suite: Questions, case: BenchCase, blank: Trial, asker: Asker) -> Trial:
    """One question by the method that the blank result names."""
    match blank.method:
        case "sonde" | "no-subcalls":
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
                tokens=used.tokens_total,
                cost_usd=used.cost_usd,
                cached=used.cached_in,
                run_dir="" if answer.run_dir is None else str(answer.run_dir),
            )
        case "retrieval":
            best = top_pieces(case.question, context_text(case.source))
            return one_prompt(suite, blank, asker.opened, suite.prompt(case, "\n[...]\n".join(best)))
        case "plain":
            return one_prompt(suite, blank, asker.opened, suite.plain_prompt(case))
        case _:
            raise ConfigError(
                f"{blank.method!r} is not a method for questions; choose from {', '.join(QUESTION_METHODS)}"
            )


def one_prompt(suite: Suite, blank: Trial, model: Model, prompt: str | None) -> Trial:
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
        cached=reply.usage.cached_in,
    )


def pieces_of(text: str, size: int = PIECE_CHARS) -> list[str]:
    """The text in pieces of about `size` characters that end at line breaks."""
    pieces: list[str] = []
    at = 0
    while at < len(text):
        end = at + size
        end = text.rfind("\n", at + 1, end) + 1 if end < len(text) else len(text)
        pieces.append(text[at : max(end, at + 1) if end > at else at + size])
        at += len(pieces[-1])
    return pieces


def top_pieces(question: str, text: str, count: int = PIECES) -> list[str]:
    """The retrieval baseline: the pieces that share the most telling words with a question, by BM25, in the text's own order."""
    pieces = pieces_of(text)
    word = re.compile(r"\w+")
    wanted = set(word.findall(question.casefold()))
    counts = [Counter(each for each in word.findall(piece.casefold()) if each in wanted) for piece in pieces]
    spread = Counter(each for found in counts for each in found)
    average = sum(map(len, pieces)) / max(len(pieces), 1)
    scored: list[tuple[float, int]] = []
    for at, (found, piece) in enumerate(zip(counts, pieces, strict=True)):
        norm = _SATURATION * (1 - _LENGTH_SHARE + _LENGTH_SHARE * len(piece) / average)
        score = sum(
            math.log(1 + (len(pieces) - spread[each] + 0.5) / (spread[each] + 0.5))
            * times
            * (_SATURATION + 1)
            / (times + norm)
            for each, times in found.items()
        )
        scored.append((score, -at))
    return [pieces[at] for at in sorted(-at for _, at in heapq.nlargest(count, scored))]
