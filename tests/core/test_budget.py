"""The budget holds, for every order of charges, from every depth and every thread."""

from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from sonde.core.budget import CONTRACT_MAXIMA, Budget, Scope, reserved
from sonde.core.deadline import Deadline, SystemClock
from sonde.core.usage import Usage
from sonde.errors import BudgetExceeded, ConfigError, ErrorCode, RecursionLimitReached, WallTimeLimitReached


@dataclass
class HandClock:
    """A clock that moves when told."""

    seconds: float = 0.0

    def now(self) -> float:
        return self.seconds

    def utc(self) -> datetime:
        return datetime.fromtimestamp(self.seconds, UTC)


def scope(clock: HandClock | None = None, **knobs: Any) -> Scope:
    budget = Budget(**knobs)
    return Scope(budget, Deadline(clock or HandClock(), budget.max_wall_time_sec))


def ask(one: Scope, tokens_in: int, tokens_out: int, cost: float, *, obedient: bool = False) -> bool:
    """One model call as the session makes it: reserve, call, spend, check. False when it was refused."""
    try:
        with reserved(one, tokens_in, tokens_out, cost) as reservation:
            given = reservation.max_output_tokens if obedient else tokens_out
            one.spend(Usage(tokens_in=tokens_in, tokens_out=given, cost_usd=cost))
        one.check_spent()
    except BudgetExceeded:
        return False
    return True


COUNTERS = {"iterations": "iterations", "tool_calls": "tool_calls", "subcalls": "llm_subcalls"}


@given(
    st.integers(1, 20),
    st.lists(st.tuples(st.sampled_from(sorted(COUNTERS)), st.integers(0, 5)), max_size=60),
)
def test_counts_never_pass_their_limit(limit: int, charges: list[tuple[str, int]]) -> None:
    one = scope(max_iterations=limit, max_tool_calls=limit, max_subcalls=limit)
    for knob, count in charges:
        before, fits = one.usage, getattr(one.usage, COUNTERS[knob]) + count <= limit
        if fits:
            one.charge(**{knob: count})
            continue
        with pytest.raises(RecursionLimitReached) as refused:
            one.charge(**{knob: count})
        assert one.usage == before
        assert refused.value.limit == f"max_{knob}"

    assert max(one.usage.iterations, one.usage.tool_calls, one.usage.llm_subcalls) <= limit


calls = st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300), st.floats(0, 0.2)), max_size=40)


@pytest.mark.requirement("O8")
@given(st.integers(1, 2000), calls)
def test_tokens_are_never_passed_by_a_model_that_keeps_to_its_allowance(
    limit: int, wanted: list[tuple[int, int, float]]
) -> None:
    one = scope(max_tokens_total=limit, max_cost_usd=None)
    for tokens_in, tokens_out, _ in wanted:
        ask(one, tokens_in, tokens_out, 0.0, obedient=True)

    assert one.usage.tokens_total <= limit


@pytest.mark.requirement("O7")
@given(st.integers(1, 2000), st.floats(0.01, 1.0), calls)
def test_a_model_that_ignores_its_allowance_passes_the_limit_by_one_reply(
    limit: int, money: float, wanted: list[tuple[int, int, float]]
) -> None:
    one = scope(max_tokens_total=limit, max_cost_usd=money)
    for tokens_in, tokens_out, cost in wanted:
        before = one.usage
        went_on = ask(one, tokens_in, tokens_out, cost)
        assert before.tokens_total <= limit or not went_on
        if one.usage.tokens_total > limit:
            assert not went_on
            assert one.usage.tokens_total - limit <= tokens_in + tokens_out
            break

    assert one.usage.cost_usd <= money * 1.0001 + 1e-9


