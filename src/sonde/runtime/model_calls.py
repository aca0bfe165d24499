"""Asking a model: recall from the recording or reserve, ask, retry, record and count.

Every reply is recorded before anyone uses it, and counted before anything is done with it. Failed attempts count too.
A reply that is recorded is not asked again: it is counted as it was. The models themselves know nothing of this.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from sonde.core.budget import Scope, reserved
from sonde.core.canonical import hash_value
from sonde.core.events import ROOT, ModelAsked, ModelFailed, ModelReplied, SubcallEnded
from sonde.core.plurals import plural
from sonde.core.redaction import REMOVED, is_same_but_for_keys
from sonde.errors import BudgetExceeded, Cancelled, ModelCallFailed, RunError, SondeError, by_user, reached_before
from sonde.models.base import (
    Message,
    Model,
    ModelReply,
    ModelRequest,
    OnText,
    TokenUsage,
    backoff,
    estimate_tokens,
    interrupted,
    may_retry,
    prompt_tokens,
)
from sonde.models.prices import dearest, price

if TYPE_CHECKING:
    from sonde.runtime.run import Run

LEAST_OUTPUT = 256  # tokens: a block of code or a short answer
FIRST, REGENERATED, FOLDED = 0, 1, 2  # the requests that a turn may make


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One request: where in the tree it stands (session path, turn, which request of that turn), the messages, how many of them an earlier
    request of this session had already, and the form of the reply.
    """

    session: str
    turn: int
    ordinal: int = 0
    messages: Sequence[Message]
    kept: int = 0
    schema: Mapping[str, Any] | None = None
    max_output_tokens: int = 4096

    @property
    def slot(self) -> tuple[str, int, int]:
        """How the recording finds it."""
        return self.session, self.turn, self.ordinal


def request_hash(question: Question) -> str:
    """Sha256 over the messages and the schema: what the model gets to see."""
    digest = hashlib.sha256()
    for message in question.messages:
        digest.update(f"{message.role}\0{len(message.content)}\0".encode())
        digest.update(message.content.encode("utf-8", "surrogatepass"))
    if question.schema is not None:
        digest.update(hash_value(question.schema).encode())
    return digest.hexdigest()


def ask(run: Run, scope: Scope, model: Model, question: Question) -> ModelReplied:
    """The reply to a question, from the recording or from the model; raises BudgetExceeded or ModelCallFailed."""
    question = _as_recorded(run, question)
    hashed = request_hash(question)
    recorded = _recalled(run, scope, model, question, hashed=hashed)
    if recorded is not None:
        return recorded
    estimate = sum(estimate_tokens(message.content) + 4 for message in question.messages)
    most = _affordable(scope, model, estimate, question.max_output_tokens)
    with reserved(scope, estimate, most, _cost(model, estimate, most)) as reservation:
        run.emit(_asked(question, hashed, model, reservation.max_output_tokens))
        request = ModelRequest(
            messages=question.messages,
            schema=question.schema,
            max_output_tokens=reservation.max_output_tokens,
            seed=run.spec.budget.sampling_seed,
        )
        reply, attempts = _attempt(run, scope, model, request, question=question, hashed=hashed)
        replied = _record(run, question, hashed, reply, attempts)
        _count(run, scope, replied)
    scope.check_spent()
    return replied


def _affordable(scope: Scope, model: Model, tokens_in: int, most: int) -> int:
    """Output that the money left pays for: a call is shortened rather than refused, unless too little would be left to say anything."""
    left = scope.money_left()
    bare, full = _cost(model, tokens_in, 0), _cost(model, tokens_in, most)
    if left is None or full <= max(left, bare):
        return most
    paid = int(most * (left - bare) / (full - bare))
    return paid if paid >= LEAST_OUTPUT else most


def _cost(model: Model, tokens_in: int, tokens_out: int) -> float:
    return dearest(model.name, TokenUsage(tokens_in, tokens_out)) or 0.0


def _as_recorded(run: Run, question: Question) -> Question:
    """The question as the record shows it: a key that lies in the user's own data is not told to a model either."""
    texts = [message.content for message in question.messages]
    cleaned = run.recorder.cleaned(texts)
    asked = run.spec.recording.at(ModelAsked, *question.slot)
    if asked is not None and len(asked.messages) == len(texts):  # a replay may not know the keys
        cleaned = [_before(text, each["content"]) for text, each in zip(cleaned, asked.messages, strict=True)]
    if cleaned == texts:
        return question
    messages = tuple(Message(each.role, text) for each, text in zip(question.messages, cleaned, strict=True))
    return replace(question, messages=messages)


def _before(text: str, recorded: str) -> str:
    return recorded if REMOVED in recorded and is_same_but_for_keys(text, recorded) else text


