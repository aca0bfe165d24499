"""LangSmith runs, in exports and in replies of its API: one per object, with children nested under `child_runs` or beside them. Bulk
exports keep inputs as JSON text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from sonde.contexts.traces.importers.payload import documents, messages, opened, text
from sonde.contexts.traces.span import Broken, Span, build_span

Json = dict[str, Any]
_SIDES = (("inputs", "input"), ("outputs", "output"))
_SHARES = ("prompt", "completion", "total")
_KINDS = {"llm": "LLM", "tool": "TOOL", "retriever": "RETRIEVER", "embedding": "EMBEDDING"}


def recognise(record: Json) -> bool:
    """True for a run."""
    return "run_type" in record and "id" in record


def spans(record: Json) -> Iterator[Span | str]:
    """The run and its children, parents first."""
    stack: list[tuple[Json, Any, Any]] = [(record, record.get("trace_id") or record.get("id"), None)]
    while stack:
        raw, trace_id, parent = stack.pop()
        kind, error, above = str(raw.get("run_type")).lower(), raw.get("error"), raw.get("parent_run_ids")
        direct = cast("list[Any]", above)[-1] if isinstance(above, list) and above else None
        try:
            table: Json = {
                f"{ours}.value": text(opened(raw[theirs]))
                for theirs, ours in _SIDES
                if raw.get(theirs) not in (None, {})
            }
            if kind == "tool":
                table["tool.name"] = str(raw.get("name", ""))
            if kind == "retriever":
                table |= documents(raw.get("outputs"))
            if kind == "llm":
                table |= messages("llm.input_messages", raw.get("inputs"))
                table |= messages("llm.output_messages", raw.get("outputs"))
            if kind in ("llm", "embedding"):  # any other run has the sums of those below it
                for share in _SHARES:
                    if raw.get(f"{share}_tokens") is not None:
                        table[f"llm.token_count.{share}"] = raw[f"{share}_tokens"]
                    if raw.get(f"{share}_cost") is not None:  # a decimal as text
                        table[f"llm.cost.{share}"] = float(raw[f"{share}_cost"])
            found = opened(raw.get("extra"))
            extra = cast("Json", found) if isinstance(found, dict) else {}
            metadata, parameters = (_table(extra.get(name)) for name in ("metadata", "invocation_params"))
            if metadata:
                table["metadata"] = metadata
            if parameters:
                table["llm.invocation_parameters"] = text(parameters)
            names = (parameters.get("model"), parameters.get("model_name"), metadata.get("ls_model_name"))
            if model := next(filter(None, names), None) if kind in ("llm", "embedding") else None:
                table["llm.model_name"] = str(model)
            if raw.get("tags"):
                table["tag.tags"] = raw["tags"]
            if raw.get("thread_id"):
                table["session.id"] = str(raw["thread_id"])
            yield build_span(
                trace_id=raw.get("trace_id") or trace_id,
                span_id=raw.get("id"),
                parent_id=raw.get("parent_run_id") or direct or parent,
                name=raw.get("name"),
                kind=_KINDS.get(kind, "CHAIN"),
                start=raw.get("start_time"),
                end=raw.get("end_time"),
                status="ERROR" if error or str(raw.get("status")).lower() == "error" else "OK",
                status_message=text(error) if error else "",
                attributes=table,
                project=str(raw.get("session_name") or "default"),
            )
        except (ValueError, TypeError) as broken:
            yield Broken(f"run {raw.get('id')}: {broken}", raw.get("trace_id") or trace_id)
        children = raw.get("child_runs")
        if isinstance(children, list):
            inside = [cast("Json", item) for item in cast("list[Any]", children) if isinstance(item, dict)]
            stack.extend((child, trace_id, raw.get("id")) for child in reversed(inside))


def _table(value: Any) -> Json:
    return cast("Json", value) if isinstance(value, dict) else {}