@settings(max_examples=20, deadline=None)
@given(st.integers(500, 5000), st.integers(2, 12), st.booleans())
def test_threads_together_pass_the_limit_by_no_more_than_the_replies_in_flight(
    limit: int, threads: int, obedient: bool
) -> None:
    one = scope(max_tokens_total=limit, max_tool_calls=limit // 10, max_cost_usd=limit / 1000)
    start = threading.Barrier(threads)

    def work(number: int) -> None:
        start.wait(60)
        for _ in range(40):
            ask(one, 7 + number, 30, 0.02, obedient=obedient)
            try:
                one.charge(tool_calls=1)
            except RecursionLimitReached:
                pass

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))

    in_flight = 0 if obedient else threads * (7 + threads + 30)
    assert one.usage.tokens_total <= limit + in_flight
    assert one.usage.tool_calls <= limit // 10
    assert one.usage.cost_usd <= limit / 1000 * 1.0002
    assert one.left()["tokens"] == max(0, limit - one.usage.tokens_total)


@pytest.mark.requirement(9)
@pytest.mark.requirement(133)
@settings(max_examples=50)
@given(
    st.integers(1, 30),
    st.integers(10, 3000),
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["turn", "tool", "model", "child"])), max_size=120),
)
def test_the_whole_tree_stays_inside_the_roots_budget(turns: int, tokens: int, steps: list[tuple[int, str]]) -> None:
    root = scope(max_iterations=turns, max_tool_calls=turns, max_subcalls=turns, max_tokens_total=tokens, max_depth=3)
    tree = [root]
    for number, step in steps:
        one = tree[number % len(tree)]
        try:
            _step(one, step, tree)
        except BudgetExceeded:
            continue

    assert root.usage.iterations <= turns
    assert root.usage.tool_calls <= turns
    assert root.usage.llm_subcalls <= turns
    assert root.usage.tokens_total <= tokens
    assert root.usage.depth_reached <= 3


def _step(one: Scope, step: str, tree: list[Scope]) -> None:
    match step:
        case "turn":
            one.charge(iterations=1)
        case "tool":
            one.charge(tool_calls=1)
        case "model":
            with reserved(one, 5, 20) as reservation:
                one.spend(Usage(tokens_in=5, tokens_out=reservation.max_output_tokens))
        case _:
            one.check_depth(one.depth + 1)
            one.charge(subcalls=1)
            tree.append(one.share(2))


@pytest.mark.requirement("O6")
@given(st.integers(1, 20), st.integers(100, 10_000))
def test_siblings_together_leave_something_for_their_parent(siblings: int, tokens: int) -> None:
    root = scope(max_tokens_total=tokens, max_iterations=100, max_cost_usd=1.0)
    shares = [root.share(siblings) for _ in range(siblings)]

    assert sum(share.budget.max_tokens_total for share in shares) < tokens
    assert sum(share.budget.max_iterations for share in shares) < 100 or siblings > 50
    assert sum(share.budget.max_cost_usd or 0 for share in shares) < 1.0


@pytest.mark.requirement(109)
def test_no_charge_is_taken_after_time_is_up() -> None:
    clock = HandClock()
    one = scope(clock, max_wall_time_sec=10)
    clock.seconds = 10

    for act in (lambda: one.charge(iterations=1), lambda: one.reserve(1, 1), one.check_spent):
        with pytest.raises(WallTimeLimitReached) as refused:
            act()
        assert refused.value.code is ErrorCode.WALL_TIME_LIMIT_REACHED
    assert one.usage.iterations == 0


@pytest.mark.requirement(97)
@given(st.floats(0.1, 1000), st.floats(0, 1.5))
def test_a_run_must_finish_from_ninety_percent_of_its_time_on(seconds: float, share: float) -> None:
    clock = HandClock()
    one = scope(clock, max_wall_time_sec=seconds)
    clock.seconds = seconds * share

    assert one.last_by_time(clock.seconds) == ("wall_time" if clock.seconds >= 0.9 * seconds else None)


@pytest.mark.requirement(97)
@given(st.floats(0.1, 1000), st.floats(0, 0.89), st.floats(0, 1))
def test_a_turn_is_the_last_when_a_second_call_would_not_fit(seconds: float, used: float, call: float) -> None:
    one = scope(HandClock(), max_wall_time_sec=seconds)

    last = one.last_by_time(used * seconds, call * seconds)

    assert last == ("last_call" if used * seconds + 2 * call * seconds > seconds else None)


def test_waiting_that_was_given_back_is_not_the_runs_time() -> None:
    clock = HandClock()
    one = scope(clock, max_wall_time_sec=10)
    clock.seconds = 60
    one.deadline.add(55)

    assert one.deadline.remaining() == 5
    one.charge(iterations=1)


