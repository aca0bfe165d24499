"""What can be cited in a span: its messages, its tool call, its retrieved chunks, itself; and the excerpts that point at them. No I/O.

OpenInference names come first, then the older GenAI spellings that no one translates, then plain input and output. The hash of its content
names a message, never its index: exporters drop the oldest attributes and servers renumber what is left.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from sonde.contexts.traces.genai import mappings, maybe_json
from sonde.contexts.traces.span import Row, Span, SpanSummary, time_text
from sonde.core.canonical import canonical_json, sha256_text
from sonde.core.evidence import EvidenceKind, Excerpt

Table = Mapping[str, Any]
ATTRIBUTES = ":attributes"
_ROW_ONLY = {"trace_id", "span_id", "artifact_id"}
_MESSAGE_ONLY = {"position", "index_gap"}
_SIDES = (
    ("input", ("llm.input_messages", "gen_ai.prompt")),
    ("output", ("llm.output_messages", "gen_ai.completion")),
)
_PLAIN = (
    ("input", "user", ("input.value", "traceloop.entity.input")),
    ("output", "assistant", ("output.value", "traceloop.entity.output")),
)
CHUNKS = ("retrieval.documents", "retriever.documents", "retrieval.chunks", "reranker.output_documents")
EVENT_ROLES = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
    "gen_ai.choice": "assistant",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """Something citable inside a span: its pointer, its canonical text and the row that tools show."""

    ref: str
    text: str
    row: Row


def messages_of(span: Span) -> list[Artifact]:
    """Chat messages of a span in order, inputs first; for a side that has none, its input or output text."""
    found: list[Row] = []
    for direction, prefixes in _SIDES:
        for prefix in prefixes:
            items = indexed(span.attributes, prefix)
            gap = any(text.startswith(f"{prefix}:") for text in span.gaps)
            found += [_message(items[index], direction, index, gap=gap) for index in sorted(items)]
    if not found:  # older instrumentations record messages as events
        for position, event in enumerate(span.events):
            said = event.attributes
            content = said.get("content") or said.get("message.content") or said.get("gen_ai.prompt")
            if event.name in EVENT_ROLES and content is not None:
                direction = "output" if event.name == "gen_ai.choice" else "input"
                metadata: Row = {"direction": direction, "position": position, "source": event.name}
                found.append({"role": EVENT_ROLES[event.name], "content": str(content), "metadata": metadata})
    heard = {row["metadata"]["direction"] for row in found}
    # GenAI names are translated to an output that is only the id and model of a reply, not its words.
    named = {key: str(value) for key in ("id", "model") if (value := span.attributes.get(f"gen_ai.response.{key}"))}
    only_named = named and span.attributes.get("output.value") == json.dumps(named, ensure_ascii=False)
    for direction, role, keys in _PLAIN:
        key = next((key for key in keys if span.attributes.get(key) is not None), None)
        if key is None or direction in heard or (direction == "output" and only_named):
            continue
        metadata = {"direction": direction, "position": 0, "source": key}
        found.append({"role": role, "content": _as_text(span.attributes[key]), "metadata": metadata})
    found.sort(key=lambda row: row["metadata"]["direction"] == "output")
    artifacts: list[Artifact] = []
    for message in found:
        said = {key: value for key, value in message["metadata"].items() if key not in _MESSAGE_ONLY}
        text = canonical_json({"role": message["role"], "content": message["content"], **said})
        ref = f"message:{span.summary.span_id}:{sha256_text(text)[:16]}"
        row = {**_ids(span), **message, "metadata": {**message["metadata"], "ref": ref}}
        artifacts.append(Artifact(ref=ref, text=text, row=row))
    return artifacts


def tool_io_of(span: Span) -> Artifact | None:
    """The tool call of a span, when it is one."""
    table = span.attributes
    named = table.get("tool.name") or table.get("gen_ai.tool.name")
    if span.summary.kind != "TOOL" and not named:
        return None
    parameters = nested(table, "tool.parameters")
    first_input = (table.get(key) for key in ("input.value", "gen_ai.tool.call.arguments", "traceloop.entity.input"))
    first_output = (table.get(key) for key in ("output.value", "gen_ai.tool.call.result", "traceloop.entity.output"))
    content = {
        "tool_name": str(named or span.summary.name),
        "input": next((value for value in first_input if value is not None), parameters),
        "output": next((value for value in first_output if value is not None), None),
        "status_code": span.summary.status,
    }
    ref = f"tool:{span.summary.span_id}"
    return Artifact(ref=ref, text=canonical_json(content), row={**_ids(span), "artifact_id": ref, **content})


def chunks_of(span: Span) -> list[Artifact]:
    """Retrieved documents in the order in which they were retrieved."""
    for prefix in CHUNKS:
        items = [item for _, item in sorted(indexed(span.attributes, prefix).items())]
        value = span.attributes.get(prefix)
        if not items and isinstance(value, str) and value.lstrip().startswith("["):  # documents as one JSON text
            items = mappings(maybe_json(value))
        if items:
            break
    else:
        return []
    artifacts: list[Artifact] = []
    for position, item in enumerate(items):
        named = {key.removeprefix("document."): value for key, value in item.items() if key.startswith("document.")}
        fields: Row = {**item, **named}
        metadata: Any = nested(item, "document.metadata") or nested(item, "metadata") or {}
        known = cast("Row", metadata) if isinstance(metadata, dict) else {}
        chunk_id = fields.get("chunk_id") or known.get("chunk_id")
        content: Row = {
            "document_id": str(fields.get("id") or fields.get("document_id") or ""),
            "chunk_id": None if chunk_id is None else str(chunk_id),
            "content": str(fields.get("content") or fields.get("text") or ""),
            "score": fields.get("score"),
            "metadata": metadata,
        }
        suffix = f":chunk={content['chunk_id']}" if chunk_id is not None else ""
        ref = f"retrieval:{span.summary.span_id}:{position}:{content['document_id']}{suffix}"
        row = {**_ids(span), "artifact_id": ref, **content}
        artifacts.append(Artifact(ref=ref, text=canonical_json(content), row=row))
    return artifacts


def indexed(table: Table, prefix: str) -> dict[int, dict[str, Any]]:
    """What lies under `prefix.0.`, `prefix.1.` and so on, each as a table of its own."""
    found: dict[int, dict[str, Any]] = {}
    start = f"{prefix}."
    for key, value in table.items():
        if key.startswith(start):
            number, dot, rest = key[len(start) :].partition(".")
            if dot and number.isdecimal():
                found.setdefault(int(number), {})[rest] = value
    return found


def nested(table: Table, prefix: str) -> Any:
    """The value under a key, or the tree of everything below it, or None."""
    if prefix in table:
        return table[prefix]
    start = f"{prefix}."
    tree: dict[str, Any] = {}
    for key in sorted(key for key in table if key.startswith(start)):
        branch, path = tree, key[len(start) :].split(".")
        for part in path[:-1]:
            below = branch.setdefault(part, {})
            if not isinstance(below, dict):  # both `a` and `a.b` were given: keep the second under its own name
                branch[".".join(path)] = table[key]
                break
            branch = cast("dict[str, Any]", below)
        else:
            branch[path[-1]] = table[key]
    return tree or None


def _ids(span: Span) -> Row:
    return {"trace_id": span.summary.trace_id, "span_id": span.summary.span_id}


def _message(item: Table, direction: str, position: int, *, gap: bool) -> Row:
    metadata: Row = {"direction": direction, "position": position}
    for key in ("message.name", "message.tool_call_id", "message.finish_reason"):
        if key in item:
            metadata[key.removeprefix("message.")] = item[key]
    calls: list[Row] = []
    for _, call in sorted((indexed(item, "message.tool_calls") or indexed(item, "tool_calls")).items()):
        arguments = nested(call, "tool_call.function.arguments") or nested(call, "arguments")
        name = call.get("tool_call.function.name") or call.get("name")
        shown = {"id": call.get("tool_call.id"), "name": name, "arguments": arguments}
        calls.append({key: value for key, value in shown.items() if value is not None})
    if calls:
        metadata["tool_calls"] = calls
    if gap:
        metadata["index_gap"] = True
    content = nested(item, "message.content")
    content = nested(item, "content") if content is None else content
    if content in (None, ""):
        parts = [part for _, part in sorted(indexed(item, "message.contents").items())]
        texts = (part.get("message_content.text") or f"[{part.get('message_content.type', 'part')}]" for part in parts)
        content = "\n".join(str(text) for text in texts)
    role = item.get("message.role", item.get("role", ""))
    return {"role": str(role), "content": _as_text(content), "metadata": metadata}


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else canonical_json(value)


def span_excerpt(summary: SpanSummary) -> Excerpt:
    """A span's summary: name, kind, status, times."""
    return _excerpt(EvidenceKind.SPAN, summary.span_id, canonical_json(summary.row()), summary)


