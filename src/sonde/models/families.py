"""Which parameters a family of models takes, and the body of a request made accordingly.

Knows the families of OpenAI; any other name stands for a server that accepts the common parameters. Parameters that a
server refused before (`rejected`) are left out too, so an unknown family costs one free refusal, not a failed run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set as AbstractSet
from dataclasses import dataclass
from typing import Any, cast

from sonde.models.base import ModelRequest, with_schema_note

OPTIONAL = (
    "response_format",
    "reasoning_effort",
    "temperature",
    "seed",
    "stop",
    "stream_options",
    "max_completion_tokens",
    "max_tokens",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFamily:
    """`sampling`: takes temperature and stop. `effort`: the least reasoning it accepts, None to say nothing."""

    sampling: bool
    limit: str
    effort: str | None = None


_PLAIN = ModelFamily(sampling=True, limit="max_tokens")
_FAMILIES: tuple[tuple[str, ModelFamily], ...] = (
    (r"gpt-5[.\d]*-chat", ModelFamily(sampling=True, limit="max_completion_tokens")),
    (r"gpt-5[.\d]*-pro|o\d", ModelFamily(sampling=False, limit="max_completion_tokens")),
    (r"gpt-5[.\d]*-codex", ModelFamily(sampling=False, limit="max_completion_tokens", effort="low")),
    (r"gpt-5\.\d", ModelFamily(sampling=False, limit="max_completion_tokens", effort="none")),  # refuses "minimal"
    (r"gpt-5", ModelFamily(sampling=False, limit="max_completion_tokens", effort="minimal")),
)


def request_body(
    model_name: str, request: ModelRequest, *, rejected: AbstractSet[str], stream: bool, extra: Mapping[str, Any]
) -> dict[str, Any]:
    """The JSON body of one Chat Completions request."""
    name = model_name.rpartition("/")[2].lower()  # without the vendor that gateways put before it
    family = next((family for pattern, family in _FAMILIES if re.match(pattern, name)), _PLAIN)
    other = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
    options: dict[str, Any] = {
        other[family.limit] if family.limit in rejected else family.limit: request.max_output_tokens,
        "temperature": request.temperature if family.sampling else None,
        "stop": list(request.stop) if request.stop and family.sampling else None,
        "reasoning_effort": family.effort,
        "seed": request.seed,
        "stream_options": {"include_usage": True} if stream else None,
    }
    if request.schema is not None:
        described = {"name": "reply", "schema": dict(request.schema), "strict": _is_strict(request.schema)}
        options["response_format"] = {"type": "json_schema", "json_schema": described}
    messages = request.messages
    if request.schema is not None and "response_format" in rejected:
        messages = with_schema_note(messages, request.schema)
    body: dict[str, Any] = {
        "model": model_name,
        "messages": [{"role": message.role, "content": message.content} for message in messages],
        **{name: value for name, value in options.items() if value is not None and name not in rejected},
    }
    return body | ({"stream": True} if stream else {}) | dict(extra)


def _is_strict(schema: object) -> bool:
    """Whether every object lists all its properties as required and closes itself: what OpenAI's strict mode demands."""
    if isinstance(schema, list):
        return all(_is_strict(part) for part in cast("list[object]", schema))
    if not isinstance(schema, Mapping):
        return True
    node = cast("Mapping[str, Any]", schema)
    properties: Mapping[str, Any] | None = node.get("properties") if node.get("type") == "object" else None
    if node.get("type") == "object":
        closed = node.get("additionalProperties") is False
        if not closed or set(node.get("required", ())) != set(properties or ()):
            return False
    return all(_is_strict(part) for part in node.values())
