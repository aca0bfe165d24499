"""Langfuse exports: a trace with its observations (also as {"trace", "observations"}), or one observation per object.

The API and the pages write `parentObservationId`, exports to a bucket write `parent_observation_id` and keep inputs as JSON text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, cast

from sonde.contexts.traces.importers.payload import messages, text
from sonde.contexts.traces.span import Span, build_span

Json = dict[str, Any]
_KINDS = {"GENERATION": "LLM", "SPAN": "CHAIN", "EVENT": "CHAIN"}
_TYPES = frozenset({*_KINDS, "AGENT", "TOOL", "CHAIN", "RETRIEVER", "EVALUATOR", "EMBEDDING", "GUARDRAIL"})


def recognise(record: Json) -> bool:
    """True for a trace with observations, or an observation."""
    if isinstance(record.get("observations"), list):
        return True
    named = "traceId" in record or ("trace_id" in record and "span_id" not in record)
    return named and "id" in record and str(record.get("type")) in _TYPES


def spans(record: Json) -> Iterator[Span | str]:
    """The trace as a root span with one span per observation below it."""
    if not isinstance(record.get("observations"), list):
        yield _observation(_in_api_names(record), None)
        return
    inner = record.get("trace")
    trace = cast("Json", inner) if isinstance(inner, dict) else record
    items = cast("list[Any]", record["observations"])
    observations = [_in_api_names(cast("Json", item)) for item in items if isinstance(item, dict)]
    root = f"trace-{trace.get('id')}"
    starts = [str(item["startTime"]) for item in observations if item.get("startTime")]
    ends = [str(item["endTime"]) for item in observations if item.get("endTime")]
    try:
        yield build_span(
            trace_id=trace.get("id"),
            span_id=root,
            name=trace.get("name") or "trace",
            kind="CHAIN",
            start=trace.get("timestamp") or min(starts, default=None),
            end=max(ends, default=None),
            attributes=_payload(trace) | _named(trace, {"sessionId": "session.id", "userId": "user.id"}),
        )
    except (ValueError, TypeError) as broken:
        yield f"trace {trace.get('id')}: {broken}"
    for observation in observations:
        yield _observation({"traceId": trace.get("id"), **observation}, root)


def _in_api_names(observation: Json) -> Json:
    """The fields as the API names them."""
    return {re.sub(r"_([a-z])", lambda found: found[1].upper(), key): value for key, value in observation.items()}


def _observation(raw: Json, root: str | None) -> Span | str:
    kind = str(raw.get("type", ""))
    try:
        return build_span(
            trace_id=raw.get("traceId"),
            span_id=raw.get("id"),
            parent_id=raw.get("parentObservationId") or root,
            name=raw.get("name") or kind.lower(),
            kind=_KINDS.get(kind, kind),
            start=raw.get("startTime"),
            end=raw.get("endTime") or raw.get("startTime"),
            status="ERROR" if raw.get("level") == "ERROR" else "OK",
            status_message=raw.get("statusMessage"),
            attributes=_payload(raw),
        )
    except (ValueError, TypeError) as broken:
        return f"observation {raw.get('id')}: {broken}"


def _payload(raw: Json) -> Json:
    """Inputs, outputs and metadata, the name of a tool, and what a generation says about its model."""
    table: Json = {f"{side}.value": text(raw[side]) for side in ("input", "output") if raw.get(side) is not None}
    if raw.get("metadata") is not None:
        table["metadata"] = raw["metadata"]
    if raw.get("type") == "TOOL":
        table["tool.name"] = str(raw.get("name", ""))
    if raw.get("type") != "GENERATION":
        return table
    found = raw.get("usageDetails") or raw.get("usage")
    usage = cast("Json", found) if isinstance(found, dict) else {}
    counts = {"prompt": usage.get("input"), "completion": usage.get("output"), "total": usage.get("total")}
    table |= {f"llm.token_count.{key}": count for key, count in counts.items() if count is not None}
    table |= messages("llm.input_messages", raw.get("input")) | messages("llm.output_messages", raw.get("output"))
    if raw.get("modelParameters"):
        table["llm.invocation_parameters"] = text(raw["modelParameters"])
    return table | _named(raw, {"model": "llm.model_name", "providedModelName": "llm.model_name"})


def _named(raw: Json, names: dict[str, str]) -> Json:
    return {ours: str(raw[theirs]) for theirs, ours in names.items() if raw.get(theirs)}
