"""The cap on money holds for calls in flight, a reply that came whole is not paid for twice, and no wish to wait ends a run."""

from __future__ import annotations

import threading

import pytest

from sonde.contexts.files import FilesContext
from sonde.core.cancellation import Stop
from sonde.core.events import Event, ModelFailed
from sonde.core.status import RunStatus
from sonde.errors import ErrorCode, ModelCallFailed
from sonde.models import ModelReply, ModelRequest, ModelSettings, TokenUsage, open_model
from sonde.models.base import Price
from sonde.testing import ScriptedModel, ScriptedReply, ScriptedServer, run_in_memory

BATCH = "print(llm_batch([f'ask {i}' for i in range(12)]))"
LOOK = "print(read_file('a.txt'))"
FINISH = "FINAL('beta is 42 [a.txt:2]')"


def files() -> FilesContext:
    return FilesContext((), texts={"a.txt": "alpha\nbeta is 42\n"})


def ignore(_session: str, _text: str) -> None:
    pass


@pytest.mark.parametrize("name", ["openai:gpt-4o", "gpt-4o"])
def test_calls_in_flight_do_not_pass_the_cap_on_money_together(name: str) -> None:
    together = threading.Barrier(12)

    class Dear(ScriptedModel):
        """Answers when all twelve have come, or when no more of them do."""

        def complete(self, request: ModelRequest, **options: object) -> ModelReply:
            asked = request.messages[-1].content.startswith("ask")
            if asked:
                try:
                    together.wait(0.3)
                except threading.BrokenBarrierError:
                    pass
            usage = TokenUsage(10, 10)
            return ModelReply(text="yes" if asked else BATCH, usage=usage, model=name, cost_usd=0.02 if asked else 0.0)

    answer = run_in_memory(Dear([], name=name), "?", files(), max_cost_usd=0.05, max_iterations=1)

    assert 0 < answer.record.runtime_ref.usage.cost_usd <= 0.05


@pytest.mark.parametrize("name", ["command:gpt-4o", "local:gpt-4o"])
def test_what_is_free_is_not_held_back_for_money_whatever_its_name(name: str) -> None:
    answer = run_in_memory(ScriptedModel([LOOK, FINISH], name=name), "?", files(), max_cost_usd=0.000001)

    assert answer.status is RunStatus.SUCCEEDED


def test_a_reply_that_money_cannot_pay_whole_is_asked_for_shorter() -> None:
    model = ScriptedModel([LOOK, FINISH], name="openai:gpt-4o-mini")
    answer = run_in_memory(model, "?", files(), max_cost_usd=0.002)  # 4,096 tokens of output alone would be 0.0025

    assert answer.status is RunStatus.SUCCEEDED
    assert all(256 <= (each.max_output_tokens or 0) < 3_400 for each in model.requests)


def test_a_call_that_money_does_not_pay_is_not_made() -> None:
    model = ScriptedModel([LOOK, FINISH], name="openai:gpt-4o-mini")
    answer = run_in_memory(model, "?", files(), max_cost_usd=0.0001)

    assert model.requests == []
    assert answer.status is RunStatus.PARTIAL


@pytest.mark.parametrize("cut_after", [2, 3])
def test_a_line_that_breaks_after_the_end_of_a_streamed_reply_loses_nothing(cut_after: int) -> None:
    events: list[Event] = []
    script = [ScriptedReply(text=LOOK, cut_after=cut_after), ScriptedReply(text=FINISH, cut_after=cut_after)]
    with ScriptedServer(script) as server:
        model = open_model("openai:x", ModelSettings(base_url=server.base_url))
        answer = run_in_memory(model, "?", files(), on_event=events.append, on_text=ignore)

    assert answer.status is RunStatus.SUCCEEDED
    assert not [each for each in events if isinstance(each, ModelFailed)]


def test_a_server_that_wants_to_be_asked_in_a_thousand_years_is_waited_for_until_somebody_stops_it() -> None:
    stop = Stop()

    def watch(event: Event) -> None:
        if isinstance(event, ModelFailed):
            threading.Timer(0.05, stop.set).start()

    wish = ModelCallFailed("later", retryable=True, retry_after=1e11)
    answer = run_in_memory(
        ScriptedModel([wish]), "?", files(), cancel=stop, on_event=watch, max_wall_time_sec=float("inf")
    )

    assert answer.record.error is not None
    assert answer.record.error.code is ErrorCode.RECURSION_LIMIT_REACHED
    assert answer.record.error.message == "cancelled by the user"


@pytest.mark.parametrize(
    ("broken", "received"),
    [(ScriptedReply(pieces=["four" * 100, "more"], cut_after=1), 100), (ScriptedReply(raw=b'{"choices": ['), 0)],
)
def test_replies_that_break_off_cost_what_was_sent_and_received_and_the_cap_holds(
    broken: ScriptedReply, received: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sonde.models.base.FIRST_PAUSE_S", 0.0)
    events: list[Event] = []
    with ScriptedServer(broken) as server:
        price = Price(input=100.0, output=1000.0)
        model = open_model("openai:x", ModelSettings(base_url=server.base_url, price=price, max_output_tokens=300))
        answer = run_in_memory(model, "?", files(), on_event=events.append, on_text=ignore, max_cost_usd=1.0)

    failed = [each for each in events if isinstance(each, ModelFailed)]
    assert failed
    costs = [(each.tokens_in - received) * 100e-6 + received * 1000e-6 for each in failed]
    assert [each.cost_usd for each in failed] == pytest.approx(costs)
    assert answer.record.runtime_ref.usage.cost_usd == pytest.approx(sum(costs))
    assert sum(costs) <= 1.0


def test_a_next_attempt_that_the_money_left_does_not_pay_is_not_made() -> None:
    lost = [ModelCallFailed("broke", retryable=True, retry_after=0.0, tokens_in=10_000) for _ in range(4)]
    model = ScriptedModel(lost, name="openai:gpt-4o-mini")  # 0.0015 is lost each time; a whole reply may cost 0.003
    answer = run_in_memory(model, "?", files(), max_cost_usd=0.0034)

    assert 0 < len(model.requests) < 4
    assert "another attempt" in str(answer.record.model_dump())


@pytest.mark.parametrize("status", [400, 429])
def test_a_refusal_costs_nothing(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sonde.models.base.FIRST_PAUSE_S", 0.0)
    with ScriptedServer(ScriptedReply(status=status)) as server:
        settings = ModelSettings(base_url=server.base_url, price=Price(input=100.0, output=100.0))
        answer = run_in_memory(open_model("openai:x", settings), "?", files(), max_cost_usd=1.0)

    assert answer.record.runtime_ref.usage.cost_usd == 0
