"""Pointers into spans: the excerpts that tools log, and the text behind each pointer when it is read again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

from sonde.contexts.traces.span import Span, SpanSummary, time_text
from sonde.contexts.traces.views import Artifact, chunks_of, messages_of, tool_io_of
from sonde.core.canonical import canonical_json, sha256_text
from sonde.core.evidence import EvidenceKind, Excerpt

ATTRIBUTES = ":attributes"
_ROW_ONLY = {"trace_id", "span_id", "artifact_id"}
_MESSAGE_ONLY = {"position", "index_gap", "ref"}


def span_excerpt(summary: SpanSummary) -> Excerpt:
    """A span's summary: name, kind, status, times."""
    return _excerpt(EvidenceKind.SPAN, summary.span_id, summary_text(summary), summary)


def content_excerpt(span: Span) -> Excerpt:
    """A span's attributes and events."""
    return _excerpt(
        EvidenceKind.SPAN, f"{span.summary.span_id}{ATTRIBUTES}", canonical_json(span.content()), span.summary
    )


def artifact_excerpts(kind: EvidenceKind, span: Span, artifacts: Iterable[Artifact]) -> tuple[Excerpt, ...]:
    """Messages, chunks or the tool call of a span."""
    return tuple(_excerpt(kind, artifact.ref, artifact.text, span.summary) for artifact in artifacts)


def summary_text(summary: SpanSummary) -> str:
    """The canonical text of a summary."""
    return canonical_json(summary.row())


def text_behind(excerpt: Excerpt, read: Callable[[str], Span]) -> str | None:
    """The text that an excerpt points at, read again with `read`; None when the pointer leads nowhere."""
    span = read(excerpt.span_id)
    match excerpt.kind:
        case EvidenceKind.SPAN if excerpt.ref.endswith(ATTRIBUTES):
            return canonical_json(span.content())
        case EvidenceKind.SPAN:
            return summary_text(span.summary)
        case EvidenceKind.TOOL_IO:
            found = tool_io_of(span)
            return found.text if found and found.ref == excerpt.ref else None
        case EvidenceKind.MESSAGE:
            return _text_of(excerpt.ref, messages_of(span))
        case EvidenceKind.RETRIEVAL_CHUNK:
            return _text_of(excerpt.ref, chunks_of(span))
        case _:
            return None


def _text_of(ref: str, artifacts: Iterable[Artifact]) -> str | None:
    return next((artifact.text for artifact in artifacts if artifact.ref == ref), None)


def _excerpt(kind: EvidenceKind, ref: str, text: str, summary: SpanSummary) -> Excerpt:
    moment = time_text(summary.start_us)
    return Excerpt(
        kind=kind,
        ref=ref,
        hash=sha256_text(text),
        trace_id=summary.trace_id,
        span_id=summary.span_id,
        ts=f"{moment[:19]}Z" if moment.endswith("Z") else None,
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
                said = {name: item for name, item in row["metadata"].items() if name not in _MESSAGE_ONLY}
                yield canonical_json({"role": role, "content": content, **said})
            case {"diff": str(text)}:
                yield text
            case {"span_id": _, "span_kind": _}:
                yield canonical_json(row)
            case _:
                pass
        for item in row.values():
            yield from texts_in(item)