def content_excerpt(span: Span) -> Excerpt:
    """A span's attributes and events."""
    return _excerpt(
        EvidenceKind.SPAN, f"{span.summary.span_id}{ATTRIBUTES}", canonical_json(span.content()), span.summary
    )


def artifact_excerpts(kind: EvidenceKind, span: Span, artifacts: Iterable[Artifact]) -> tuple[Excerpt, ...]:
    """Messages, chunks or the tool call of a span."""
    return tuple(_excerpt(kind, artifact.ref, artifact.text, span.summary) for artifact in artifacts)


def text_behind(excerpt: Excerpt, read: Callable[[str], Span]) -> str | None:
    """The text that an excerpt points at, read again with `read`; None when the pointer leads nowhere."""
    span = read(excerpt.span_id)
    match excerpt.kind:
        case EvidenceKind.SPAN if excerpt.ref.endswith(ATTRIBUTES):
            return canonical_json(span.content())
        case EvidenceKind.SPAN:
            return canonical_json(span.summary.row())
        case EvidenceKind.TOOL_IO:
            call = tool_io_of(span)
            artifacts = [call] if call else []
        case EvidenceKind.MESSAGE:
            artifacts = messages_of(span)
        case EvidenceKind.RETRIEVAL_CHUNK:
            artifacts = chunks_of(span)
        case _:
            return None
    return next((artifact.text for artifact in artifacts if artifact.ref == excerpt.ref), None)


