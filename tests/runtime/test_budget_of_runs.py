"""Budgets over whole runs: whatever model, code and tools do, usage passes a limit by the one reply in flight at most."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from sonde.contexts.files import FilesContext
from sonde.core.budget import Budget
from sonde.core.events import Event, ModelFailed, ModelReplied, StateChanged, StatusChanged
from sonde.core.record import RunRecord
from sonde.core.status import LOOP_TRANSITIONS, RUN_TRANSITIONS, LoopState, RunStatus
from sonde.errors import ErrorCode, ModelCallFailed
from sonde.models.base import ModelReply, ModelRequest, TokenUsage
from sonde.testing import FrozenClock, ScriptedModel, run_in_memory

CONTEXT = FilesContext((), texts={"a.txt": "alpha\nbeta is 42\n", "b.txt": "gamma\n" * 200})
CODE = [
    "x = 1",
    "print('y' * 3000)",
    "for i in range(40):\n    list_files()",
    "print(read_file('a.txt'))",
    "1 / 0",
    "r = llm_query('ask one')",
    "r = llm_batch([f'ask {i}' for i in range(7)])",
    "r = sub_rlm('look', depth=2)",
    "r = rlm_batch(['look one', 'look two', 'look three'])",
    "try:\n    r = delegate_subcall('look')\nexcept Exception as e:\n    print(e)",
    "while True:\n    budget()\n    grep('beta')",
    "FINAL('beta [a.txt:2]')",
    "just words",
]
DEEDS = st.sampled_from(CODE)
LIMITED = ("max_iterations", "max_tool_calls", "max_subcalls", "max_tokens_total", "max_cost_usd")


@dataclass
class Chaos:
    """A model that draws its replies, their length, price and time, and now and then fails."""

    deeds: list[str]
    price: float
    seconds: float
    failing: int
    clock: FrozenClock
    asked: int = 0
    largest: int = 0
    dearest: float = field(default=0.0)

    def __call__(self, request: ModelRequest) -> ModelReply | Exception:
        self.asked += 1
        self.clock.advance(self.seconds)
        sent = sum(len(message.content) for message in request.messages) // 4
        if self.failing and self.asked % self.failing == 0:
            self.largest = max(self.largest, sent)
            return ModelCallFailed("502", retryable=self.asked % 2 == 0, retry_after=0.0, tokens_in=sent)
        text = (
            "an answer" if request.messages[-1].content.startswith("ask") else self.deeds[self.asked % len(self.deeds)]
        )
        usage = TokenUsage(sent, len(text) // 4 + 50)
        self.largest = max(self.largest, usage.tokens_in + usage.tokens_out)
        self.dearest = max(self.dearest, self.price)
        return ModelReply(text=text, usage=usage, model="chaos", cost_usd=self.price)


budgets = st.builds(
    Budget,
    max_iterations=st.integers(1, 12),
    max_depth=st.integers(0, 3),
    max_tool_calls=st.integers(0, 60),
    max_subcalls=st.integers(0, 9),
    max_tokens_total=st.sampled_from([500, 4000, 12_000, 60_000]),
    max_tokens_per_subcall=st.none() | st.integers(60, 3000),
    max_cost_usd=st.none() | st.floats(0.001, 0.2),
    max_wall_time_sec=st.floats(1, 400),
)


@pytest.mark.requirement(133)
@pytest.mark.requirement(122)
@settings(max_examples=20, deadline=None)
@given(
    budget=budgets,
    deeds=st.lists(DEEDS, min_size=1, max_size=6),
    temper=st.tuples(
        st.sampled_from([0.0, 0.004, 0.05]), st.sampled_from([0.0, 1.0, 30.0]), st.sampled_from([0, 0, 3, 5])
    ),
    mode=st.sampled_from(["code", "code", "actions"]),
)
def test_no_run_passes_a_limit_by_more_than_the_replies_in_flight(
    budget: Budget, deeds: list[str], temper: tuple[float, float, int], mode: Any
) -> None:
    clock = FrozenClock()
    chaos = Chaos(deeds, *temper, clock)
    events: list[Event] = []
    answer = run_in_memory(
        ScriptedModel(chaos), "beta?", CONTEXT, budget=budget, clock=clock, mode=mode, on_event=events.append
    )

    used = answer.record.runtime_ref.usage
    flying = 16  # parallel replies
    assert used.iterations <= budget.max_iterations
    assert used.tool_calls <= budget.max_tool_calls
    assert used.llm_subcalls <= budget.max_subcalls
    assert used.depth_reached <= budget.max_depth
    assert used.tokens_in + used.tokens_out <= budget.max_tokens_total + flying * chaos.largest
    if budget.max_cost_usd is not None:
        assert used.cost_usd <= budget.max_cost_usd + flying * chaos.dearest
    assert answer.status in (RunStatus.SUCCEEDED, RunStatus.PARTIAL, RunStatus.FAILED)
    assert (answer.record.error is None) == (answer.status is RunStatus.SUCCEEDED)
    assert RunRecord.model_validate(answer.record.model_dump(mode="json"))
    follows_the_tables(events)
    adds_up(events, used)


def follows_the_tables(events: list[Event]) -> None:
    """Every move of the run and of each session is in its table."""
    status = RunStatus.INITIALIZED
    states: dict[str, LoopState] = {}
    for event in events:
        if isinstance(event, StatusChanged):
            assert RunStatus(event.status) in RUN_TRANSITIONS[status]
            status = RunStatus(event.status)
        if isinstance(event, StateChanged):
            before = states.get(event.session, LoopState.INITIALIZED)
            assert LoopState(event.state) in LOOP_TRANSITIONS[before]
            states[event.session] = LoopState(event.state)


def adds_up(events: list[Event], used: Any) -> None:
    """The record's tokens are those of the replies and of the failed attempts."""
    replies = [event for event in events if isinstance(event, ModelReplied)]
    failed = [event for event in events if isinstance(event, ModelFailed)]
    assert used.tokens_in == sum(e.tokens_in for e in replies) + sum(e.tokens_in for e in failed)
    assert used.tokens_out == sum(e.tokens_out for e in replies)


