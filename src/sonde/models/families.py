"""Which parameters a family of models takes, and the body of a request made accordingly.

Knows the families of OpenAI; any other name stands for a server that accepts the common parameters. Parameters that a
server refused before (`rejected`) are left out too, so an unknown family costs one free refusal, not a failed run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set as AbstractSet
from dataclasses import dataclass
from typing import Any, cast

from sonde.models.base import ModelRequest, ModelSettings, with_schema_note

OPTIONAL = (
    "response_format",
    "reasoning_effort",
    "temperature",
    "top_p",
    "seed",
    "stop",
    "stream_options",
    "prompt_cache_key",
    "max_completion_tokens",
    "max_tokens",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFamily:
    """`sampling`: takes temperature and stop. `effort`: the least reasoning it accepts, `thinking`: the usual one; None to say nothing."""

    sampling: bool
    limit: str
    effort: str | None = None
    thinking: str | None = None


_PLAIN = ModelFamily(sampling=True, limit="max_tokens")
_FAMILIES: tuple[tuple[str, ModelFamily], ...] = (
    (r"gpt-5[.\d]*-chat", ModelFamily(sampling=True, limit="max_completion_tokens")),
    (r"gpt-5[.\d]*-pro|o\d", ModelFamily(sampling=False, limit="max_completion_tokens")),
    (r"gpt-5[.\d]*-codex", ModelFamily(sampling=False, limit="max_completion_tokens", effort="low", thinking="low")),
    (
        r"gpt-5\.\d",
        ModelFamily(sampling=False, limit="max_completion_tokens", effort="none", thinking="low"),
    ),  # refuses "minimal"
    (r"gpt-5", ModelFamily(sampling=False, limit="max_completion_tokens", effort="minimal", thinking="low")),
)


def family_of(model_name: str) -> ModelFamily:
    """The family that a name belongs to."""
    name = model_name.rpartition("/")[2].lower()  # without the vendor that gateways put before it
    return next((family for pattern, family in _FAMILIES if re.match(pattern, name)), _PLAIN)


def sampling(model_name: str, settings: ModelSettings, *, temperature: float, thinks: bool) -> dict[str, Any]:
    """Effort, temperature and top_p as they are sent: what the settings say, else what suits the family."""
    family = family_of(model_name)
    usual = family.thinking if thinks else family.effort
    sent = {
        "reasoning_effort": settings.reasoning_effort or usual,
        "temperature": temperature if family.sampling else None,
        "top_p": settings.top_p,
    }
    if settings.temperature is not None:
        sent["temperature"] = settings.temperature
    return {name: value for name, value in sent.items() if value is not None}


def request_body(
    model_name: str, request: ModelRequest, *, rejected: AbstractSet[str], stream: bool, settings: ModelSettings
) -> dict[str, Any]:
    """The JSON body of one Chat Completions request."""
    family = family_of(model_name)
    other = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
    options: dict[str, Any] = {
        other[family.limit] if family.limit in rejected else family.limit: request.max_output_tokens,
        **sampling(model_name, settings, temperature=request.temperature, thinks=request.thinks),
        "stop": list(request.stop) if request.stop and family.sampling else None,
        "seed": request.seed,
        "prompt_cache_key": request.conversation,
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
    return body | ({"stream": True} if stream else {}) | dict(settings.extra_body)


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