def in_words(text: str) -> str:
    """A canonical text (of a span, a tool call, a message, a chunk or a group) as a person reads it."""
    match maybe_json(text):
        case {"name": name, "span_kind": kind, "status_code": status, "status_message": said, "start_time": begun}:
            return f"{name} ({kind}) at {begun}: {status}{f', {said}' if said else ''}"
        case {"tool_name": name, "input": given, "output": came, "status_code": status}:
            return f"{name}({given}) -> {came} ({status})"
        case {"role": role, "content": content}:
            return f"{role}: {content}"
        case {
            "group_id": _,
            "component": component,
            "message": said,
            "traces": traces,
            "of": of,
            "first_seen": first,
            "last_seen": last,
        }:
            return f"{component}: {said} | {traces} of {of} traces, {first} to {last}"
        case {"document_id": _, "content": content}:
            return str(content)
        case _:
            return text


def _excerpt(kind: EvidenceKind, ref: str, text: str, summary: SpanSummary) -> Excerpt:
    return Excerpt(
        kind=kind,
        ref=ref,
        hash=sha256_text(text),
        trace_id=summary.trace_id,
        span_id=summary.span_id,
        ts=f"{time_text(summary.start_us)[:19]}Z",
    )


def texts_in(value: Any) -> Iterator[str]:
    """Every citable text that a recorded result of a tool may hold, as `text_behind` would give it; hashes tell which one is meant."""
    if isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from texts_in(item)
    elif isinstance(value, dict):
        row = cast("dict[str, Any]", value)
        match row:
            case {"attributes": _, "events": _}:
                yield canonical_json({name: row[name] for name in ("attributes", "events")})
            case {"tool_name": _, "artifact_id": _} | {"document_id": _, "artifact_id": _}:
                yield canonical_json({name: item for name, item in row.items() if name not in _ROW_ONLY})
            case {"role": role, "content": content, "metadata": dict()}:
                said = {name: item for name, item in row["metadata"].items() if name not in {*_MESSAGE_ONLY, "ref"}}
                yield canonical_json({"role": role, "content": content, **said})
            case {"diff": str(text)}:
                yield text
            case {"span_id": _, "span_kind": _}:
                yield canonical_json(row)
            case _:
                pass
        for item in row.values():
            yield from texts_in(item)