def _recalled(run: Run, scope: Scope, model: Model, question: Question, *, hashed: str) -> ModelReplied | None:
    """The recorded reply, counted as it was; raises what the recorded run met here instead. None when the model is to be asked."""
    failed = _failed_before(run, question)
    refused = None if failed is not None and failed.too_long else _refused_before(run, question)
    recorded = None
    if failed is None and run.spec.recording.at(ModelReplied, *question.slot) is not None:
        texts = [message.content for message in question.messages[question.kept :]]
        recorded = run.spec.recording.expect(ModelReplied, *question.slot, texts=texts, request_hash=hashed)
    if failed is not None or recorded is not None:
        run.emit(_asked(question, hashed, model, question.max_output_tokens))
    _recount_failures(run, scope, question)
    if recorded is not None:
        _count(run, scope, run.emit(recorded))
    if refused is not None:
        raise refused
    if failed is not None:
        raise _refail(failed)
    if recorded is None:
        return run.spec.recording.expect(
            ModelReplied, *question.slot
        )  # none: a replay goes no further than the recorded run
    _check_again(run, scope, question)
    return recorded


def _check_again(run: Run, scope: Scope, question: Question) -> None:
    """The limits after a recorded reply. A session that no limit ended has passed: its parallel ones now land in another order."""
    end = None if run.spec.recording.words_only else run.spec.recording.end_of(question.session)
    if end is None or isinstance(reached_before(end.error), BudgetExceeded):
        scope.check_spent()


def _failed_before(run: Run, question: Question) -> ModelFailed | None:
    """The failure that ended this request in the recorded run. A resume asks again, unless the run has gone on from there: with the
    failure of a sub-call, or after a conversation that was too long was folded and the model has replied.
    """
    recording = run.spec.recording
    last = recording.given_up(*question.slot)
    if last is None or recording.strict or recording.words_only:
        return last
    folded = last.too_long and recording.at(ModelReplied, question.session, question.turn, FOLDED) is not None
    failed = (
        recording.at(SubcallEnded, question.session) is not None and not last.cancelled
    )  # who resumes has changed their mind
    return last if folded or failed else None


def _refused_before(run: Run, question: Question) -> BudgetExceeded | None:
    """The limit that ended the recorded session at this request: parallel calls that are done again meet it in another order."""
    recording = run.spec.recording
    alone = question.turn == 0  # a plain query: nothing comes after its reply
    if recording.words_only or (recording.at(ModelReplied, *question.slot) is not None and not alone):
        return None
    reached = reached_before(recording.error_of(question.session))
    return reached if isinstance(reached, BudgetExceeded) and not isinstance(reached, Cancelled) else None


def _recount_failures(run: Run, scope: Scope, question: Question) -> None:
    """Recorded attempts count as they did, also those that a crash left without a reply; a resume has them in its record already."""
    for failed in run.spec.recording.failures(*question.slot):
        scope.spend(tokens_in=failed.tokens_in, tokens_out=0, cost_usd=0.0)
        if not run.spec.recording.resumed:
            run.emit(failed)


def _refail(failed: ModelFailed) -> RunError:
    """The failure that a replayed run met here."""
    if failed.cancelled:
        return by_user()
    return ModelCallFailed(
        failed.message, retryable=failed.retryable, too_long=failed.too_long, attempts=failed.attempt
    )


def given_up(failure: ModelCallFailed) -> ModelCallFailed:
    """The failure that ends a session, with how often the model was asked."""
    text = f"no reply after {plural(failure.attempts, 'attempt')}: {failure.message}"
    return ModelCallFailed(text, retryable=failure.retryable, attempts=failure.attempts)


def _count(run: Run, scope: Scope, replied: ModelReplied) -> None:
    scope.spend(tokens_in=replied.tokens_in, tokens_out=replied.tokens_out, cost_usd=replied.cost_usd or 0.0)
    if replied.cost_usd is None and scope.budget.max_cost_usd is not None:
        run.note(f"no price is known for {replied.model}: the cost limit cannot bind, tokens still count")


def _asked(question: Question, hashed: str, model: Model, max_output_tokens: int) -> ModelAsked:
    fresh = question.messages[question.kept :]
    return ModelAsked(
        session=question.session,
        turn=question.turn,
        ordinal=question.ordinal,
        request_hash=hashed,
        model=model.name,
        kept=question.kept,
        messages=[{"role": message.role, "content": message.content} for message in fresh],
        max_output_tokens=max_output_tokens,
        schema_hash=None if question.schema is None else hash_value(question.schema),
    )


