"""The two state machines go where their tables lead, and nowhere else."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from sonde.core.status import LOOP_TRANSITIONS, RUN_TRANSITIONS, InvalidTransition, LoopState, RunStatus, advance

RUN_ENDS = {RunStatus.SUCCEEDED, RunStatus.FAILED, RunStatus.PARTIAL}
LOOP_ENDS = {LoopState.COMPLETED, LoopState.TERMINATED_BUDGET, LoopState.FAILED}


@pytest.mark.requirement(77)
@given(st.lists(st.sampled_from(RunStatus), max_size=30))
def test_no_sequence_of_wishes_takes_a_run_outside_its_table(wishes: list[RunStatus]) -> None:
    status = RunStatus.INITIALIZED
    for wish in wishes:
        if wish in RUN_TRANSITIONS[status]:
            status = advance(RUN_TRANSITIONS, status, wish)
            continue
        with pytest.raises(InvalidTransition):
            advance(RUN_TRANSITIONS, status, wish)


@pytest.mark.requirement(130)
@pytest.mark.requirement(137)
@given(st.lists(st.sampled_from(LoopState), max_size=30))
def test_no_sequence_of_wishes_takes_a_loop_outside_its_table(wishes: list[LoopState]) -> None:
    state = LoopState.INITIALIZED
    for wish in wishes:
        if wish in LOOP_TRANSITIONS[state]:
            state = advance(LOOP_TRANSITIONS, state, wish)
            continue
        with pytest.raises(InvalidTransition):
            advance(LOOP_TRANSITIONS, state, wish)


@pytest.mark.requirement(77)
def test_a_run_has_the_six_states_and_three_ends() -> None:
    assert {status.value for status in RunStatus} == {
        "initialized",
        "running",
        "succeeded",
        "failed",
        "partial",
        "terminated_budget",
    }
    assert {status for status, after in RUN_TRANSITIONS.items() if not after} == RUN_ENDS


@pytest.mark.requirement(96)
def test_a_run_out_of_budget_ends_partial_or_failed() -> None:
    assert RUN_TRANSITIONS[RunStatus.TERMINATED_BUDGET] == {RunStatus.PARTIAL, RunStatus.FAILED}


@pytest.mark.requirement(130)
def test_the_loop_is_exactly_the_declared_machine() -> None:
    ends = {LoopState.TERMINATED_BUDGET, LoopState.FAILED}
    steps = {state: after - ends for state, after in LOOP_TRANSITIONS.items() if state not in LOOP_ENDS}

    assert steps == {
        LoopState.INITIALIZED: {LoopState.PLANNING},
        LoopState.PLANNING: {LoopState.ACTING, LoopState.DELEGATING, LoopState.FINALIZING},
        LoopState.ACTING: {LoopState.PLANNING},
        LoopState.DELEGATING: {LoopState.PLANNING},
        LoopState.FINALIZING: {LoopState.COMPLETED},
    }
    assert all(ends <= LOOP_TRANSITIONS[state] for state in steps)
    assert all(not LOOP_TRANSITIONS[state] for state in LOOP_ENDS)


def test_a_refused_transition_names_what_is_allowed() -> None:
    with pytest.raises(InvalidTransition, match="succeeded to running; allowed: nothing"):
        advance(RUN_TRANSITIONS, RunStatus.SUCCEEDED, RunStatus.RUNNING)
