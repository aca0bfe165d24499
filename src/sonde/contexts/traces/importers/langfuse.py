"""What Langfuse writes, in exports and in replies of its API: a trace with its observations (also as {"trace", "observations"}), or one
observation per object.

The API and the pages write `parentObservationId`, exports to a bucket write `parent_observation_id`. Inputs are values or their JSON text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, cast

from sonde.contexts.traces.importers.payload import documents, messages, opened, text
from sonde.contexts.traces.span import Broken, Span, build_span

Json = dict[str, Any]
ROOT = "t-"
"""Begins the id of a span that stands for a trace, as Langfuse itself names it from version 4 on."""
_KINDS = {"GENERATION": "LLM", "SPAN": "CHAIN", "EVENT": "CHAIN"}
_TYPES = frozenset({*_KINDS, "AGENT", "TOOL", "CHAIN", "RETRIEVER", "EVALUATOR", "EMBEDDING", "GUARDRAIL"})
_OF_TRACE = {
    "sessionId": "session.id",
    "userId": "user.id",
    "release": "release",
    "environment": "deployment.environment.name",
    "tags": "tag.tags",
}


def recognise(record: Json) -> bool:
    """True for a trace with observations, or an observation."""
    if isinstance(record.get("observations"), list):
        return True
    named = "traceId" in record or ("trace_id" in record and "span_id" not in record)
    return named and "id" in record and str(record.get("type")) in _TYPES


def spans(record: Json) -> Iterator[Span | str]:
    """One span per observation, below one that stands for the trace. In traces from OpenTelemetry the only observation without a parent
    has the name of the trace and is that span itself.
    """
    if not isinstance(record.get("observations"), list):
        observation = _in_api_names(record)
        yield _observation(observation, None, observation)
        return
    inner = record.get("trace")
    trace = cast("Json", inner) if isinstance(inner, dict) else record
    items = cast("list[Any]", record["observations"])
    observations = [
        {"traceId": trace.get("id"), **_in_api_names(cast("Json", item))} for item in items if isinstance(item, dict)
    ]
    tops = [item for item in observations if not item.get("parentObservationId")]
    if len(tops) == 1 and trace.get("name") in (None, "", tops[0].get("name")):
        for key in ("input", "output", "metadata"):
            if tops[0].get(key) is None:
                tops[0][key] = trace.get(key)
        for observation in observations:
            yield _observation(observation, None, trace)
        return
    root = f"{ROOT}{trace.get('id')}"
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
            attributes=_payload(trace) | _named(trace, _OF_TRACE),
        )
    except (ValueError, TypeError) as broken:
        yield Broken(f"trace {trace.get('id')}: {broken}", trace.get("id"))
    for observation in observations:
        yield _observation(observation, root, {})


def _in_api_names(observation: Json) -> Json:
    """The fields as the API names them."""
    return {re.sub(r"_([a-z])", lambda found: found[1].upper(), key): value for key, value in observation.items()}


def _observation(raw: Json, root: str | None, trace: Json) -> Span | str:
    """Its span; without a parent it also has what is said about the trace."""
    kind, parent = str(raw.get("type", "")), raw.get("parentObservationId") or root
    try:
        return build_span(
            trace_id=raw.get("traceId"),
            span_id=raw.get("id"),
            parent_id=parent,
            name=raw.get("name") or kind.lower(),
            kind=_KINDS.get(kind, kind),
            start=raw.get("startTime"),
            end=raw.get("endTime") or raw.get("startTime"),
            status="ERROR" if raw.get("level") == "ERROR" else "OK",
            status_message=raw.get("statusMessage"),
            attributes=_payload(raw) | ({} if parent else _named(trace, _OF_TRACE)),
        )
    except (ValueError, TypeError) as broken:
        return Broken(f"observation {raw.get('id')}: {broken}", raw.get("traceId"))


def _payload(raw: Json) -> Json:
    """Inputs, outputs and metadata, a warning, the name of a tool, and what a generation says about its model."""
    table: Json = {
        f"{side}.value": text(opened(raw[side])) for side in ("input", "output") if raw.get(side) is not None
    }
    metadata = opened(raw.get("metadata"))
    if metadata:
        table["metadata"] = metadata
    if raw.get("level") in ("WARNING", "DEBUG"):
        table["langfuse.observation.level"] = raw["level"]
    if raw.get("type") == "TOOL":
        table["tool.name"] = str(raw.get("name", ""))
    if raw.get("type") == "RETRIEVER":
        table |= documents(raw.get("output"))
    if raw.get("type") not in ("GENERATION", "EMBEDDING"):
        return table
    for name, prefix in (("usageDetails", "llm.token_count."), ("costDetails", "llm.cost.")):
        found = opened(raw.get(name)) or (raw.get("usage") if name == "usageDetails" else None)
        counts = cast("Json", found) if isinstance(found, dict) else {}
        for side, ours in (
            ("input", "prompt"),
            ("output", "completion"),
        ):  # input_cached and the like are parts of the input
            parts = [value for key, value in counts.items() if key == side or key.startswith(f"{side}_")]
            if parts and all(isinstance(value, int | float) for value in parts):
                table[f"{prefix}{ours}"] = sum(parts)
        if counts.get("total") is not None:
            table[f"{prefix}total"] = counts["total"]
    table |= messages("llm.input_messages", raw.get("input")) | messages("llm.output_messages", raw.get("output"))
    if raw.get("modelParameters"):
        table["llm.invocation_parameters"] = text(raw["modelParameters"])
    return table | _named(raw, {"model": "llm.model_name", "providedModelName": "llm.model_name"})


def _named(raw: Json, names: dict[str, str]) -> Json:
    """What is set of these fields, under our names. `default` is the environment of those who have set none."""
    found = {ours: raw[theirs] for theirs, ours in names.items() if raw.get(theirs) and raw[theirs] != "default"}
    return {name: value if name == "tag.tags" else str(value) for name, value in found.items()}
