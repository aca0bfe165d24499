"""Asking a model: recall from the recording or reserve, ask, retry, record and count.

Every reply is recorded before anyone uses it, and counted before anything is done with it. Failed attempts count too.
A recorded reply is not asked for again: it counts as it did. The models themselves know nothing of this.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from sonde.core.budget import Scope, reserved
from sonde.core.canonical import clip, hash_value, plural, sha256_text
from sonde.core.events import ROOT, ModelAsked, ModelFailed, ModelReplied, Noted, SubcallEnded
from sonde.core.redaction import REMOVED, is_same_but_for_keys
from sonde.core.usage import used_by
from sonde.errors import (
    BudgetExceeded,
    Cancelled,
    ConfigError,
    ModelCallFailed,
    RecursionLimitReached,
    SondeError,
    by_user,
    reached_before,
)
from sonde.models.base import (
    Message,
    Model,
    ModelReply,
    ModelRequest,
    TokenUsage,
    backoff,
    cost_of,
    cost_of_failure,
    estimate_tokens,
    interrupted,
    may_retry,
    own_price,
    prompt_tokens,
)

if TYPE_CHECKING:
    from sonde.runtime.run import Run

KEPT_CHARS = 2000  # of a reply for which the journal has no room
LEAST_OUTPUT = 256  # tokens: a block of code or a short answer
ON_TEXT = "on_text"
FIRST, REGENERATED, FOLDED = 0, 1, 2  # the requests that a turn may make


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One request: its place in the tree (session path, turn, which request of that turn), the messages, how many of them an earlier
    request of this session already carried, and the form of the reply. `conversation` names requests that begin alike, of a session
    if not of a batch whose prompts have their first `shared_chars` in common.
    """

    session: str
    turn: int
    ordinal: int = 0
    messages: Sequence[Message]
    kept: int = 0
    schema: Mapping[str, Any] | None = None
    max_output_tokens: int = 4096
    conversation: str | None = None
    shared_chars: int = 0

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
    most, left = question.max_output_tokens, scope.money_left()
    bare, full = _cost(model, estimate, 0), _cost(model, estimate, most)
    if left is not None and full > max(left, bare):
        # Rather a shorter reply than none, unless the money left buys too little to say anything.
        paid = int(most * (left - bare) / (full - bare))
        most = paid if paid >= LEAST_OUTPUT else most
    with reserved(scope, estimate, most, _cost(model, estimate, most)) as reservation:
        run.emit(_asked(question, hashed, model, reservation.max_output_tokens))
        request = ModelRequest(
            messages=question.messages,
            schema=question.schema,
            max_output_tokens=reservation.max_output_tokens,
            seed=run.spec.budget.sampling_seed,
            thinks=run.spec.engine.thinks,
            conversation=question.conversation and sha256_text(f"{run.run_id} {question.conversation}")[:32],
            shared_chars=question.shared_chars,
        )
        reply, attempts = _attempt(run, scope, model, request, question=question, hashed=hashed)
        said = ModelReplied(
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
            cost_usd=reply.cost_usd
            if reply.cost_usd is not None
            else cost_of(model.name, reply.usage, own_price(model)),
            latency_s=reply.latency_s,
            waited_s=reply.waited_s,
            attempts=attempts,
            finish_reason=reply.finish_reason,
        )
        try:
            replied = run.emit(said)  # use what comes back, as recorded: it is what a replay will see
        except RecursionLimitReached:  # longer than the journal may become; what it cost is recorded all the same
            cut = msgspec.structs.replace(said, text=clip(said.text, KEPT_CHARS), finish_reason="length")
            _count(run, scope, run.emit(cut))
            raise
        _count(run, scope, replied)
    scope.check_spent()
    return replied


def _cost(model: Model, tokens_in: int, tokens_out: int) -> float:
    return cost_of(model.name, TokenUsage(tokens_in, tokens_out), own_price(model)) or 0.0


