"""A log of a shop's services from a seed, with one incident in it whose cause is not where the errors are loudest.

At the hour of the incident a deploy of `inventory` halves its connection pool; its calls begin to wait, `cart` times
out on it, `checkout` retries and trips its breaker, and users see `gateway` 502s. The first trace of the cause is one
WARN line minutes before the first ERROR. `facts(seed)` says what a good answer must contain.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

SERVICES = ("gateway", "checkout", "cart", "inventory", "payments", "search", "email")
ROUTES = ("/cart", "/checkout", "/search", "/items", "/orders")
START = datetime(2026, 3, 14, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What happened, for scoring."""

    deploy: str
    first_warning: str
    first_error: str
    first_error_service: str
    errors: int
    slow_customer: str


def lines(seed: int, count: int) -> Iterator[str]:
    """The log, line by line."""
    dice = random.Random(seed)  # noqa: S311  # a story, not a secret
    incident = START + timedelta(hours=14, minutes=dice.randrange(5, 50))
    step = timedelta(hours=24) / count
    slow = f"cust-{dice.randrange(10_000):04d}"
    deployed = warned = False
    for number in range(count):
        now = START + step * number
        stamp = now.strftime("%Y-%m-%dT%H:%M:%S.") + f"{now.microsecond // 1000:03d}Z"
        minutes = (now - incident).total_seconds() / 60
        if minutes >= 0 and not deployed:
            deployed = True
            yield f"{stamp} INFO  inventory deploy version=2.14.0 pool.max=8 (was 16) by=ci"
        elif minutes >= 3 and not warned:
            warned = True
            yield f"{stamp} WARN  inventory pool: 8 of 8 connections busy, 1 waiting"
        elif 7 <= minutes < 40 and dice.random() < 0.25:
            request = f"req-{dice.randrange(16**8):08x}"
            match 0 if minutes < 9 else dice.randrange(4):
                case 0:
                    yield f"{stamp} ERROR cart {request} timeout after 2000 ms calling inventory GET /stock"
                case 1:
                    yield f"{stamp} ERROR checkout {request} cart answered 504, retry {dice.randrange(1, 4)} of 3"
                case 2:
                    yield f"{stamp} ERROR checkout {request} circuit breaker cart open"
                case _:
                    yield f"{stamp} ERROR gateway {request} 502 upstream=checkout"
        else:
            service = dice.choice(SERVICES)
            customer = slow if dice.random() < 0.002 else f"cust-{dice.randrange(10_000):04d}"
            took = dice.randrange(900, 2500) if customer == slow else dice.randrange(3, 180)
            request = f"req-{dice.randrange(16**8):08x}"
            if dice.random() < 0.0005:
                yield f"{stamp} WARN  {service} {request} slow query {dice.randrange(500, 900)} ms table=orders"
            else:
                yield f"{stamp} INFO  {service} {request} {customer} GET {dice.choice(ROUTES)} 200 {took} ms"


def write_log(path: Path, *, seed: int = 7, megabytes: float = 20.0) -> Facts:
    """Write the log and say what is in it."""
    count = int(megabytes * 1_000_000 / 84)
    first: dict[str, str] = {}
    errors = 0
    slow = ""
    with path.open("w", encoding="utf-8") as file:
        for line in lines(seed, count):
            file.write(line + "\n")
            words = line.split()
            if "deploy version" in line:
                first["deploy"] = line
            if "pool:" in line:
                first["warning"] = line
            if words[1] == "ERROR":
                errors += 1
                first.setdefault("error", line)
            if line.endswith(" ms") and len(words) > 4 and int(words[-2]) >= 900 and words[1] == "INFO":
                slow = words[4]
    return Facts(
        deploy=first["deploy"],
        first_warning=first["warning"],
        first_error=first["error"],
        first_error_service=first["error"].split()[2],
        errors=errors,
        slow_customer=slow,
    )
