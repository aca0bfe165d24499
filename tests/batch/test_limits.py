"""The limits that all workers share, over a clock that stands still until told."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings, strategies as st

from sonde.batch.limits import Ask, Closed, Later, Limiter, SharedLimits, Slot, Told
from sonde.testing import FrozenClock

SMALL = Ask(tokens=100, cost_usd=0.0)


def slot(limiter: Limiter, ask: Ask = SMALL) -> float:
    answer = limiter.book(ask)
    assert isinstance(answer, Slot)
    return answer.delay_s


def most_in_a_minute(times: list[float]) -> int:
    return max(sum(start <= time < start + 60 for time in times) for start in times)


@given(st.sampled_from([30.0, 60.0, 600.0, 6000.0]), st.floats(0.0, 0.5))
@settings(max_examples=20, deadline=None)
def test_requests_keep_the_rate_within_two_percent_and_use_it(per_minute: float, pause_s: float) -> None:
    clock = FrozenClock()
    limiter = Limiter(SharedLimits(requests_per_minute=per_minute), clock=clock)
    times: list[float] = []
    while clock.now() < 130 and len(times) < 600:
        times.append(clock.now() + slot(limiter))
        clock.advance(min(pause_s, 40 / per_minute))

    assert most_in_a_minute(times) <= per_minute * 1.02
    if times[-1] > 60:
        assert sum(time < 60 for time in times) >= per_minute * 0.98 - 1


def test_tokens_that_were_used_move_the_next_slots() -> None:
    clock = FrozenClock()
    limiter = Limiter(SharedLimits(tokens_per_minute=6000), clock=clock)
    sent = 0
    while True:
        clock.advance(slot(limiter))
        if clock.now() >= 120:
            break
        limiter.tell(Told(asked=SMALL, tokens=150))  # half as much again as was booked
        sent += 150

    assert 0.98 * 12_000 - 150 <= sent <= 1.02 * 12_000


@given(st.lists(st.tuples(st.floats(0, 0.4), st.floats(0, 1)), max_size=60), st.floats(0.1, 3))
def test_the_cost_limit_is_never_passed_and_closes_the_batch(calls: list[tuple[float, float]], cap: float) -> None:
    limiter = Limiter(SharedLimits(max_cost_usd=cap), clock=FrozenClock())
    flying: list[tuple[Ask, float]] = []
    for most, share in calls:
        ask = Ask(tokens=1, cost_usd=most, least_usd=most / 2)
        answer = limiter.book(ask)
        if isinstance(answer, Slot):
            if answer.most_usd is not None:
                assert not flying, "a request that was cut short is not alone"
                ask = replace(ask, cost_usd=answer.most_usd)
            flying.append((ask, ask.cost_usd * share))
        elif isinstance(answer, Later):
            assert flying, "told to wait for nobody"
        if len(flying) > 3 or isinstance(answer, Later):
            told, cost = flying.pop(0)
            limiter.tell(Told(asked=told, tokens=1, cost_usd=cost))
    for told, cost in flying:
        limiter.tell(Told(asked=told, tokens=1, cost_usd=cost))

    assert limiter.spent_usd <= cap * (1 + 1e-6)


def test_money_that_others_hold_is_waited_for_and_only_that() -> None:
    limiter = Limiter(SharedLimits(max_cost_usd=1.0), clock=FrozenClock())
    for cost in (0.1, 0.2, 0.3):  # their sum does not come out even in floats
        assert slot(limiter, Ask(tokens=1, cost_usd=cost)) == 0.0
    dear = Ask(tokens=1, cost_usd=0.9)
    assert isinstance(limiter.book(dear), Later)
    for cost in (0.3, 0.1, 0.2):
        limiter.tell(Told(asked=Ask(tokens=1, cost_usd=cost), tokens=1, cost_usd=cost))

    assert isinstance(limiter.book(dear), Closed)


def test_what_earlier_starts_spent_counts() -> None:
    limiter = Limiter(SharedLimits(max_cost_usd=1.0), spent_usd=1.0, clock=FrozenClock())

    assert isinstance(limiter.book(Ask(tokens=1, cost_usd=0.1)), Closed)


def test_a_wish_to_wait_holds_everybody_and_does_not_close() -> None:
    clock = FrozenClock()
    limiter = Limiter(SharedLimits(concurrency=1), clock=clock)
    for _ in range(9):
        limiter.tell(Told(asked=SMALL, failure="429", retry_after_s=7.0))

    assert slot(limiter) == 7.0
    clock.advance(7.0)
    assert slot(limiter) == 0.0


def test_a_model_that_answers_nobody_closes_the_batch_and_one_answer_in_between_does_not() -> None:
    limiter = Limiter(SharedLimits(concurrency=4), clock=FrozenClock())
    for _ in range(7):
        limiter.tell(Told(asked=SMALL, failure="refused"))
    limiter.tell(Told(asked=SMALL, tokens=5))
    for _ in range(7):
        limiter.tell(Told(asked=SMALL, failure="refused"))
        limiter.tell(Told(asked=SMALL, failure="too long", own_fault=True))
    assert slot(limiter) == 0.0

    limiter.tell(Told(asked=SMALL, failure="refused"))

    answer = limiter.book(SMALL)
    assert isinstance(answer, Closed)
    assert "refused" in answer.reason


def test_money_set_aside_by_a_worker_that_was_lost_is_free_again() -> None:
    limiter = Limiter(SharedLimits(max_cost_usd=1.0), clock=FrozenClock())
    dear = Ask(tokens=1, cost_usd=0.6)
    limiter.book(dear, "a")
    limiter.tell(Told(asked=dear, cost_usd=0.1), "a")
    limiter.book(dear, "a")

    assert isinstance(limiter.book(dear, "b"), Later)
    limiter.lost("a")
    assert isinstance(limiter.book(dear, "b"), Slot)
    assert limiter.spent_usd == 0.1


def test_requests_that_waited_for_the_same_moment_do_not_go_at_once() -> None:
    """Whatever they waited for: the server's wish, or tokens that a large request had taken."""
    held = Limiter(SharedLimits(requests_per_minute=60), clock=FrozenClock())
    held.tell(Told(asked=SMALL, failure="429", retry_after_s=30.0))
    assert [slot(held) for _ in range(3)] == [30.0, 31.0, 32.0]

    crowded = Limiter(SharedLimits(requests_per_minute=60, tokens_per_minute=60_000), clock=FrozenClock())
    slot(crowded, Ask(tokens=60_000, cost_usd=0.0))
    times = [slot(crowded, Ask(tokens=1, cost_usd=0.0)) for _ in range(3)]
    assert times[0] > 59 and all(later - earlier >= 1.0 for earlier, later in pairwise(times))


def test_of_two_requests_in_flight_the_one_that_lands_frees_its_own_money_only() -> None:
    limiter = Limiter(SharedLimits(max_cost_usd=1.0), clock=FrozenClock())
    large, small = Ask(tokens=1, cost_usd=0.6), Ask(tokens=1, cost_usd=0.3)
    limiter.book(large)
    limiter.book(small)

    limiter.tell(Told(asked=small))

    assert isinstance(limiter.book(large), Later)
    assert isinstance(limiter.book(small), Slot)
