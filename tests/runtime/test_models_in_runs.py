"""What a run makes of its models: failures, waits, overflow, prices, replies that were cut."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sonde.contexts.files import FilesContext
from sonde.core.budget import Budget
from sonde.core.deadline import Deadline
from sonde.core.events import Compacted, Event, ModelAsked, ModelFailed, Noted
from sonde.core.status import RunStatus
from sonde.errors import ErrorCode, ModelCallFailed
from sonde.models.base import ModelReply, ModelRequest, OnText, TokenUsage
from sonde.testing import FrozenClock, ScriptedModel, run_in_memory

LOOK = "text = read_file('a.txt')\nprint(text)"
FINISH = "FINAL('beta is 42 [a.txt:2]')"


def files() -> FilesContext:
    return FilesContext((), texts={"a.txt": "alpha\nbeta is 42\n"})


def reply(text: str, **more: Any) -> ModelReply:
    return replace(ModelReply(text=text, usage=TokenUsage(10, 10), model="m"), **more)


def watched(script: Any, **options: Any) -> tuple[Any, list[Event], ScriptedModel]:
    events: list[Event] = []
    model = script if isinstance(script, ScriptedModel) else ScriptedModel(script)
    return run_in_memory(model, "?", files(), on_event=events.append, **options), events, model


def test_an_unknown_price_under_a_cost_cap_is_said_once_and_tokens_go_on_counting() -> None:
    answer, events, _ = watched([reply(LOOK), reply(LOOK), reply(FINISH)])

    notes = [event.text for event in events if isinstance(event, Noted)]
    assert len([note for note in notes if "the price of m is unknown" in note]) == 1
    assert answer.record.runtime_ref.usage.tokens_in == 30


def test_a_reply_cut_at_its_length_is_said_to_the_model() -> None:
    _, _, model = watched([reply(LOOK, finish_reason="length"), FINISH])

    assert "was cut at its length limit" in model.requests[1].messages[-1].content


def test_waiting_for_a_person_is_left_out_of_the_time_also_when_the_attempt_fails() -> None:
    clock = FrozenClock()
    script = iter([ModelCallFailed("nobody came", retryable=True, retry_after=0.0, waited_s=500.0), LOOK, FINISH])

    def slow(_request: ModelRequest) -> Any:
        clock.advance(500)
        said = next(script)
        return said if isinstance(said, Exception) else reply(said, waited_s=500.0, latency_s=500.0)

    answer, events, _ = watched(slow, clock=clock, budget=Budget(max_wall_time_sec=60))

    assert answer.status is RunStatus.SUCCEEDED
    assert [event.waited_s for event in events if isinstance(event, ModelFailed)] == [500.0]
    assert answer.record.metrics.total_latency_s < 60


def test_parallel_waits_are_given_back_once() -> None:
    clock = FrozenClock()
    deadline = Deadline(clock, 100)
    clock.advance(50)
    for _ in range(10):
        deadline.add(30)
    clock.advance(10)
    deadline.add(15)

    assert deadline.elapsed() == pytest.approx(20)  # 60 passed; 20 to 60 was waiting, in parts twice


def test_an_attempt_that_outlasts_the_run_ends_it_for_time_and_not_for_the_model() -> None:
    clock = FrozenClock()

    def hangs(_request: ModelRequest) -> Any:
        clock.advance(100)
        return ModelCallFailed("did not finish in time", retryable=True)

    answer, _, _ = watched(hangs, clock=clock, budget=Budget(max_wall_time_sec=60))

    assert answer.status is RunStatus.PARTIAL
    assert answer.record.error is not None
    assert answer.record.error.code is ErrorCode.WALL_TIME_LIMIT_REACHED


@pytest.mark.requirement("O7")
def test_failed_attempts_use_up_tokens_and_stop_at_the_limit() -> None:
    failure = ModelCallFailed("502", retryable=True, retry_after=0.0, tokens_in=30_000)

    answer, events, _ = watched([LOOK, failure, failure, failure, FINISH], budget=Budget(max_tokens_total=50_000))

    assert answer.record.error is not None
    assert answer.record.error.code is ErrorCode.RECURSION_LIMIT_REACHED
    assert len([event for event in events if isinstance(event, ModelFailed)]) == 2
    assert answer.record.runtime_ref.usage.tokens_in > 50_000


def test_a_conversation_longer_than_the_model_reads_is_folded_and_asked_again() -> None:
    def narrow(request: ModelRequest) -> Any:
        if sum(len(message.content) for message in request.messages[1:]) > 8_000:
            return ModelCallFailed("400: maximum context length", too_long=True)
        return "print('z' * 4000)" if len(model.requests) < 7 else LOOK if len(model.requests) == 7 else FINISH

    model = ScriptedModel(narrow)
    answer, events, _ = watched(model)

    folded = [event for event in events if isinstance(event, Compacted)]
    assert folded and folded[0].tokens_after < folded[0].tokens_before
    assert "Earlier turns, one line each" in model.requests[-1].messages[1].content
    assert [message.role for message in model.requests[-1].messages[:3]] == ["system", "user", "assistant"]
    assert answer.status is RunStatus.SUCCEEDED


def test_a_prompt_that_cannot_be_folded_ends_the_run_with_the_models_words() -> None:
    answer, _, model = watched([ModelCallFailed("400: maximum context length", too_long=True), FINISH])

    assert answer.status is RunStatus.FAILED
    assert len(model.requests) == 1
    assert answer.record.error is not None
    assert "maximum context" in answer.record.error.message


@pytest.mark.requirement(97)
def test_at_ninety_percent_the_model_hears_that_this_is_its_last_turn() -> None:
    clock = FrozenClock()
    script = iter([LOOK, FINISH])

    def slow(_request: ModelRequest) -> str:
        clock.advance(55)
        return next(script)

    _, events, model = watched(slow, clock=clock, budget=Budget(max_wall_time_sec=60))

    assert "90 % of the time is used" in model.requests[1].messages[-1].content
    assert [message.role for message in model.requests[1].messages] == ["system", "user", "assistant", "user"]
    assert [event.kept for event in events if isinstance(event, ModelAsked)] == [0, 2]


def test_a_run_of_one_turn_says_so_at_once() -> None:
    _, _, model = watched([FINISH, FINISH], max_iterations=1)

    assert "This is the last turn you have" in model.requests[0].messages[-1].content


class Closing(ScriptedModel):
    """Knows whether it was closed."""

    closed = False

    def close(self) -> None:
        """Note it."""
        self.closed = True

    def complete(self, request: ModelRequest, *, deadline: Deadline, on_text: OnText | None = None) -> ModelReply:
        """Answer while open."""
        assert not self.closed
        return super().complete(request, deadline=deadline, on_text=on_text)


def test_a_model_of_the_caller_stays_open() -> None:
    model = Closing([LOOK, FINISH])
    watched(model)

    assert not model.closed


def test_in_typed_actions_a_second_slip_much_later_is_nudged_again() -> None:
    read = '{"type": "tool_call", "tool_name": "read_file", "args": {"path": "a.txt"}}'
    done = '{"type": "finalize", "output": {"answer": "42 [a.txt:2]"}}'

    answer, _, _ = watched(["Hm.", read, "Let me think.", done], mode="actions")

    assert answer.status is RunStatus.SUCCEEDED
