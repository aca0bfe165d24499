"""Ruben's shop says OK on every span, also when its card tool returns an error. Sometimes another tool fails on the way and is tried again:
that the retry worked does not make up for an order that was never paid. Every count must say the same.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from journey import Person

pytestmark = pytest.mark.journey
START_NS = 1_772_000_000_000_000_000
PAID = '{"status": "paid"}'
REFUSED = '{"error": "unsupported_currency", "message": "eur is not an ISO 4217 code"}'
ORDERS = {  # for each: whether the stock was asked twice, what the card tool returned, call by call
    0: (False, [PAID]),
    1: (True, [PAID]),
    2: (False, [REFUSED]),
    3: (True, [REFUSED]),
    4: (True, [REFUSED, PAID]),
    5: (True, [REFUSED]),
}
FAILED = [f"{number + 1:032x}" for number in (2, 3, 5)]


def _order(number: int) -> list[dict[str, Any]]:
    spans: list[dict[str, Any]] = []

    def add(name: str, returned: str | None = None, error: str = "") -> None:
        start = START_NS + number * 60_000_000_000 + len(spans) * 1_000_000_000
        said: dict[str, Any] = {"openinference.span.kind": "TOOL" if spans else "AGENT"}
        spans.append(
            {
                "trace_id": f"{number + 1:032x}",
                "span_id": f"{number + 1:012x}{len(spans):04x}",
                "parent_id": spans[0]["span_id"] if spans else None,
                "project_name": "shop",
                "name": name,
                "start_time": start,
                "end_time": start + 500_000_000,
                "status_code": "ERROR" if error else "OK",
                "status_message": error,
                "events": [],
                "attributes": said if returned is None else said | {"output.value": returned},
            }
        )

    again, returned = ORDERS[number]
    add("order")
    if again:
        add("reserve_stock", error="ConnectionResetError: reset by peer")
    add("reserve_stock", '{"reserved": 1}')
    for each in returned:
        add("charge_card", each)
    return spans


@pytest.fixture
def ruben(person: Person) -> Person:
    spans = [span for number in ORDERS for span in _order(number)]
    person.write("orders.jsonl", "".join(f"{json.dumps(span)}\n" for span in spans))
    return person


def test_a_retry_that_worked_does_not_hide_a_tool_that_returned_an_error(ruben: Person) -> None:
    told = ruben.sonde("incident", "--source", "orders.jsonl").stdout
    glance = ruben.sonde("traces", "overview", "--source", "orders.jsonl").stdout
    watched = ruben.sonde("watch", "--once", "--source", "orders.jsonl", "--state", "watch")
    (issue,) = json.loads(ruben.sonde("issues", "--state", "watch", "--json").stdout)["issues"]

    assert "3 of 6 traces failed (50 %), 2 had errors and recovered" in told
    assert "6 traces, 3 failed, 2 had errors and recovered" in glance
    assert "3 failed, 2 had errors and recovered" in watched.stdout + watched.stderr
    assert (issue["traces"], "charge_card" in issue["title"]) == (FAILED, True)


def test_all_errors_and_failed_mean_the_same_traces_that_an_incident_counts(ruben: Person) -> None:
    source = ("--source", "orders.jsonl")
    table = ruben.sonde("traces", "ls", *source).stdout
    listed = json.loads(ruben.sonde("traces", "ls", *source, "--json").stdout)["traces"]
    failed = json.loads(ruben.sonde("traces", "ls", *source, "--failed", "--json").stdout)["traces"]
    first = ruben.sonde("traces", "ls", *source, "--failed", "--limit", "2")
    rest = ruben.sonde("traces", "ls", *source, "--failed", "--after", FAILED[1])
    planned = ruben.sonde("batch", "--all-errors", "--dry-run", *source).stdout
    told = ruben.sonde("rca", *[each["trace_id"] for each in failed], *source)

    outcomes = ["healthy", "recovered", "failed", "failed", "recovered", "failed"]
    assert [line.split()[4] for line in table.splitlines()] == ["OUTCOME", *outcomes]
    assert [(each["outcome"], each["error_spans"]) for each in listed] == [
        *zip(outcomes, (0, 1, 0, 1, 1, 1), strict=True)
    ]
    assert [each["trace_id"] for each in failed] == FAILED
    assert ([line.split()[0] for line in first.stdout.splitlines()[1:]], FAILED[1] in first.stderr) == (
        FAILED[:2],
        True,
    )
    assert [line.split()[0] for line in rest.stdout.splitlines()[1:]] == FAILED[2:]
    assert "3 items" in planned
    assert told.stdout.count("unsupported_currency") >= len(FAILED)
