"""Budgets, checked before spending and again after: one pool for the whole tree of sessions.

A `Scope` is a limit with its own count. Scopes nest, and a charge must fit every scope up to the run's. A child session gets a fair share
of what its parent has left. Tokens and money are reserved before a model is asked, so parallel calls together cannot exceed a limit by
more than the replies in flight. Models and tools know nothing about this; the session charges for them.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from sonde.core.canonical import plural
from sonde.core.deadline import Deadline
from sonde.core.usage import Usage
from sonde.errors import ConfigError, RecursionLimitReached, WallTimeLimitReached

FORCED_FINISH_SHARE = 0.9
LastTurn = Literal["wall_time", "last_call"]
_UNLIMITED = ("max_tokens_per_subcall", "max_cost_usd", "max_wall_time_sec")
_PARTS = ("max_cost_usd", "max_wall_time_sec")
_NEEDED = ("max_iterations", "max_tokens_total", "max_tokens_per_subcall", "max_wall_time_sec")
LANDING_S = 0.5  # how often a call that waits for others looks at the clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a run may use. The defaults are those of `ask`. Cost, tokens of a sub-call and time may be None: no limit."""

    max_iterations: int = 60
    max_depth: int = 3
    max_tool_calls: int = 10_000
    max_subcalls: int = 90
    max_tokens_total: int = 1_000_000
    max_tokens_per_subcall: int | None = None
    max_cost_usd: float | None = 1.0
    max_wall_time_sec: float = 600.0
    sampling_seed: int | None = None

    def __post_init__(self) -> None:
        if self.max_wall_time_sec is None:  # pyright: ignore[reportUnnecessaryComparison]  # so a record writes infinity
            object.__setattr__(self, "max_wall_time_sec", math.inf)
        for name in (field.name for field in fields(self)):
            value, seed = getattr(self, name), name == "sampling_seed"
            if value is None and (seed or name in _UNLIMITED):
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
                raise ConfigError(f"{name} must be a number, not {value!r}")
            if math.isinf(value) and name in _UNLIMITED and value > 0:
                continue
            if name not in _PARTS and value != value // 1:
                raise ConfigError(f"{name} must be a whole number, not {value!r}")
            if not seed and (value < 0 or (value == 0 and name in _NEEDED)):
                raise ConfigError(f"{name} must be {'above' if name in _NEEDED else 'at least'} zero, not {value!r}")
            if name not in _PARTS:
                object.__setattr__(self, name, int(value))

    def override(self, maxima: Budget | None = None, **knobs: float | None) -> Budget:
        """This budget with some knobs changed. A value above the contract's maximum raises an error that names the maximum."""
        given = {name: value for name, value in knobs.items() if value is not None}
        changed = replace(self, **given)  # type: ignore[arg-type]  # __post_init__ checks the types
        if maxima is not None:
            for name in given:
                top = getattr(maxima, name)
                if top is not None and getattr(changed, name) > top and name != "sampling_seed":
                    raise ConfigError(f"{name}={getattr(changed, name)} is above the contract's maximum of {top}")
        return changed

    def raised(self, name: str, maxima: Budget | None = None, *, needed: float = 0.0) -> float | None:
        """Twice this limit, or twice what is `needed` if that is more, at most the maximum; None for what is no limit or is at its
        maximum already.
        """
        limit = getattr(self, name, None)
        if limit is None or math.isinf(limit):
            return None
        top = getattr(maxima, name) if maxima is not None else None
        twice = 2 * limit or 1
        if needed > limit:
            twice = max(twice, float(f"{2 * needed:.2g}"))  # a number for a person to type
        twice = min(twice, math.inf if top is None else top)
        return None if twice <= limit else int(twice) if twice == twice // 1 else twice

    def in_words(self) -> str:
        """What a person wants to know before a run: `200,000 tokens, 600 s, 30 sub-calls, 60 turns`."""
        seconds = [] if math.isinf(self.max_wall_time_sec) else [f"{self.max_wall_time_sec:,.10g} s"]
        counts = [plural(self.max_subcalls, "sub-call"), plural(self.max_iterations, "turn")]
        money = [] if self.max_cost_usd is None else [f"${self.max_cost_usd:,.2f}"]
        return ", ".join([plural(self.max_tokens_total, "token"), *seconds, *counts, *money])

    def as_dict(self) -> dict[str, Any]:
        """The knobs by name, as the record carries them."""
        return asdict(self)


