"""How slow this machine is, measured once: an emulated or starved one needs longer for what others do in seconds."""

from __future__ import annotations

import time

_USUAL_S = 0.02
"""What the loop below takes on a machine of 2020."""


def _measured() -> float:
    best = 60.0
    for _ in range(3):
        began = time.perf_counter()
        total = 0
        for number in range(300_000):
            total += number & 7
        best = min(best, time.perf_counter() - began)
    return max(1.0, min(50.0, best / _USUAL_S))


SLOWNESS = _measured()
"""1 where the machine is as fast as usual, at most 50. Limits that a test is not about are multiplied by it."""
