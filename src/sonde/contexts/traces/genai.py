"""OTel GenAI attribute names read as OpenInference ones, the way a Phoenix server does on arrival.

Names of the span's own OpenInference attributes always win; messages are only added where the span carries none. Older spellings that
Phoenix leaves alone (`gen_ai.prompt.0.content`, `traceloop.*`) stay as they are and are read by `views`.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Mapping
from typing import Any, cast

from sonde.core.canonical import has_too_many_items

Table = dict[str, Any]
MAX_TEXT_ITEMS = 200_000  # values in a JSON text
LARGEST = 2**63 - 1  # of a whole number: neither the index nor OTLP holds more
_OPERATIONS = {
    "chat": "LLM",
    "text_completion": "LLM",
    "generate_content": "LLM",
    "embeddings": "EMBEDDING",
    "execute_tool": "TOOL",
    "retrieval": "RETRIEVER",
    "invoke_agent": "AGENT",
    "create_agent": "AGENT",
}
_PROVIDERS: dict[str, tuple[str | None, str | None]] = {
    "openai": ("openai", "openai"),
    "anthropic": ("anthropic", "anthropic"),
    "cohere": ("cohere", "cohere"),
    "mistral_ai": ("mistralai", "mistralai"),
    "deepseek": ("deepseek", None),
    "groq": ("groq", None),
    "perplexity": ("perplexity", None),
    "x_ai": ("xai", None),
    "azure.ai.openai": ("azure", "openai"),
    "azure.ai.inference": ("azure", None),
    "aws.bedrock": ("aws", None),
    "gcp.vertex_ai": ("google", "vertexai"),
    "gcp.gen_ai": ("google", None),
    "gcp.gemini": ("google", None),
}
_PARAMETERS = (
    ("temperature", "temperature"),
    ("top_p", "top_p"),
    ("top_k", "top_k"),
    ("max_tokens", "max_tokens"),
    ("frequency_penalty", "frequency_penalty"),
    ("presence_penalty", "presence_penalty"),
    ("seed", "seed"),
    ("stream", "stream"),
    ("choice.count", "n"),
)
_USAGE = (
    ("input_tokens", "prompt"),
    ("output_tokens", "completion"),
    ("cache_read.input_tokens", "prompt_details.cache_read"),
    ("cache_creation.input_tokens", "prompt_details.cache_write"),
)
_TOOL = {
    "tool.name": "gen_ai.tool.name",
    "tool.description": "gen_ai.tool.description",
    "tool.id": "gen_ai.tool.call.id",
}
_MESSAGES = ("llm.input_messages.", "llm.output_messages.")
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def openinference_of(table: Mapping[str, Any]) -> Table:
    """The OpenInference attributes that these GenAI attributes mean and the span does not have itself."""
    kind = _kind_of(table)
    meant: Table = {} if kind is None else {"openinference.span.kind": kind}
    meant |= _request(table, "embedding" if kind == "EMBEDDING" else "llm")
    instructions = _json_list(table.get("gen_ai.system_instructions"))
    inputs = [{"role": "system", "parts": instructions}] if instructions else []
    inputs += _json_list(table.get("gen_ai.input.messages"))
    for side, messages in (("input", inputs), ("output", _json_list(table.get("gen_ai.output.messages")))):
        for index, message in enumerate(messages):
            meant |= _message(message, f"llm.{side}_messages.{index}")
    if reasons := _strings(table.get("gen_ai.response.finish_reasons")):
        meant["llm.finish_reason"] = reasons[0] if len(reasons) == 1 else reasons
    if reply := {key: str(value) for key in ("id", "model") if (value := table.get(f"gen_ai.response.{key}"))}:
        meant |= {"output.value": json.dumps(reply, ensure_ascii=False), "output.mime_type": "application/json"}
    if kind == "TOOL":
        meant |= {ours: str(table[theirs]) for ours, theirs in _TOOL.items() if table.get(theirs)}
        if (arguments := table.get("gen_ai.tool.call.arguments")) is not None:
            meant["tool.parameters"] = _text(arguments)
        if (result := table.get("gen_ai.tool.call.result")) is not None:
            meant["output.value"] = _text(result)
            if isinstance(maybe_json(result), (dict, list)):
                meant["output.mime_type"] = "application/json"
    if kind == "RETRIEVER":
        if query := table.get("gen_ai.retrieval.query.text"):
            meant |= {"input.value": str(query), "input.mime_type": "text/plain"}
        for index, document in enumerate(_json_list(table.get("gen_ai.retrieval.documents"))):
            fields: Table = {"id": document.get("id")}
            with contextlib.suppress(TypeError, ValueError):
                fields["score"] = float(cast("Any", document.get("score")))
            fields |= {key: _text(document[key]) for key in ("content", "metadata") if document.get(key) is not None}
            prefix = f"retrieval.documents.{index}.document"
            meant |= {f"{prefix}.{key}": value for key, value in fields.items() if value is not None}
    for index, item in enumerate(_json_list(table.get("gen_ai.tool.definitions"))):
        function = {key: item[key] for key in ("name", "description", "parameters") if item.get(key) is not None}
        schema = {"type": item.get("type", "function"), "function": function}
        meant[f"llm.tools.{index}.tool.json_schema"] = json.dumps(schema, ensure_ascii=False)
    taken = tuple(prefix for prefix in _MESSAGES if any(key.startswith(prefix) for key in table))
    return {key: value for key, value in meant.items() if key not in table and not key.startswith(taken)}


def _kind_of(table: Mapping[str, Any]) -> str | None:
    """The span kind that GenAI attributes imply."""
    operation = table.get("gen_ai.operation.name")
    if operation is not None:
        return _OPERATIONS.get(str(operation))
    if table.get("gen_ai.tool.call.id") or table.get("gen_ai.tool.name"):
        return "TOOL"
    if table.get("gen_ai.retrieval.documents") or table.get("gen_ai.retrieval.query.text"):
        return "RETRIEVER"
    if table.get("gen_ai.embeddings.dimension.count") is not None:
        return "EMBEDDING"
    implied = ("gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.request.model")
    return "LLM" if any(table.get(key) for key in implied) else None


def _request(table: Mapping[str, Any], prefix: str) -> Table:
    """Provider, session, model, parameters and token counts."""
    named = table.get("gen_ai.provider.name")
    if named is None and (legacy := table.get("gen_ai.system")) is not None:
        named = str(legacy).lower()
    provider, system = (None, None) if named is None else _PROVIDERS.get(str(named), (None, str(named)))
    values = {"llm.provider": provider, "llm.system": system, "session.id": table.get("gen_ai.conversation.id")}
    meant: Table = {key: str(value) for key, value in values.items() if value}
    if model := table.get("gen_ai.request.model"):
        meant[f"{prefix}.model_name"] = str(model)

    found = {ours: table.get(f"gen_ai.request.{theirs}") for theirs, ours in _PARAMETERS}
    parameters = {key: value for key, value in found.items() if value is not None}
    if stop := table.get("gen_ai.request.stop_sequences"):
        parameters["stop"] = _strings(stop)
    if formats := table.get("gen_ai.request.encoding_formats"):
        texts = _strings(formats)
        parameters |= {"encoding_format": texts[0]} if len(texts) == 1 else {"encoding_formats": texts}
    if output := {"json": "json_object", "text": "text"}.get(str(table.get("gen_ai.output.type"))):
        parameters["response_format"] = {"type": output}
    if parameters:
        meant[f"{prefix}.invocation_parameters"] = json.dumps(parameters, ensure_ascii=False)

    counts: dict[str, int] = {}
    for theirs, ours in _USAGE:
        value = table.get(f"gen_ai.usage.{theirs}")
        if not isinstance(value, bool):
            with contextlib.suppress(TypeError, ValueError):
                count = int(cast("Any", value))
                if abs(count) <= LARGEST:
                    counts[ours] = count
    meant |= {f"llm.token_count.{key}": count for key, count in counts.items()}
    if "prompt" in counts and "completion" in counts:
        meant["llm.token_count.total"] = counts["prompt"] + counts["completion"]
    return meant


def _message(message: Table, base: str) -> Table:
    flat: Table = {f"{base}.message.role": str(message.get("role", ""))}
    for key, name in (("name", "message.name"), ("finish_reason", "message.finish_reason")):
        if message.get(key):
            flat[f"{base}.{name}"] = str(message[key])
    parts = mappings(message.get("parts"))
    response = next((part for part in reversed(parts) if part.get("type") == "tool_call_response"), None)
    if response is not None:
        if response.get("id"):
            flat[f"{base}.message.tool_call_id"] = response["id"]
        answer = response.get("response", response.get("result"))
        return flat if answer is None else flat | {f"{base}.message.content": _text(answer)}

    shown = [part for part in parts if part.get("type") in {"text", "reasoning", "uri", "blob"}]
    texts = [str(part.get("content", "")) for part in shown if part.get("type") == "text"]
    if len(texts) == len(shown) and len(texts) <= 1:
        flat |= {f"{base}.message.content": text for text in texts}
    else:
        for index, part in enumerate(shown):
            prefix = f"{base}.message.contents.{index}.message_content"
            if part["type"] in {"text", "reasoning"}:
                flat |= {f"{prefix}.type": part["type"], f"{prefix}.text": str(part.get("content", ""))}
                continue
            url = part.get("uri")
            if part["type"] == "blob":
                url = f"data:{part.get('mime_type') or 'application/octet-stream'};base64,{part.get('content', '')}"
            flat |= {f"{prefix}.type": "image"} | ({f"{prefix}.image.image.url": url} if url else {})

    for index, part in enumerate(part for part in parts if part.get("type") == "tool_call"):
        prefix = f"{base}.message.tool_calls.{index}.tool_call"
        if part.get("id"):
            flat[f"{prefix}.id"] = part["id"]
        if part.get("name"):
            flat[f"{prefix}.function.name"] = part["name"]
        if part.get("arguments") is not None:
            flat[f"{prefix}.function.arguments"] = _text(part["arguments"])
    return flat


def _json_list(value: Any) -> list[Table]:
    """The objects of a JSON list that arrived as text; anything else is none."""
    return mappings(maybe_json(value)) if isinstance(value, str) else []


def mappings(value: Any) -> list[Table]:
    """The objects of a list; anything else is none."""
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return [cast("Table", item) for item in items if isinstance(item, dict)]


def maybe_json(value: Any) -> Any:
    """The value of a JSON text; the same object if it is none, holds so many values that they would fill the memory, or gives a name
    twice, since the first value would be lost. Numbers that are not finite or have more than 64 bits stay texts.
    """
    if not isinstance(value, str):
        return value
    try:
        if len(value) > MAX_TEXT_ITEMS and has_too_many_items(value.encode("utf-8", "replace"), MAX_TEXT_ITEMS):
            return value
        parsed = _JSON.decode(value)
        return scrubbed(parsed) if _ESCAPED_SURROGATE.search(value) else parsed
    except (ValueError, RecursionError):
        return value


def _whole(digits: str) -> int | str:
    return number if len(digits) <= 20 and abs(number := int(digits)) <= LARGEST else digits


def _number(digits: str) -> float | str:
    number = float(digits)
    return number if math.isfinite(number) else repr(number)


def _object(pairs: list[tuple[str, Any]]) -> Table:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a name is given twice")
    return table


_JSON = json.JSONDecoder(parse_int=_whole, parse_float=_number, parse_constant=_number, object_pairs_hook=_object)


def scrubbed(value: Any) -> Any:
    """The value with lone surrogates replaced: they are no Unicode text and cannot be hashed or stored."""
    match value:
        case str():
            return _SURROGATE.sub("�", value)
        case dict():
            items = cast("dict[Any, Any]", value).items()
            return {scrubbed(str(key)): scrubbed(item) for key, item in items}
        case list() | tuple():
            return [scrubbed(item) for item in cast("list[Any]", value)]
        case _:
            return value


def _strings(value: Any) -> list[str]:
    if value is None:
        return []
    return [str(item) for item in cast("list[Any]", value)] if isinstance(value, list) else [str(value)]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
