"""Traces, replies and runs for the tests of the investigators."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import sonde
from sonde.core.budget import Budget
from sonde.models.base import ModelRequest
from sonde.testing import ScriptedModel

Json = dict[str, Any]
TRACE = "a" * 32
ROOT, TOOL, LLM, SEARCH = (f"{number:016x}" for number in (1, 2, 3, 4))
START_NS = 1_767_225_600_000_000_000
KINDS = {ROOT: "AGENT", TOOL: "TOOL", LLM: "LLM", SEARCH: "RETRIEVER"}


def span(
    span_id: str, name: str, second: int, *, trace_id: str = TRACE, parent: str | None = ROOT, **more: Any
) -> Json:
    """A flat span of a kind that its id or `kind` says."""
    kind = more.pop("kind", KINDS.get(span_id, "CHAIN"))
    attributes = {"openinference.span.kind": kind, **more.pop("attributes", {})}
    start = START_NS + second * 1_000_000_000
    return {
        "trace_id": trace_id,
        "span_id": span_id,
        "parent_id": parent,
        "project_name": "shop",
        "name": name,
        "start_time": start,
        "end_time": start + more.pop("lasted", 1) * 1_000_000_000,
        "status_code": "OK",
        "status_message": "",
        "attributes": attributes,
        **more,
    }


def failed_trace() -> list[Json]:
    """An agent whose tool timed out, between a good model call and a good retrieval."""
    message = {"llm.output_messages.0.message.role": "assistant", "llm.output_messages.0.message.content": "calling"}
    chunk = {"retrieval.documents.0.document.content": "opening hours", "retrieval.documents.0.document.score": 0.9}
    return [
        span(ROOT, "agent.run", 0, parent=None, lasted=30),
        span(LLM, "plan", 1, attributes={"llm.model_name": "m", **message}),
        span(SEARCH, "search.docs", 2, attributes=chunk),
        span(
            TOOL,
            "book.table",
            3,
            status_code="ERROR",
            status_message="TimeoutError: no answer in 30 s",
            attributes={"tool.name": "book", "input.value": "table for two", "output.value": "timed out"},
        ),
    ]


def calm_trace() -> list[Json]:
    """The same without a failure."""
    good = {
        "status_code": "OK",
        "status_message": "",
        "attributes": {"openinference.span.kind": "TOOL", "tool.name": "book"},
    }
    return [row if row["span_id"] != TOOL else {**row, **good} for row in failed_trace()]


def write(folder: Path, rows: Iterable[Json], name: str = "traces.jsonl") -> Path:
    """Rows as JSON Lines."""
    path = folder / name
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    return path


def says(code: str) -> str:
    """A reply by schema."""
    return json.dumps({"reasoning": "as scripted", "code": code})


def model(*blocks: str, child: Callable[[str], Sequence[str]] | None = None) -> ScriptedModel:
    """A model whose root replies these blocks in turn; `child` gives the blocks for the objective of a sub-call."""
    root = list(blocks)
    children: dict[str, list[str]] = {}

    def answer(request: ModelRequest) -> str:
        task = request.messages[1].content
        if child is None or "and only that one" not in request.messages[0].content:
            return says(root.pop(0)) if root else "no more"
        left = children.setdefault(task, list(child(task)))
        return says(left.pop(0)) if left else "no more"

    return ScriptedModel(answer)


def options(scripted: ScriptedModel | None = None, **more: Any) -> sonde.RunOptions:
    """Options of a run that reads no environment."""
    more.setdefault("in_memory", "runs_dir" not in more)
    return sonde.RunOptions(model=scripted, settings=sonde.Settings(), **more)


def ref(kind: str, name: str) -> str:
    """A pointer as code writes it."""
    return f'{{"kind": "{kind}", "ref": "{name}"}}'


SPAN, IO = ref("SPAN", TOOL), ref("TOOL_IO", f"tool:{TOOL}")
LOOK = f"print(get_span('{TOOL}')['summary']['status_message'], get_tool_io('{TOOL}'))"


def limits_of(budget: Budget) -> tuple[float | None, ...]:
    """The limits that the contract sets, in its order."""
    return (
        budget.max_depth,
        budget.max_iterations,
        budget.max_tool_calls,
        budget.max_subcalls,
        budget.max_tokens_total,
        budget.max_wall_time_sec,
    )