@pytest.mark.requirement(133)
@settings(max_examples=12, deadline=None)
@given(tokens=st.integers(600, 30_000), deeds=st.lists(st.sampled_from(CODE[:5]), min_size=1, max_size=4))
def test_without_parallel_calls_tokens_pass_by_one_reply_at_most(tokens: int, deeds: list[str]) -> None:
    chaos = Chaos(deeds, 0.0, 0.0, 0, FrozenClock())
    answer = run_in_memory(ScriptedModel(chaos), "beta?", CONTEXT, budget=Budget(max_tokens_total=tokens))

    used = answer.record.runtime_ref.usage
    assert used.tokens_in + used.tokens_out <= tokens + chaos.largest


def looping(code: str, price: float = 0.0, seconds: float = 0.0) -> tuple[ScriptedModel, FrozenClock]:
    clock = FrozenClock()
    return ScriptedModel(Chaos([code], price, seconds, 0, clock)), clock


@pytest.mark.requirement(96)
@pytest.mark.requirement(122)
@pytest.mark.parametrize(
    ("budget", "code", "expected"),
    [
        (Budget(max_iterations=3), "x = 1", ErrorCode.RECURSION_LIMIT_REACHED),
        (Budget(max_tool_calls=5), "list_files()\n" * 3, ErrorCode.RECURSION_LIMIT_REACHED),
        (Budget(max_subcalls=2), "llm_query('ask')", ErrorCode.RECURSION_LIMIT_REACHED),
        (Budget(max_subcalls=0), "sub_rlm('x')", ErrorCode.RECURSION_LIMIT_REACHED),
        (Budget(max_tokens_total=9000), "print('y' * 4000)", ErrorCode.RECURSION_LIMIT_REACHED),
        (Budget(max_cost_usd=0.05), "x = 1", ErrorCode.RECURSION_LIMIT_REACHED),
        (Budget(max_wall_time_sec=100), "x = 1", ErrorCode.WALL_TIME_LIMIT_REACHED),
        (Budget(max_depth=1), "r = sub_rlm('again', depth=1)", ErrorCode.RECURSION_LIMIT_REACHED),
    ],
    ids=["iterations", "tool calls", "sub-calls", "no sub-calls", "tokens", "cost", "wall time", "depth"],
)
def test_overflow_of_each_limit_ends_partial_with_its_code(budget: Budget, code: str, expected: ErrorCode) -> None:
    model, clock = looping(code, price=0.02, seconds=7.0)
    answer = run_in_memory(model, "beta?", CONTEXT, budget=budget, clock=clock)

    assert answer.status is RunStatus.PARTIAL
    assert answer.record.error is not None
    assert answer.record.error.code is expected
    assert answer.record.error.stage == "runtime_budget"


@pytest.mark.requirement(97)
@pytest.mark.parametrize("turns", [1, 9, 30])
def test_the_last_turn_by_time_comes_at_ninety_percent_wherever_that_falls(turns: int) -> None:
    model, clock = looping("x = 1", seconds=90 / turns)
    answer = run_in_memory(model, "beta?", CONTEXT, budget=Budget(max_wall_time_sec=100), clock=clock)

    assert answer.record.error is not None
    assert answer.record.error.code is ErrorCode.WALL_TIME_LIMIT_REACHED
    assert answer.record.runtime_ref.usage.iterations == turns + 1