def _as_recorded(run: Run, question: Question) -> Question:
    """The question as the record shows it: a model does not see keys that lie in the user's data either."""
    texts = [message.content for message in question.messages]
    before = run.sent.get(question.session, ())[: question.kept]  # as they were sent
    fresh = run.recorder.cleaned(texts[len(before) :])
    asked = run.spec.recording.at(ModelAsked, *question.slot)
    if asked is not None and len(asked.messages) == len(fresh):  # a replay may not know the keys
        recorded = [each["content"] for each in asked.messages]
        fresh = [
            then if REMOVED in then and is_same_but_for_keys(now, then) else now
            for now, then in zip(fresh, recorded, strict=True)
        ]
    cleaned = run.sent[question.session] = [*before, *fresh]
    if cleaned == texts:
        return question
    messages = tuple(Message(each.role, text) for each, text in zip(question.messages, cleaned, strict=True))
    return replace(question, messages=messages)


def _recalled(run: Run, scope: Scope, model: Model, question: Question, *, hashed: str) -> ModelReplied | None:
    """The recorded reply, counted as it was; raises what the recorded run met here instead. None: ask the model."""
    recording = run.spec.recording
    failed = _failed_before(run, question)
    refused = None if failed is not None and failed.too_long else _refused_before(run, question)
    recorded = None
    if failed is None and recording.at(ModelReplied, *question.slot) is not None:
        texts = [message.content for message in question.messages[question.kept :]]
        recorded = recording.expect(ModelReplied, *question.slot, texts=texts, request_hash=hashed)
    if failed is not None or recorded is not None:
        run.emit(_asked(question, hashed, model, question.max_output_tokens))
    # Recorded attempts count as they did, also those that a crash left without a reply.
    for attempt in recording.failures(*question.slot):
        scope.spend(used_by(attempt))
        if not recording.resumed:  # a resumed run has them in its record already
            run.emit(attempt)
    if recorded is not None:
        _count(run, scope, run.emit(recorded))
    if refused is not None:
        raise refused
    if failed is not None and failed.cancelled:
        raise by_user()
    if failed is not None:
        raise ModelCallFailed(
            failed.message,
            code=failed.code,
            retryable=failed.retryable,
            too_long=failed.too_long,
            attempts=failed.attempt,
        )
    if recorded is None:
        return recording.expect(ModelReplied, *question.slot)  # raises in a replay: it goes no further than its run
    # A session that no limit ended has passed them: its parallel ones now land in another order.
    end = None if recording.words_only else recording.end_of(question.session)
    if end is None or isinstance(reached_before(end.error), BudgetExceeded):
        scope.check_spent()
    return recorded


def _failed_before(run: Run, question: Question) -> ModelFailed | None:
    """The failure that ended this request in the recorded run. A resume asks again, unless the run went on from there: with the
    failure of a sub-call, or with a reply after the conversation, which was too long, was folded.
    """
    recording = run.spec.recording
    last = recording.given_up(*question.slot)
    if last is None or recording.strict or recording.words_only:
        return last
    folded = last.too_long and recording.at(ModelReplied, question.session, question.turn, FOLDED) is not None
    # A cancelled sub-call is asked again: who resumes a run has changed their mind.
    failed = recording.at(SubcallEnded, question.session) is not None and not last.cancelled
    return last if folded or failed else None


def _refused_before(run: Run, question: Question) -> BudgetExceeded | None:
    """The limit that ended the recorded session at this request: parallel calls that run again meet it in another order."""
    recording = run.spec.recording
    alone = question.turn == 0  # a plain query: nothing comes after its reply
    if recording.words_only or (recording.at(ModelReplied, *question.slot) is not None and not alone):
        return None
    reached = reached_before(recording.error_of(question.session))
    return reached if isinstance(reached, BudgetExceeded) and not isinstance(reached, Cancelled) else None


