"""When to ask again, as pure functions: the runtime sleeps, counts and records."""

from __future__ import annotations

import random

MAX_ATTEMPTS = 4
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0


def backoff(attempt: int, retry_after: float | None, seed: int) -> float:
    """Seconds to wait after failed attempt number `attempt` (1 is the first).

    Doubles from half a second to 30, spread down by up to half so that parallel callers do not return together; the
    spread comes from the seed, so that a replay waits alike. A server's wish is a minimum, whatever its length: a
    caller whose deadline is nearer gives up instead.
    """
    spread = random.Random(f"{seed}:{attempt}").uniform(0.5, 1.0)  # noqa: S311  # spreads load, guards nothing
    pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (attempt - 1)) * spread
    return max(pause, retry_after or 0.0)


def may_retry(attempt: int, *, retryable: bool) -> bool:
    """Whether another attempt may follow failed attempt number `attempt`."""
    return retryable and attempt < MAX_ATTEMPTS