CONTRACT_MAXIMA = Budget(
    max_iterations=60,
    max_depth=3,
    max_tool_calls=220,
    max_subcalls=90,
    max_tokens_total=320_000,
    max_cost_usd=None,
    max_wall_time_sec=300,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Tokens and money set aside for one model call in flight."""

    tokens: int
    cost_usd: float
    max_output_tokens: int


class Scope:
    """A budget with its count. `charge`, `reserve` and `spend` apply to this scope and all above it."""

    def __init__(self, budget: Budget, deadline: Deadline, *, parent: Scope | None = None, depth: int = 0) -> None:
        self.budget = budget
        self.deadline = deadline
        self.parent = parent
        self.depth = depth
        self.usage = Usage(depth_reached=depth)
        self._reserved_tokens = 0
        self._reserved_cost = 0.0
        self._lock: threading.RLock = parent._lock if parent else threading.RLock()
        self._landed: threading.Condition = parent._landed if parent else threading.Condition(self._lock)

    def chain(self) -> Iterator[Scope]:
        """This scope and those above it."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent

    def charge(self, *, iterations: int = 0, tool_calls: int = 0, subcalls: int = 0) -> None:
        """Count these, or raise before anything is spent."""
        with self._lock:
            self.check_time()
            for scope in self.chain():
                scope._require("max_iterations", scope.usage.iterations + iterations, iterations)
                scope._require("max_tool_calls", scope.usage.tool_calls + tool_calls, tool_calls)
                scope._require("max_subcalls", scope.usage.llm_subcalls + subcalls, subcalls)
            for scope in self.chain():
                scope.usage += Usage(iterations=iterations, tool_calls=tool_calls, llm_subcalls=subcalls)

    def _require(self, knob: str, wanted: float, more: float) -> None:
        limit = getattr(self.budget, knob)
        if more and limit is not None and wanted > limit:
            raise RecursionLimitReached(f"{knob} of {limit} is used up", limit=knob)

    def check_time(self) -> None:
        """Raise when time is up."""
        for scope in self.chain():
            if scope.deadline.expired():
                raise WallTimeLimitReached(
                    f"max_wall_time_sec of {scope.budget.max_wall_time_sec:g} is used up", limit="max_wall_time_sec"
                )

    def check_depth(self, depth: int) -> None:
        """Raise when a sub-call at this depth is not allowed; otherwise remember how deep we went."""
        if depth > self.budget.max_depth:
            raise RecursionLimitReached(
                f"a sub-call at depth {depth} is deeper than max_depth {self.budget.max_depth}", limit="max_depth"
            )
        with self._lock:
            for scope in self.chain():
                scope.usage += Usage(depth_reached=depth)

    def reserve(self, tokens_in: int, max_output_tokens: int, cost_usd: float = 0.0) -> Reservation:
        """Set tokens and money aside for one call; the output allowance shrinks to what is left, or the call is refused.

        Other calls give back most of what they reserved when they land; a call that would fit then waits for them.
        """
        with self._lock:
            while True:
                self.check_time()
                free_once_landed = min(scope._tokens_free() + scope._reserved_tokens for scope in self.chain())
                output = min(max_output_tokens, free_once_landed - tokens_in)
                if output < 1:
                    text = f"{max(free_once_landed, 0)} tokens are left and the prompt alone needs about {tokens_in}"
                    *_, root = self.chain()
                    needed = root.usage.tokens_total + tokens_in + max_output_tokens
                    raise RecursionLimitReached(f"max_tokens_total: {text}", limit="max_tokens_total", needed=needed)
                affordable = True
                for scope in self.chain():
                    limit, used = scope.budget.max_cost_usd, scope.usage.cost_usd
                    if limit is None:
                        continue
                    if used >= limit > 0 or used + cost_usd > limit * 1.0001:
                        text = f"max_cost_usd of {limit:g} would be passed: {used:.4f} is spent"
                        raise RecursionLimitReached(text, limit="max_cost_usd", needed=used + cost_usd)
                    if scope._reserved_tokens and used + scope._reserved_cost + cost_usd > limit:
                        affordable = False
                tokens = tokens_in + output
                if affordable and min(scope._tokens_free() for scope in self.chain()) >= tokens:
                    for scope in self.chain():
                        scope._reserved_tokens += tokens
                        scope._reserved_cost += cost_usd
                    return Reservation(tokens=tokens, cost_usd=cost_usd, max_output_tokens=output)
                self._landed.wait(LANDING_S)

    def _tokens_free(self) -> int:
        return self.budget.max_tokens_total - self.usage.tokens_total - self._reserved_tokens

    def money_left(self) -> float | None:
        """What may still be spent here and above; None where money is not limited."""
        with self._lock:
            limits = [(each.budget.max_cost_usd, each.usage.cost_usd) for each in self.chain()]
        return min((limit - used for limit, used in limits if limit is not None), default=None)

    def release(self, reservation: Reservation) -> None:
        """Give back what was set aside."""
        with self._lock:
            for scope in self.chain():
                scope._reserved_tokens -= reservation.tokens
                scope._reserved_cost -= reservation.cost_usd
                if scope._reserved_tokens == 0:
                    scope._reserved_cost = 0.0  # no dust of floating point
            self._landed.notify_all()

    def spend(self, used: Usage) -> None:
        """Count what a reply (or a failed attempt) has cost. Does not raise: call `check_spent` next."""
        with self._lock:
            for scope in self.chain():
                scope.usage += used

    def check_spent(self, next_usd: float = 0.0) -> None:
        """Raise when the last reply took us past a limit: the action it carries must not run. So does a next attempt that money does
        not pay.
        """
        with self._lock:
            for scope in self.chain():
                scope._require("max_tokens_total", scope.usage.tokens_total, 1)
                limit = scope.budget.max_cost_usd
                if limit is not None and scope.usage.cost_usd + next_usd > limit * (1.0001 if next_usd else 1):
                    used = scope.usage.cost_usd
                    why = "is used up" if used > limit else f"would be passed by another attempt: {used:.4f} is spent"
                    raise RecursionLimitReached(f"max_cost_usd of {limit:g} {why}", limit="max_cost_usd")
            self.check_time()

    def share(self, siblings: int, *, max_wall_time_sec: float | None = None) -> Scope:
        """A child's scope: a fair share of what is left, with a part kept back so that the parent can finish."""
        with self._lock:
            left = self.left()
            parts = max(siblings, 1) + 1
            per_call = self.budget.max_tokens_per_subcall
            tokens = max(1, int(left["tokens"]) // parts)
            cost = left["cost_usd"]
            seconds = self.deadline.remaining() * FORCED_FINISH_SHARE
            budget = replace(
                self.budget,
                max_iterations=max(1, int(left["iterations"]) // parts),
                max_tool_calls=int(left["tool_calls"]) // (1 if siblings <= 1 else parts),
                max_subcalls=int(left["subcalls"]) // (1 if siblings <= 1 else parts),
                max_tokens_total=min(tokens, per_call) if per_call else tokens,
                max_cost_usd=None if cost is None else cost / parts,
                max_wall_time_sec=max(0.001, seconds if math.isfinite(seconds) else self.budget.max_wall_time_sec),
            )
            deadline = self.deadline.sub(max_wall_time_sec or seconds)
            return Scope(budget, deadline, parent=self, depth=self.depth + 1)

    def left(self) -> dict[str, Any]:
        """What is left here, by name; None where there is no limit."""
        with self._lock:
            used, budget = self.usage, self.budget
            cost = None if budget.max_cost_usd is None else max(0.0, budget.max_cost_usd - used.cost_usd)
            return {
                "iterations": max(0, budget.max_iterations - used.iterations),
                "depth": max(0, budget.max_depth - self.depth),
                "tool_calls": max(0, budget.max_tool_calls - used.tool_calls),
                "subcalls": max(0, budget.max_subcalls - used.llm_subcalls),
                "tokens": max(0, self._tokens_free()),
                "cost_usd": cost,
                "seconds": self.deadline.remaining(),
            }

    def last_by_time(self, elapsed_s: float, call_s: float = 0.0) -> LastTurn | None:
        """Why time makes the turn that begins now the last one: 90 % of it is used, or a second call of this length would not fit."""
        if elapsed_s >= FORCED_FINISH_SHARE * self.deadline.seconds:
            return "wall_time"
        return "last_call" if elapsed_s + 2 * call_s > self.deadline.seconds else None


@contextmanager
def reserved(scope: Scope, tokens_in: int, max_output_tokens: int, cost_usd: float = 0.0) -> Generator[Reservation]:
    """A reservation that is always given back."""
    reservation = scope.reserve(tokens_in, max_output_tokens, cost_usd)
    try:
        yield reservation
    finally:
        scope.release(reservation)