@pytest.mark.requirement(108)
def test_every_limit_but_time_has_the_documents_one_code() -> None:
    one = scope(max_iterations=1, max_depth=1, max_tool_calls=0, max_subcalls=0, max_tokens_total=5, max_cost_usd=0.1)
    one.charge(iterations=1)
    acts = {
        "max_iterations": lambda: one.charge(iterations=1),
        "max_tool_calls": lambda: one.charge(tool_calls=1),
        "max_subcalls": lambda: one.charge(subcalls=1),
        "max_depth": lambda: one.check_depth(2),
        "max_tokens_total": lambda: one.reserve(6, 10),
        "max_cost_usd": lambda: one.reserve(1, 1, 0.2),
    }
    for limit, act in acts.items():
        with pytest.raises(RecursionLimitReached) as refused:
            act()
        assert (refused.value.code, refused.value.limit) == (ErrorCode.RECURSION_LIMIT_REACHED, limit)
        assert refused.value.retryable


@pytest.mark.parametrize(
    "knobs",
    [
        {"max_iterations": 0},
        {"max_tokens_total": -1},
        {"max_cost_usd": float("nan")},
        {"max_wall_time_sec": 0},
        {"max_depth": -1},
        {"max_tool_calls": "many"},
        {"max_subcalls": True},
        {"max_iterations": None},
        {"max_tokens_total": math.inf},
        {"max_tool_calls": -math.inf},
        {"max_wall_time_sec": -math.inf},
        {"max_iterations": 2.5},
        {"max_subcalls": 0.5},
        {"max_tokens_per_subcall": 0},
        {"sampling_seed": "seven"},
        {"sampling_seed": 1.5},
        {"sampling_seed": True},
    ],
)
def test_a_budget_that_makes_no_sense_is_refused(knobs: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(knobs))):
        Budget(**knobs)


def test_a_count_that_python_writes_as_a_float_is_a_whole_number_all_the_same() -> None:
    tokens: Any = 1e6

    assert repr(Budget(max_tokens_total=tokens).max_tokens_total) == "1000000"


@pytest.mark.requirement(86)
@pytest.mark.requirement(87)
@pytest.mark.requirement(88)
@pytest.mark.requirement(89)
@pytest.mark.requirement(90)
@pytest.mark.requirement(92)
@pytest.mark.parametrize(
    ("knob", "maximum"),
    [
        ("max_depth", 3),
        ("max_iterations", 60),
        ("max_tool_calls", 220),
        ("max_subcalls", 90),
        ("max_tokens_total", 320_000),
        ("max_wall_time_sec", 300),
    ],
)
def test_the_contracts_maxima_bind_and_are_named(knob: str, maximum: int) -> None:
    assert getattr(CONTRACT_MAXIMA.override(CONTRACT_MAXIMA, **{knob: maximum}), knob) == maximum
    with pytest.raises(ConfigError, match=f"{knob}={maximum + 1} .*{maximum}"):
        CONTRACT_MAXIMA.override(CONTRACT_MAXIMA, **{knob: maximum + 1})


def test_a_budget_without_an_end_in_time_survives_its_record_and_can_be_shared() -> None:
    endless = Budget(max_wall_time_sec=math.inf)

    again = Budget(**msgspec.json.decode(msgspec.json.encode(endless.as_dict())))

    assert again == endless
    share = Scope(again, Deadline(SystemClock(), again.max_wall_time_sec)).share(2)
    assert share.left()["seconds"] == math.inf
    assert share.last_by_time(1e9, 1e9) is None


@pytest.mark.requirement(91)
def test_cost_and_seed_are_optional() -> None:
    assert Budget(max_cost_usd=None).max_cost_usd is None
    assert Budget(sampling_seed=7).as_dict()["sampling_seed"] == 7
    assert scope(max_cost_usd=None).left()["cost_usd"] is None


def test_the_real_clock_moves_forward() -> None:
    clock = SystemClock()

    assert clock.now() <= clock.now()
    assert clock.utc().tzinfo is UTC