def given_up(failure: ModelCallFailed) -> ModelCallFailed:
    """The failure that ends a session, with how often the model was asked."""
    text = f"no reply after {plural(failure.attempts, 'attempt')}: {failure.message}"
    return ModelCallFailed(text, code=failure.code, retryable=failure.retryable, attempts=failure.attempts)


def _count(run: Run, scope: Scope, replied: ModelReplied) -> None:
    scope.spend(used_by(replied))
    if replied.cost_usd is None and scope.budget.max_cost_usd is not None:
        most = plural(scope.budget.max_tokens_total, "token")
        run.note(f"the price of {replied.model} is unknown: the cost limit cannot hold; the run is limited to {most}")


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
    """The reply and the number of attempts it took, those before a crash included."""
    failures = run.spec.recording.failures(*question.slot)
    attempt = len(failures)
    # A resume asks a model anew that was given up: only later attempts count towards the next giving up.
    before = max((number for number, each in enumerate(failures, 1) if each.wait_s is None), default=0)
    if failures and (asked_for := failures[-1].wait_s) is not None:
        # A crash broke this wait off, and the server's wish still holds.
        _pause(run, min(asked_for, failures[-1].at + asked_for - run.clock.utc().timestamp()))
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
            wait = None
            if not run.cancel.is_set() and may_retry(attempt - before, retryable=failure.retryable):
                pause = backoff(attempt - before, failure.retry_after, run.seed)
                wait = pause if pause < scope.deadline.remaining() else None
            failed = run.emit(
                ModelFailed(
                    session=question.session,
                    turn=question.turn,
                    ordinal=question.ordinal,
                    attempt=attempt,
                    request_hash=hashed,
                    message=failure.message,
                    retryable=failure.retryable,
                    wait_s=wait,
                    tokens_in=failure.tokens_in,
                    cost_usd=cost_of_failure(model, failure),
                    latency_s=latency,
                    waited_s=failure.waited_s,
                    too_long=failure.too_long,
                    cancelled=run.cancel.is_set(),
                    code=failure.code,
                )
            )
            scope.spend(used_by(failed))
            run.check_cancel()
            again_usd = _cost(model, prompt_tokens(request), request.max_output_tokens or 0)
            scope.check_spent(0.0 if wait is None else again_usd)
            if wait is None:
                failure.attempts = attempt
                raise
            _pause(run, wait)
            continue
        _give_back(scope, reply.waited_s)
        return replace(reply, latency_s=reply.latency_s or run.clock.now() - started), attempt


def _pause(run: Run, seconds: float) -> None:
    if seconds > 0 and run.cancel.wait(min(seconds, threading.TIMEOUT_MAX)):
        run.check_cancel()


def _complete(run: Run, scope: Scope, model: Model, request: ModelRequest, question: Question) -> ModelReply:
    """One attempt. Ctrl-C while waiting is a stop like any other, and what was sent counts. A model that raises an error of its own
    ends a sub-call as any failure does; only in the root session is it an error of the whole run.
    """
    heard = run.spec.on_text

    def on_text(piece: str) -> None:
        if heard is None or ON_TEXT in run.noted:
            return
        try:
            heard(question.session, piece)
        except Exception as error:  # noqa: BLE001  # foreign code: whatever it raises must not end the run
            run.noted.add(ON_TEXT)
            run.emit(Noted(text=f"on_text failed and is not called again: {error!r:.300}", level="warning"))

    try:
        reply: Any = model.complete(request, deadline=scope.deadline, on_text=on_text if heard else None)
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
    if not isinstance(reply, ModelReply):
        raise ConfigError(
            f"{model.name} returned a {type(reply).__name__}; `complete` returns a sonde.models.ModelReply"
        )
    return reply


def _give_back(scope: Scope, seconds: float) -> None:
    """Waiting for a person behind a command is not the run's own time."""
    if seconds:
        for each in scope.chain():
            each.deadline.add(seconds)
