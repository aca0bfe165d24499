"""LangSmith runs, one per object, with children nested under `child_runs` or beside them; bulk exports keep inputs as JSON text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from sonde.contexts.traces.importers.payload import documents, messages, opened, text
from sonde.contexts.traces.span import Span, build_span

Json = dict[str, Any]
_SIDES = (("inputs", "input"), ("outputs", "output"))
_COUNTS = (("prompt_tokens", "prompt"), ("completion_tokens", "completion"), ("total_tokens", "total"))
_KINDS = {"llm": "LLM", "tool": "TOOL", "retriever": "RETRIEVER", "embedding": "EMBEDDING"}


def recognise(record: Json) -> bool:
    """True for a run."""
    return "run_type" in record and "id" in record


def spans(record: Json) -> Iterator[Span | str]:
    """The run and its children, parents first."""
    stack: list[tuple[Json, Any, Any]] = [(record, record.get("trace_id") or record.get("id"), None)]
    while stack:
        raw, trace_id, parent = stack.pop()
        kind, error = raw.get("run_type"), raw.get("error")
        try:
            table: Json = {f"{ours}.value": text(raw[theirs]) for theirs, ours in _SIDES if raw.get(theirs) is not None}
            if kind == "tool":
                table["tool.name"] = str(raw.get("name", ""))
            if kind == "retriever":
                table |= documents(raw.get("outputs"))
            if kind == "llm":
                table |= messages("llm.input_messages", raw.get("inputs"))
                table |= messages("llm.output_messages", raw.get("outputs"))
            counts = {ours: raw.get(theirs) for theirs, ours in _COUNTS}
            table |= {f"llm.token_count.{key}": count for key, count in counts.items() if count is not None}
            found = opened(raw.get("extra"))
            extra = cast("Json", found) if isinstance(found, dict) else {}
            if extra.get("metadata"):
                table["metadata"] = extra["metadata"]
            if parameters := extra.get("invocation_params"):
                table["llm.invocation_parameters"] = text(parameters)
                named = cast("Json", parameters).get("model") if isinstance(parameters, dict) else None
                table |= {"llm.model_name": str(named)} if named else {}
            yield build_span(
                trace_id=raw.get("trace_id") or trace_id,
                span_id=raw.get("id"),
                parent_id=raw.get("parent_run_id") or parent,
                name=raw.get("name"),
                kind=_KINDS.get(str(kind), "CHAIN"),
                start=raw.get("start_time"),
                end=raw.get("end_time"),
                status="ERROR" if error or raw.get("status") == "error" else "OK",
                status_message=text(error) if error else "",
                attributes=table,
                project=str(raw.get("session_name") or "default"),
            )
        except (ValueError, TypeError) as broken:
            yield f"run {raw.get('id')}: {broken}"
        children = raw.get("child_runs")
        if isinstance(children, list):
            inside = [cast("Json", item) for item in cast("list[Any]", children) if isinstance(item, dict)]
            stack.extend((child, trace_id, raw.get("id")) for child in reversed(inside))
