"""Two state machines as two tables: the status of a run and the state of a session's loop.

A transition outside its table is a bug in Sonde and raises an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from sonde.errors import UnexpectedRuntimeError


class RunStatus(StrEnum):
    """Where a run is (R77)."""

    INITIALIZED = "initialized"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    PARTIAL = "partial"
    TERMINATED_BUDGET = "terminated_budget"


class LoopState(StrEnum):
    """Where a session's loop is (R130)."""

    INITIALIZED = "initialized"
    PLANNING = "planning"
    ACTING = "acting"
    DELEGATING = "delegating"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    TERMINATED_BUDGET = "terminated_budget"
    FAILED = "failed"


class InvalidTransition(UnexpectedRuntimeError):
    """A state machine was asked for a transition that its table does not have."""


RUN_TRANSITIONS: Mapping[RunStatus, frozenset[RunStatus]] = {
    RunStatus.INITIALIZED: frozenset({RunStatus.RUNNING}),
    RunStatus.RUNNING: frozenset(
        {RunStatus.SUCCEEDED, RunStatus.FAILED, RunStatus.PARTIAL, RunStatus.TERMINATED_BUDGET}
    ),
    RunStatus.TERMINATED_BUDGET: frozenset({RunStatus.PARTIAL, RunStatus.FAILED}),
    RunStatus.SUCCEEDED: frozenset(),
    RunStatus.FAILED: frozenset(),
    RunStatus.PARTIAL: frozenset(),
}

_ENDS = frozenset({LoopState.TERMINATED_BUDGET, LoopState.FAILED})

LOOP_TRANSITIONS: Mapping[LoopState, frozenset[LoopState]] = {
    LoopState.INITIALIZED: frozenset({LoopState.PLANNING}) | _ENDS,
    LoopState.PLANNING: frozenset({LoopState.ACTING, LoopState.DELEGATING, LoopState.FINALIZING}) | _ENDS,
    LoopState.ACTING: frozenset({LoopState.PLANNING}) | _ENDS,
    LoopState.DELEGATING: frozenset({LoopState.PLANNING}) | _ENDS,
    LoopState.FINALIZING: frozenset({LoopState.COMPLETED}) | _ENDS,
    LoopState.COMPLETED: frozenset(),
    LoopState.TERMINATED_BUDGET: frozenset(),
    LoopState.FAILED: frozenset(),
}

S = TypeVar("S", RunStatus, LoopState)


def advance(table: Mapping[S, frozenset[S]], current: S, wanted: S) -> S:
    """`wanted`, if the table leads there from `current`."""
    if wanted not in table[current]:
        allowed = ", ".join(sorted(table[current])) or "nothing: it is an end"
        raise InvalidTransition(f"no transition from {current} to {wanted}; allowed: {allowed}")
    return wanted
