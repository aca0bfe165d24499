"""The gate between a run and its model: asks first, tells afterwards, pauses without losing what was paid."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import Pipe

import pytest

from sonde.batch.gate import Flights, LimitedModel, Paused
from sonde.batch.limits import Answer, Ask, Closed, Later, Limiter, SharedLimits, Slot, Told
from sonde.batch.worker import Wire, WireGate
from sonde.core.deadline import Deadline, SystemClock
from sonde.errors import ModelCallFailed
from sonde.models import ModelSettings, open_model
from sonde.models.base import Message, ModelReply, ModelRequest, OnText, Price, TokenUsage, cost_of
from sonde.testing import FrozenClock, ScriptedModel, ScriptedReply, ScriptedServer

REQUEST = ModelRequest(messages=[Message("user", "x" * 400)], max_output_tokens=100)


@dataclass(slots=True)
class ScriptedGate:
    """Answers bookings in order, and keeps what it was told."""

    answers: list[Answer] = field(default_factory=list[Answer])
    told: list[Told] = field(default_factory=list[Told])
    asked: list[Ask] = field(default_factory=list[Ask])
    stopping: threading.Event = field(default_factory=threading.Event)
    counts: bool = True
    limiter: Limiter | None = None

    def book(self, ask: Ask) -> Answer:
        self.asked.append(ask)
        if self.limiter is not None:
            return self.limiter.book(ask)
        return self.answers.pop(0) if self.answers else Slot(delay_s=0.0)

    def tell(self, told: Told) -> None:
        self.told.append(told)


class Broken:
    """A model with a fault of its own."""

    name = "broken"

    def complete(self, request: ModelRequest, *, deadline: Deadline, on_text: OnText | None = None) -> ModelReply:
        raise ZeroDivisionError


def forever() -> Deadline:
    return Deadline(SystemClock(), None)


def test_a_request_is_asked_for_by_its_size_and_price_and_told_by_what_it_used() -> None:
    gate = ScriptedGate()
    model = LimitedModel(ScriptedModel(["short"], name="openai:gpt-4o-mini", cost_usd=0.25), gate, Flights())

    reply = model.complete(REQUEST, deadline=forever())

    assert model.name == "openai:gpt-4o-mini"
    assert gate.asked[0].tokens == 100 + 100
    assert gate.asked[0].cost_usd > 0
    assert gate.told == [Told(asked=gate.asked[0], tokens=102, cost_usd=0.25)]
    assert reply.waited_s == 0


def test_the_last_of_the_money_buys_a_shorter_reply() -> None:
    scripted = ScriptedModel(["short"], name="openai:gpt-4o-mini")
    limiter = Limiter(SharedLimits(max_cost_usd=0.002), clock=FrozenClock())
    gate = ScriptedGate(limiter=limiter)
    long = replace(REQUEST, max_output_tokens=100_000)

    LimitedModel(scripted, gate, Flights()).complete(long, deadline=forever())

    (sent,) = scripted.requests
    assert sent.max_output_tokens is not None
    assert 512 <= sent.max_output_tokens < 100_000
    assert cost_of(scripted.name, TokenUsage(100, sent.max_output_tokens)) == pytest.approx(0.002, rel=0.01)
    assert gate.told[0].asked.cost_usd == pytest.approx(0.002)


def test_waiting_for_a_slot_is_not_the_runs_own_time() -> None:
    gate = ScriptedGate([Later(delay_s=0.01), Slot(delay_s=0.05)])
    model = LimitedModel(ScriptedModel(["ok"]), gate, Flights())
    nearly_over = Deadline(SystemClock(), 0.03)

    reply = model.complete(REQUEST, deadline=nearly_over)

    assert reply.waited_s >= 0.06
    assert len(gate.asked) == 2


def test_waiting_for_money_that_others_hold_is_not_the_runs_own_time_either() -> None:
    gate = ScriptedGate([Later(delay_s=0.05), Slot(delay_s=0.0)])
    model = LimitedModel(ScriptedModel(["ok"]), gate, Flights())

    reply = model.complete(REQUEST, deadline=Deadline(SystemClock(), 0.03))

    assert reply.waited_s >= 0.05


def test_what_a_request_had_booked_is_given_back_when_its_model_breaks() -> None:
    gate = ScriptedGate()

    with pytest.raises(ZeroDivisionError):
        LimitedModel(Broken(), gate, Flights()).complete(REQUEST, deadline=forever())

    assert [told.asked for told in gate.told] == gate.asked


def test_a_failure_is_told_and_goes_on_to_the_run() -> None:
    gate = ScriptedGate()
    failing = ScriptedModel([ModelCallFailed("busy", retryable=True, retry_after=3.0, tokens_in=7)])

    with pytest.raises(ModelCallFailed):
        LimitedModel(failing, gate, Flights()).complete(REQUEST, deadline=forever())

    assert (gate.told[0].failure, gate.told[0].retry_after_s, gate.told[0].tokens) == ("busy", 3.0, 7)


def test_a_reply_that_breaks_off_costs_its_prompt() -> None:
    gate = ScriptedGate()
    with ScriptedServer(ScriptedReply(raw=b'{"choices": [')) as server:
        settings = ModelSettings(base_url=server.base_url, price=Price(input=100.0, output=100.0))
        with pytest.raises(ModelCallFailed):
            LimitedModel(open_model("openai:x", settings), gate, Flights()).complete(REQUEST, deadline=forever())

    assert gate.told[0].cost_usd == pytest.approx(100 * 100e-6)


def test_a_closed_gate_or_a_stop_pauses_the_run_before_the_model_is_asked() -> None:
    silent = ScriptedModel([])
    with pytest.raises(Paused):
        LimitedModel(silent, ScriptedGate([Closed(reason="spent")]), Flights()).complete(REQUEST, deadline=forever())
    stopped = ScriptedGate()
    stopped.stopping.set()
    with pytest.raises(Paused):
        LimitedModel(silent, stopped, Flights()).complete(REQUEST, deadline=forever())

    assert silent.requests == []
    assert not issubclass(Paused, Exception), "no handler on the way may take it for a failure"


class SlowModel:
    """Answers when it is let."""

    name = "slow"

    def __init__(self) -> None:
        self.asked, self.let = threading.Event(), threading.Event()
        self.landed: list[str] = []

    def complete(self, request: ModelRequest, *, deadline: Deadline, on_text: OnText | None = None) -> ModelReply:
        self.asked.set()
        assert self.let.wait(60)
        self.landed.append("late")
        return ScriptedModel(["late"]).complete(request, deadline=deadline)


def test_a_run_that_pauses_waits_for_its_other_requests_to_land() -> None:
    slow, gate, flights = SlowModel(), ScriptedGate(), Flights()

    def other() -> None:
        LimitedModel(slow, gate, flights).complete(REQUEST, deadline=forever())

    def pausing() -> None:
        with pytest.raises(Paused):
            LimitedModel(ScriptedModel([]), gate, flights).complete(REQUEST, deadline=forever())
        slow.landed.append("paused")

    threads = [threading.Thread(target=other), threading.Thread(target=pausing)]
    threads[0].start()
    assert slow.asked.wait(60)
    gate.stopping.set()
    threads[1].start()
    slow.let.set()
    for thread in threads:
        thread.join(60)

    assert slow.landed == ["late", "paused"]


def test_who_asks_after_the_stop_is_not_left_waiting_for_a_driver_that_is_gone() -> None:
    near, far = Pipe()
    gate = WireGate(Wire(near), counts=True)
    far.close()
    gate.stop()

    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(gate.book, Ask(tokens=1, cost_usd=0.0)).result(timeout=60)

    assert isinstance(answer, Closed)
    near.close()
