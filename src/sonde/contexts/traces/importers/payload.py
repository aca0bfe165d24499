"""Inputs and outputs as other products log them, read as OpenInference messages, documents and text."""

from __future__ import annotations

from typing import Any, cast

from sonde.contexts.traces.importers.records import decode
from sonde.core.canonical import canonical_json, jsonable

Json = dict[str, Any]
_ROLES = {
    "human": "user",
    "ai": "assistant",
    "HumanMessage": "user",
    "AIMessage": "assistant",
    "SystemMessage": "system",
}


def text(value: Any) -> str:
    """Text as it is, anything else as canonical JSON."""
    return value if isinstance(value, str) else canonical_json(jsonable(value))


def messages(prefix: str, value: Any) -> Json:
    """Chat messages under OpenInference names, from any of the usual shapes or their JSON text; empty when there are none."""
    found = [_message(item) for item in _list_in(opened(value))]
    return {prefix: [{"message": message} for message in found if message]} if any(found) else {}


def documents(value: Any) -> Json:
    """Retrieved documents under OpenInference names."""
    value = opened(value)
    raw = cast("Json", value).get("documents") if isinstance(value, dict) else value
    items = cast("list[Any]", raw) if isinstance(raw, list) else []
    found: list[Json] = []
    for item in items:
        if isinstance(item, dict):
            given = cast("Json", item)
            content = given.get("page_content", given.get("content", given.get("text", "")))
            known = {key: given[key] for key in ("id", "score", "metadata") if given.get(key) is not None}
            found.append({"document": {"content": text(content), **known}})
    return {"retrieval.documents": found} if found else {}


def opened(value: Any) -> Any:
    """The value of a JSON text, as tables keep objects and lists; any other value as it is."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "["):
        return value
    try:
        return decode(value.encode())[0]
    except ValueError:
        return value


def _list_in(value: Any) -> list[Json]:
    """The message objects inside a request, a reply, a list, or LangChain's list of lists."""
    if isinstance(value, dict):
        record = cast("Json", value)
        if "content" in record or "kwargs" in record:
            return [record]
        inner = next((record[key] for key in ("messages", "choices", "generations", "output") if key in record), None)
        return _list_in(inner)
    if not isinstance(value, list):
        return []
    flat: list[Json] = []
    for item in cast("list[Any]", value):
        if isinstance(item, list):
            flat.extend(_list_in(item))
        elif isinstance(item, dict):
            flat.append(cast("Json", item))
    return flat


def _message(raw: Json) -> Json:
    for key in ("message", "kwargs"):
        inner = raw.get(key)
        if isinstance(inner, dict):
            path = raw.get("id")  # LangChain writes the path of the class here
            class_name = str(cast("list[Any]", path)[-1]) if isinstance(path, list) and path else ""
            return _message({"type": class_name, **cast("Json", inner)})
    if "content" not in raw and "tool_calls" not in raw:
        return {}
    role = str(raw.get("role") or raw.get("type") or "")
    message: Json = {"role": _ROLES.get(role, role), "content": text(raw.get("content") or "")}
    found: list[Json] = []
    calls = raw.get("tool_calls")
    for call in cast("list[Any]", calls) if isinstance(calls, list) else ():
        if isinstance(call, dict):
            given = cast("Json", call)
            inner = given.get("function")
            function = cast("Json", inner) if isinstance(inner, dict) else given
            arguments = function.get("arguments", function.get("args"))
            shown = {"name": str(function.get("name", "")), "arguments": text({} if arguments is None else arguments)}
            found.append({"tool_call": {"id": str(given.get("id") or ""), "function": shown}})
    return message | ({"tool_calls": found} if found else {})
