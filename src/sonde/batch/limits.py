"""The limits that all workers of a batch share: requests and tokens per minute, money, and a model that no longer answers.

Arithmetic over a clock, behind one lock: whoever serves it (the driver's loop, a Ray actor) only passes messages on. A request books a
slot and learns how long to wait for it; afterwards it reports what it really used, which moves the next slots. In any window of a minute
a rate passes its limit by at most half a second's worth (0.8 %). The most that a request may cost is set aside until its real cost is
known, so the cap holds wherever a price is known. If the money left does not cover that, the request goes alone and may only write what
the rest pays for. It does not know how providers count; a refusal that says how long to wait holds everybody.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace

from sonde.core.deadline import Clock, SystemClock

BURST_S = 0.5
LATER_S = 0.2  # when others hold what is left of the money: how soon to ask again
NO_MONEY = "the cost limit is reached"


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedLimits:
    """The limits of a batch; None means no limit. `concurrency` is how many items run at once."""

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    max_cost_usd: float | None = None
    concurrency: int = 8

    @property
    def limited(self) -> bool:
        """Whether anything but the number at once is limited."""
        return any((self.requests_per_minute, self.tokens_per_minute, self.max_cost_usd is not None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request about to be made: its size, and the most it may cost as far as that can be known. `least_usd` is what it costs with the
    shortest reply that is of use; None: it goes whole or not at all.
    """

    tokens: int
    cost_usd: float
    least_usd: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """How a booked request ended."""

    asked: Ask
    tokens: int = 0
    cost_usd: float = 0.0
    failure: str | None = None
    retry_after_s: float | None = None
    own_fault: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Go, after this many seconds, and cost at most this much; None: as much as was asked for."""

    delay_s: float
    most_usd: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Later:
    """Ask again after this many seconds."""

    delay_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """Nothing more goes out, and why."""

    reason: str


Answer = Slot | Later | Closed


class Pace:
    """A rate as a line of slots: each one taken moves the line on by its amount. Half a second's worth may go at once."""

    def __init__(self, per_minute: float | None, now: float) -> None:
        self._each_s = 60.0 / per_minute if per_minute else 0.0
        self._free_at = now
        self._burst_s = max(0.0, BURST_S - self._each_s)

    def free(self, now: float) -> float:
        """When the next one may go."""
        return max(now, self._free_at)

    def take(self, amount: float, at: float) -> None:
        """One goes at this time."""
        if self._each_s:
            self._free_at = max(at - self._burst_s, self._free_at) + amount * self._each_s

    def correct(self, amount: float) -> None:
        """This much more was used than booked; less if negative."""
        self._free_at += amount * self._each_s


class Limiter:
    """The one count of a batch."""

    def __init__(self, limits: SharedLimits, *, spent_usd: float = 0.0, clock: Clock | None = None) -> None:
        self.limits = limits
        self.spent_usd = spent_usd
        self.closed: str | None = None
        self._clock = clock or SystemClock()
        now = self._clock.now()
        self._requests = Pace(limits.requests_per_minute, now)
        self._tokens = Pace(limits.tokens_per_minute, now)
        self._aside_usd = 0.0
        self._flying = 0
        self._out: dict[str, list[Ask]] = {}
        self._hold_until = now
        self._failures = 0
        self._patience = max(3, 2 * limits.concurrency)
        self._lock = threading.Lock()

    def book(self, ask: Ask, who: str = "") -> Answer:
        """A slot for this request of this worker."""
        with self._lock:
            cap = self.limits.max_cost_usd
            wanted, most_usd = self.spent_usd + self._aside_usd + ask.cost_usd, None
            if self.closed is None and cap is not None and (self.spent_usd >= cap or wanted > cap * (1 + 1e-9)):
                if self._flying:  # they may cost less than was set aside for them
                    return Later(delay_s=LATER_S)
                least_usd = ask.cost_usd if ask.least_usd is None else ask.least_usd
                if self.spent_usd < cap >= self.spent_usd + least_usd:
                    most_usd = cap - self.spent_usd
                    ask = replace(ask, cost_usd=most_usd)
                else:
                    self.closed = f"{NO_MONEY}: ${self.spent_usd:.4f} of ${cap:.4f} is spent" + (
                        f", and the next request may cost ${least_usd:.4f}" if least_usd else ""
                    )
            if self.closed is not None:
                return Closed(reason=self.closed)
            now = self._clock.now()
            self._aside_usd += ask.cost_usd
            self._flying += 1
            self._out.setdefault(who, []).append(ask)
            at = max(self._requests.free(now), self._tokens.free(now), self._hold_until)
            self._requests.take(1, at)
            self._tokens.take(ask.tokens, at)
            return Slot(delay_s=at - now, most_usd=most_usd)

    def _land(self, ask: Ask) -> None:
        self._flying -= 1
        self._aside_usd = self._aside_usd - ask.cost_usd if self._flying > 0 else 0.0  # sums of floats drift

    def lost(self, who: str) -> None:
        """This worker is gone: it will never report its requests, so stop waiting for them."""
        with self._lock:
            for ask in self._out.pop(who, []):
                self._land(ask)

    def tell(self, told: Told, who: str = "") -> None:
        """What the request really used."""
        with self._lock:
            out = self._out.get(who, [])
            if told.asked in out:  # not so when nothing is limited, or when its worker was given up for lost
                out.remove(told.asked)
                self._land(told.asked)
            self.spent_usd += told.cost_usd
            self._tokens.correct(told.tokens - told.asked.tokens)
            if told.retry_after_s is not None:
                self._hold_until = max(self._hold_until, self._clock.now() + told.retry_after_s)
            # Close when the model has answered nobody for longer than chance explains. One faulty request proves nothing.
            if told.failure is None:
                self._failures = 0
            elif not told.own_fault and told.retry_after_s is None:
                self._failures += 1
                if self._failures >= self._patience and self.closed is None:
                    self.closed = f"the model has not answered {self._failures} times in a row: {told.failure}"

    def at_least(self, spent_usd: float) -> None:
        """Correct upwards: a limiter that was lost with its machine starts again from what the results say."""
        with self._lock:
            self.spent_usd = max(self.spent_usd, spent_usd)