def _attempt(
    run: Run, scope: Scope, model: Model, request: ModelRequest, *, question: Question, hashed: str
) -> tuple[ModelReply, int]:
    attempt, before = _attempts_before(run, question)
    _pause(run, _wait_left(run, question))
    while True:
        attempt += 1
        run.check_cancel()
        scope.check_time()
        started = run.clock.now()
        try:
            reply = _complete(run, scope, model, request, question)
        except ModelCallFailed as failure:
            latency = run.clock.now() - started
            _give_back(scope, failure.waited_s)
            wait = _wait(run, scope, failure, attempt - before)
            scope.spend(tokens_in=failure.tokens_in, tokens_out=0, cost_usd=0.0)
            event = _failed(question, hashed, failure, attempt=attempt, wait=wait, latency=latency)
            run.emit(msgspec.structs.replace(event, cancelled=run.cancel.is_set()))
            run.check_cancel()
            scope.check_spent()
            if wait is None:
                failure.attempts = attempt
                raise
            _pause(run, wait)
            continue
        _give_back(scope, reply.waited_s)
        return replace(reply, latency_s=reply.latency_s or run.clock.now() - started), attempt


def _attempts_before(run: Run, question: Question) -> tuple[int, int]:
    """Attempts that were made before a crash: all of them, and those after which the model was given up (a resume asks it anew)."""
    failures = run.spec.recording.failures(*question.slot)
    given_up_at = [number for number, each in enumerate(failures, 1) if each.wait_s is None]
    return len(failures), max(given_up_at, default=0)


def _wait_left(run: Run, question: Question) -> float:
    """What is left of the wait for the next attempt that a crash has broken off: a server's wish holds after it too."""
    last = next(reversed(run.spec.recording.failures(*question.slot)), None)
    if last is None or last.wait_s is None:
        return 0.0
    return min(last.wait_s, last.at + last.wait_s - run.clock.utc().timestamp())


def _pause(run: Run, seconds: float) -> None:
    if seconds > 0 and run.cancel.wait(min(seconds, threading.TIMEOUT_MAX)):
        run.check_cancel()


def _complete(run: Run, scope: Scope, model: Model, request: ModelRequest, question: Question) -> ModelReply:
    """One attempt. A Ctrl-C that breaks the waiting off is a stop like any other: what was sent is counted. So it is when a model
    fails in a way of its own: that ends a sub-call as any failure does, and only in the root it is an error of the whole run.
    """
    try:
        return model.complete(request, deadline=scope.deadline, on_text=_listener(run, question))
    except SondeError:
        raise
    except Exception as error:  # foreign code: whatever it raises is an attempt that gave no reply
        if question.session == ROOT:
            raise
        text = f"{model.name} raised {type(error).__name__}: {error}"
        raise ModelCallFailed(text, tokens_in=prompt_tokens(request)) from error
    except KeyboardInterrupt:
        run.cancel.set()
        raise interrupted(model.name, prompt_tokens(request)) from None


def _give_back(scope: Scope, seconds: float) -> None:
    """Waiting for a person behind a command is not the run's own time."""
    if seconds:
        for each in scope.chain():
            each.deadline.add(seconds)


def _wait(run: Run, scope: Scope, failure: ModelCallFailed, attempt: int) -> float | None:
    if run.cancel.is_set() or not may_retry(attempt, retryable=failure.retryable):
        return None
    pause = backoff(attempt, failure.retry_after, run.seed)
    return pause if pause < scope.deadline.remaining() else None


def _listener(run: Run, question: Question) -> OnText | None:
    on_text = run.spec.on_text
    if on_text is None:
        return None

    def listen(piece: str) -> None:
        on_text(question.session, piece)

    return listen


def _failed(
    question: Question, hashed: str, failure: ModelCallFailed, *, attempt: int, wait: float | None, latency: float
) -> ModelFailed:
    return ModelFailed(
        session=question.session,
        turn=question.turn,
        ordinal=question.ordinal,
        attempt=attempt,
        request_hash=hashed,
        message=failure.message,
        retryable=failure.retryable,
        wait_s=wait,
        tokens_in=failure.tokens_in,
        latency_s=latency,
        waited_s=failure.waited_s,
        too_long=failure.too_long,
    )


def _record(run: Run, question: Question, hashed: str, reply: ModelReply, attempts: int) -> ModelReplied:
    cost = reply.cost_usd if reply.cost_usd is not None else price(reply.model, reply.usage)
    replied = ModelReplied(
        session=question.session,
        turn=question.turn,
        ordinal=question.ordinal,
        request_hash=hashed,
        text=reply.text,
        model=reply.model,
        tokens_in=reply.usage.tokens_in,
        tokens_out=reply.usage.tokens_out,
        cached_in=reply.usage.cached_in,
        estimated=reply.usage.estimated,
        cost_usd=cost,
        latency_s=reply.latency_s,
        waited_s=reply.waited_s,
        attempts=attempts,
        finish_reason=reply.finish_reason,
    )
    return run.emit(replied)  # as recorded: what a replay will see
