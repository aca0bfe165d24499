"""Between a run and its model: every request asks the batch first, and afterwards reports what it used.

A batch that stops pauses its runs here, before a request and never within one: the journal then ends after a whole step, without an end
of the run, and a later start resumes it. Waiting for a slot does not count as the run's time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

from sonde.batch.limits import Answer, Ask, Closed, Later, Slot, Told
from sonde.core.deadline import Deadline
from sonde.errors import ModelCallFailed
from sonde.models.base import (
    OUTPUT_TOKENS,
    Model,
    ModelReply,
    ModelRequest,
    OnText,
    Price,
    TokenUsage,
    cost_of,
    cost_of_failure,
    output_limit,
    own_price,
    prompt_tokens,
    sampling_of,
    suited_mode,
)
from sonde.runtime.model_calls import LEAST_OUTPUT

LANDING_S = 0.05  # from a reply's return to its line in the journal


class Paused(BaseException):
    """The batch stops and this run with it, to be resumed. Not an Exception: no handler on the way may take it for a failure."""

    def __init__(self, reason: str = "asked to stop") -> None:
        super().__init__(reason)
        self.reason = reason


class Gate(Protocol):
    """The batch's limits as a worker reaches them. `counts` is False where nothing is limited and asking would only cost time."""

    @property
    def stopping(self) -> threading.Event: ...

    @property
    def counts(self) -> bool: ...

    def book(self, ask: Ask) -> Answer:
        """May this request go, and when?"""
        ...

    def tell(self, told: Told) -> None:
        """What it used."""
        ...


class LimitedModel:
    """A model behind the gate; one for each run, around the one that its worker has open."""

    def __init__(self, model: Model, gate: Gate, flights: Flights) -> None:
        self._model = model
        self._gate = gate
        self._flights = flights
        self._mean_out = 256.0

    @property
    def name(self) -> str:
        """The model's own name: what the record says and what a resume compares."""
        return self._model.name

    @property
    def guided(self) -> bool:
        """Whether the model is too weak to be left alone."""
        return suited_mode(self._model) == "guided"

    @property
    def max_output_tokens(self) -> int | None:
        """What the model's settings say."""
        return output_limit(self._model, 0) or None

    @property
    def price(self) -> Price | None:
        """What the model costs by the user's word."""
        return own_price(self._model)

    def sampling(self, *, thinks: bool) -> dict[str, Any]:
        """What goes along with each prompt of a run."""
        return sampling_of(self._model, thinks=thinks)

    def complete(self, request: ModelRequest, *, deadline: Deadline, on_text: OnText | None = None) -> ModelReply:
        """Ask once, when the batch lets it."""
        left_s = deadline.remaining()
        ask, sent, most = Ask(tokens=0, cost_usd=0.0), 0, request.max_output_tokens or OUTPUT_TOKENS
        if self._gate.counts:
            sent = prompt_tokens(request)
            least = min(most, max(LEAST_OUTPUT, int(2 * self._mean_out)))  # a reply that is cut wastes a turn
            ask = Ask(
                tokens=sent + int(min(most, self._mean_out)),
                cost_usd=self._usd(sent, most),
                least_usd=self._usd(sent, least),
            )
        full_usd = ask.cost_usd
        ask, waited_s = self._wait_for_slot(ask)
        if ask.cost_usd < full_usd:  # the last of the money: a shorter reply
            bare_usd = self._usd(sent, 0)
            paid = int(most * (ask.cost_usd - bare_usd) / (full_usd - bare_usd))
            request = replace(request, max_output_tokens=paid)
        with self._flights.flight():
            try:
                own = deadline if waited_s == 0 else Deadline(deadline.clock, left_s, stop=deadline.stop)
                reply = self._model.complete(request, deadline=own, on_text=on_text)
            except ModelCallFailed as failure:
                told = Told(
                    asked=ask,
                    tokens=failure.tokens_in,
                    cost_usd=cost_of_failure(self._model, failure) or 0.0,
                    failure=failure.message,
                    retry_after_s=failure.retry_after,
                    own_fault=failure.too_long,
                )
                self._gate.tell(told)
                failure.waited_s += waited_s
                raise
            except BaseException:  # our fault, or an interruption: give back what was booked, but for the prompt
                self._gate.tell(Told(asked=ask, tokens=ask.tokens, cost_usd=self._usd(sent, 0)))
                raise
        self._mean_out += (reply.usage.tokens_out - self._mean_out) / 8
        cost = reply.cost_usd if reply.cost_usd is not None else cost_of(self._model.name, reply.usage, self.price)
        self._gate.tell(Told(asked=ask, tokens=reply.usage.tokens_in + reply.usage.tokens_out, cost_usd=cost or 0.0))
        return replace(reply, waited_s=reply.waited_s + waited_s)

    def _usd(self, tokens_in: int, tokens_out: int) -> float:
        return cost_of(self._model.name, TokenUsage(tokens_in, tokens_out), self.price) or 0.0

    def _wait_for_slot(self, ask: Ask) -> tuple[Ask, float]:
        """Until the batch lets this request out; what it was granted, and how long that took."""
        started = time.monotonic()
        waited = False
        while True:
            if self._gate.stopping.is_set():
                self._pause()
            match self._gate.book(ask):
                case Closed(reason=reason):
                    self._pause(reason)
                case Later(delay_s=delay):
                    waited = True
                    self._gate.stopping.wait(delay)
                case Slot(delay_s=delay, most_usd=most_usd):
                    if most_usd is not None:
                        ask = replace(ask, cost_usd=most_usd)
                    if delay and self._gate.stopping.wait(delay):
                        self._gate.tell(Told(asked=ask))
                        self._pause()
                    return ask, time.monotonic() - started if waited or delay else 0.0

    def _pause(self, reason: str = "asked to stop") -> None:
        """Stop here, once the other requests of this run have landed and are on disk: they are paid for."""
        self._flights.wait()
        raise Paused(reason)


class Flights:
    """The requests of one run that are under way."""

    def __init__(self) -> None:
        self._count = 0
        self._landed = threading.Condition()

    @contextmanager
    def flight(self) -> Generator[None]:
        """One request, from its start to its reply."""
        with self._landed:
            self._count += 1
        try:
            yield
        finally:
            with self._landed:
                self._count -= 1
                self._landed.notify_all()

    def wait(self) -> None:
        """Until none is under way."""
        with self._landed:
            others = self._count > 0
            self._landed.wait_for(lambda: self._count == 0)
        if others:
            time.sleep(LANDING_S)
