"""Text that models read when a server or a program offers no other way to say it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sonde.models.base import Message, ModelRequest

_HEADINGS = {"system": "SYSTEM", "user": "USER", "assistant": "ASSISTANT (your earlier reply)"}


def schema_note(schema: Mapping[str, Any]) -> str:
    """Asks for JSON where the server cannot enforce it."""
    text = json.dumps(schema, ensure_ascii=False, sort_keys=True)
    return f"Reply with one JSON value that fits this JSON Schema, and with nothing before or after it:\n{text}"


def with_schema_note(messages: Sequence[Message], schema: Mapping[str, Any]) -> list[Message]:
    """The same conversation with the schema said in the last message, where it is read best."""
    if not messages:
        return [Message("user", schema_note(schema))]
    *earlier, last = messages
    return [*earlier, Message(last.role, f"{last.content}\n\n{schema_note(schema)}")]


def render_prompt(request: ModelRequest) -> str:
    """One text for programs that take one text. A single user message goes as it is, without a heading."""
    messages = list(request.messages)
    if request.schema is not None:
        messages = with_schema_note(messages, request.schema)
    if len(messages) == 1:
        return messages[0].content
    parts = [f"##### {_HEADINGS[message.role]}\n\n{message.content}\n" for message in messages]
    return "\n".join([*parts, "##### ASSISTANT (your reply now)\n"])


def cut_at_stop(text: str, stop: Sequence[str]) -> str:
    """`text` up to the first stop string, for servers and programs that do not stop by themselves."""
    ends = [at for mark in stop if mark and (at := text.find(mark)) >= 0]
    return text[: min(ends)] if ends else text
