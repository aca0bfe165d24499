"""Who&When conversations: one span per step of the history, named after the agent that spoke. Only question and history are read.

The times are invented (one second per step), because the source has none; a gap in every trace says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from sonde.contexts.traces.span import Micros, Span, build_span
from sonde.core.canonical import hash_value

Json = dict[str, Any]
_STEP_US = 1_000_000
_GAP = "times are invented, one second a step: the source has none"


def recognise(record: Json) -> bool:
    """True for a question with its history of messages."""
    return "question" in record and isinstance(record.get("history"), list)


def spans(record: Json) -> Iterator[Span | str]:
    """The conversation as a root span and one AGENT span per step."""
    steps = cast("list[Any]", record["history"])
    trace_id = trace_id_of(record)
    root = f"{trace_id[:8]}{0:08x}"
    yield build_span(
        trace_id=trace_id,
        span_id=root,
        name="conversation",
        kind="CHAIN",
        start=Micros(0),
        end=Micros(len(steps) * _STEP_US),
        attributes={"input.value": str(record["question"]), "conversation.steps": len(steps)},
        gaps=[_GAP],
    )
    for step, entry in enumerate(steps):
        if not isinstance(entry, dict):
            yield f"step {step} is not an object"
            continue
        message = cast("Json", entry)
        content = "" if message.get("content") is None else str(message["content"])
        yield build_span(
            trace_id=trace_id,
            span_id=span_id_of(trace_id, step),
            parent_id=root,
            name=str(message.get("name") or message.get("role") or "unknown"),
            kind="AGENT",
            start=Micros(step * _STEP_US),
            end=Micros((step + 1) * _STEP_US),
            attributes={
                "agent.name": agent_of(message),
                "conversation.step": step,
                "llm.output_messages": [{"message": {"role": str(message.get("role", "")), "content": content}}],
                "output.value": content,
            },
        )


def trace_id_of(record: Json) -> str:
    """The id that a conversation gets: it has none of its own."""
    return hash_value([record["question"], record["history"]])[:32]


def span_id_of(trace_id: str, step: int) -> str:
    """The span of a step."""
    return f"{trace_id[:8]}{step + 1:08x}"


def agent_of(message: Json) -> str:
    """Who spoke: the name, or the role without what it was doing ("Orchestrator (thought)" is the Orchestrator)."""
    said = str(message.get("name") or message.get("role") or "unknown")
    return said.partition(" (")[0] or said
