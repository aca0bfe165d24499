"""The origin's thirty seeded traces (contracts 2.12), for comparison with its published figures.

Their status messages nearly spell the label, so a good score here proves little; the leak-free generator is the harder test. With
`kinds=False` the spans carry no OpenInference kind, as instrumentation that knows nothing of it would write them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

FAMILIES = (
    "tool_failure",
    "retrieval_failure",
    "instruction_failure",
    "upstream_dependency_failure",
    "data_schema_mismatch",
)
COUNT = 30
SEED = 42
PROJECT = "origin30"
_START_NS = 1_767_225_600_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSpan:
    """The one child span of a family."""

    name: str
    kind: str
    status: str
    message: str
    attributes: dict[str, Any]


_FAULTS = {
    "tool_failure": FaultSpan(
        name="tool.call", kind="TOOL", status="ERROR", message="forced tool timeout", attributes={}
    ),
    "retrieval_failure": FaultSpan(
        name="retriever.fetch", kind="RETRIEVER", status="OK", message="", attributes={"retrieval.relevance": 0.11}
    ),
    "instruction_failure": FaultSpan(
        name="llm.generate",
        kind="LLM",
        status="ERROR",
        message="format drift",
        attributes={"output.format": "unexpected"},
    ),
    "upstream_dependency_failure": FaultSpan(
        name="dependency.http",
        kind="CHAIN",
        status="ERROR",
        message="upstream unavailable",
        attributes={"http.status_code": 503},
    ),
    "data_schema_mismatch": FaultSpan(
        name="tool.parse", kind="TOOL", status="ERROR", message="schema mismatch", attributes={}
    ),
}
EXPECTED_COMPLIANCE = {
    "tool_failure": "non_compliant",
    "upstream_dependency_failure": "non_compliant",
    "data_schema_mismatch": "non_compliant",
    "retrieval_failure": "needs_review",
    "instruction_failure": "needs_review",
}


def labels() -> list[str]:
    """The gold labels in order: the five families, then 25 drawn with the origin's seed."""
    draw = random.Random(SEED)  # noqa: S311 - reproducible on purpose
    return [*FAMILIES, *(FAMILIES[draw.randrange(len(FAMILIES))] for _ in range(COUNT - len(FAMILIES)))]


def trace_id(number: int) -> str:
    """The id of the numbered trace."""
    return f"{number + 1:032x}"


def spans(*, kinds: bool = True) -> Iterator[dict[str, Any]]:
    """Sixty flat spans: a root and a child for each trace. The labels are not in them."""
    for number, label in enumerate(labels()):
        fault = _FAULTS[label]
        root, child = f"{2 * number + 1:016x}", f"{2 * number + 2:016x}"
        start = _START_NS + number * 60_000_000_000
        common = {"trace_id": trace_id(number), "project_name": PROJECT}
        own: dict[str, Any] = {"openinference.span.kind": fault.kind} if kinds else {}
        yield {
            **common,
            "span_id": root,
            "parent_id": None,
            "name": "agent.run",
            "start_time": start,
            "end_time": start + 2_000_000_000,
            "status_code": "OK",
            "attributes": {"openinference.span.kind": "AGENT"} if kinds else {},
        }
        yield {
            **common,
            "span_id": child,
            "parent_id": root,
            "name": fault.name,
            "start_time": start + 100_000_000,
            "end_time": start + 1_500_000_000,
            "status_code": fault.status,
            "status_message": fault.message,
            "attributes": {**own, **fault.attributes},
        }
