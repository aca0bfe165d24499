"""What rules alone say of a control: is its evidence there, does a pattern match, are too many spans in error.

A rule fails a control only with a proved place, and says `insufficient_evidence` when what the control requires is
not in the trace. Bounded: at most MAX_SPANS spans are opened and MAX_CHARS characters of each are matched; what was
left out is a gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from sonde.contexts.controls import Control
from sonde.contexts.traces.evidence import artifact_excerpts, content_excerpt, span_excerpt
from sonde.contexts.traces.rules import error_text
from sonde.contexts.traces.span import Span
from sonde.contexts.traces.views import Artifact, chunks_of, messages_of, tool_io_of
from sonde.core.evidence import EvidenceKind, Excerpt
from sonde.engines.reports import PassFail

MAX_SPANS = 400
MAX_CHARS = 20_000
SHOWN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a trace holds that controls ask for."""

    spans: tuple[Span, ...]
    errors: tuple[Excerpt, ...]
    tool_io: tuple[Excerpt, ...]
    chunks: tuple[Excerpt, ...]
    messages: tuple[Excerpt, ...]
    attributes: tuple[Excerpt, ...]
    gaps: tuple[str, ...] = ()

    def of(self, need: str) -> tuple[Excerpt, ...]:
        """The excerpts that meet one required kind of evidence."""
        return {
            "required_error_span": self.errors,
            "required_tool_io": self.tool_io,
            "required_retrieval_chunks": self.chunks,
            "required_messages": self.messages,
            "required_span_attributes": self.attributes,
        }.get(need, ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruled:
    """A rule's verdict on one control."""

    control: Control
    pass_fail: PassFail
    confidence: float
    excerpts: tuple[Excerpt, ...] = ()
    missing: tuple[str, ...] = ()
    why: str = ""


def see(spans: Iterable[Span], total: int) -> Seen:
    """Open a bounded part of a trace."""
    opened = tuple(islice(spans, MAX_SPANS))
    gaps = () if total <= MAX_SPANS else (f"{total - MAX_SPANS} of {total} spans were not opened by the rules",)
    return Seen(
        spans=opened,
        errors=tuple(span_excerpt(s.summary) for s in opened if s.summary.status == "ERROR"),
        tool_io=_all(EvidenceKind.TOOL_IO, ((s, [io] if (io := tool_io_of(s)) else []) for s in opened)),
        chunks=_all(EvidenceKind.RETRIEVAL_CHUNK, ((s, chunks_of(s)) for s in opened)),
        messages=_all(EvidenceKind.MESSAGE, ((s, messages_of(s)) for s in opened if s.summary.kind == "LLM")),
        attributes=tuple(content_excerpt(s) for s in opened if s.attributes),
        gaps=gaps,
    )


def _all(kind: EvidenceKind, found: Iterable[tuple[Span, Sequence[Artifact]]]) -> tuple[Excerpt, ...]:
    return tuple(excerpt for span, artifacts in found for excerpt in artifact_excerpts(kind, span, artifacts))


def rule(control: Control, seen: Seen) -> Ruled:
    """What the rules say of one control."""
    hits = [(span, found) for span in seen.spans if (found := control.violations(_text(span)))]
    if hits:
        excerpts = tuple(e for span, _ in hits[:SHOWN] for e in (span_excerpt(span.summary), content_excerpt(span)))
        why = f"matched {hits[0][1][0]!r:.80} in span {hits[0][0].summary.span_id}"
        return Ruled(control=control, pass_fail="fail", confidence=0.78, excerpts=excerpts, why=why)
    limit = control.max_error_spans
    if limit is not None and len(seen.errors) > limit:
        why = f"{len(seen.errors)} spans are in error, at most {limit} may be"
        return Ruled(control=control, pass_fail="fail", confidence=0.78, excerpts=seen.errors[:SHOWN], why=why)
    missing = tuple(need for need in control.required_evidence if not seen.of(need))
    if missing:
        why = f"the trace has no {', '.join(missing)}"
        return Ruled(control=control, pass_fail="insufficient_evidence", confidence=0.5, missing=missing, why=why)
    shown = tuple(seen.of(need)[0] for need in control.required_evidence)
    confidence = 0.72 if shown else 0.62
    return Ruled(control=control, pass_fail="pass", confidence=confidence, excerpts=shown, why="no pattern matched")


def _text(span: Span) -> str:
    tool = tool_io_of(span)
    parts = [span.summary.name, span.summary.status_message, error_text(span)]
    parts += [f"{key}: {value}" for key, value in span.attributes.items() if isinstance(value, str | int | float)]
    parts += [tool.text] if tool else []
    return "\n".join(parts)[:MAX_CHARS]
