"""What rules alone say about a control: is its evidence there, does a pattern match, are too many spans in error.

A rule fails a control only with a proved place, and says `insufficient_evidence` when what the control requires is
not in the trace. Bounded: at most MAX_SPANS spans are opened, failed ones first, one at a time, and the first
READ_CHARS characters of each text are kept for matching; what was left out is a gap, and a control that looks there
does not pass. The same holds for what was lost before, as the gaps of a span or of the trace say. In a masked run
patterns are matched against the real values, since a mask must not make a control pass; what is quoted and pointed at
is masked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from sonde.contexts.controls import Control
from sonde.contexts.traces.caps import clipped
from sonde.contexts.traces.maskedstore import MaskedStore
from sonde.contexts.traces.prefilter import READ_CHARS, shortened
from sonde.contexts.traces.rules import error_text
from sonde.contexts.traces.span import Span
from sonde.contexts.traces.store import TraceStore
from sonde.contexts.traces.views import (
    CHUNKS,
    EVENT_ROLES,
    artifact_excerpts,
    chunks_of,
    content_excerpt,
    messages_of,
    span_excerpt,
    tool_io_of,
)
from sonde.core.evidence import EvidenceKind, Excerpt
from sonde.engines.reports import PassFail

MAX_SPANS = 400
MAX_CHARS = 1_000_000
SHOWN = 4
JUDGEMENT = "a model's or a person's judgement"
UNREAD = "not read by the rules: "
STATUS_KEYS = (
    "http.status_code",
    "http.response.status_code",
    "output.format",
    "response.format",
    "llm.finish_reason",
)
_INPUT = ("input.value", "traceloop.entity.input")
_OUTPUT = ("output.value", "traceloop.entity.output")
_KEYS: dict[str, tuple[str, ...]] = {  # what belongs to a place in a span of any kind
    "model_input": (
        "llm.input_messages",
        "llm.prompts",
        "gen_ai.prompt",
        "gen_ai.input.",
        "gen_ai.system_instructions",
    ),
    "model_output": ("llm.output_messages", "llm.choices", "gen_ai.completion", "gen_ai.output."),
    "tool_input": ("tool.parameters", "gen_ai.tool.call.arguments"),
    "tool_output": ("gen_ai.tool.call.result",),
    "retrieved": (*CHUNKS, "gen_ai.retrieval.documents"),
    "status": (*STATUS_KEYS, "exception"),
    "failed_output": (),
}
# What gaps say: of a span, that something was lost, and of which attribute; of a trace, that it has lost whole spans.
_LOST = re.compile(r"\b(cut|dropped|left out|more than once)\b")
_NAMED = re.compile(r"(?:the name of )?attribute (\S+) was |([^\s:]+): ")
_UNKEPT = re.compile(
    r"with other content|was left out: another trace|are not listed|(was|were) not read|belong to any trace"
)
# As `clipped` says it. Nobody gains by forging it: a control passes only without it.
_CUT = re.compile(rf"…\[cut: {READ_CHARS} of (\d{{1,12}}) characters\]")
_ESCAPES = (
    ("\\\\", "\\"),
    ("\\\\", "\\"),
    ("\\n", "\n"),
    ("\\r", "\n"),
    ("\\t", "\t"),
    ('\\"', '"'),
    ("\\'", "'"),
    ("\\/", "/"),
)
_CODE = re.compile(r"\\u00([0-9a-fA-F]{2})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a trace holds that controls ask for."""

    store: TraceStore
    real: tuple[tuple[str, Span], ...]
    """Spans in short as they are, with the ids that may be shown. In a masked run nothing else of them may leave this module."""
    error_count: int
    errors: tuple[Excerpt, ...]
    tool_io: tuple[Excerpt, ...]
    chunks: tuple[Excerpt, ...]
    messages: tuple[Excerpt, ...]
    attributes: tuple[Excerpt, ...]
    unopened: int = 0
    unkept: str = ""
    """The first gap that says that whole spans of the trace, or records that may be some, are not in the store."""
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

    def pointers(self, span_id: str) -> tuple[Excerpt, ...]:
        """What proves a match in a span: its summary and its whole content, read again."""
        span = self.store.span(span_id)
        return (span_excerpt(span.summary), content_excerpt(span))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruled:
    """A rule's verdict on one control."""

    control: Control
    pass_fail: PassFail
    confidence: float
    excerpts: tuple[Excerpt, ...] = ()
    missing: tuple[str, ...] = ()
    why: str = ""


def see(store: TraceStore, trace_id: str) -> Seen:
    """Open a bounded part of a trace: failed spans first, then the others, in the order of time.

    Spans are kept only in short; the excerpts point into the whole ones.
    """
    summaries = store.summaries(trace_id)
    chosen = sorted(summaries, key=lambda s: (s.status != "ERROR" and not s.exception, s.order))[:MAX_SPANS]
    real: list[tuple[str, Span]] = []
    cut: list[str] = []
    tool_io: list[Excerpt] = []
    chunks: list[Excerpt] = []
    messages: list[Excerpt] = []
    attributes: list[Excerpt] = []
    for summary in sorted(chosen, key=lambda s: s.order):
        span = store.span(summary.span_id)
        unmasked = store.real_span(summary.span_id) if isinstance(store, MaskedStore) else span
        short = _short(unmasked)
        real.append((summary.span_id, short))
        if short != unmasked:
            cut.append(summary.span_id)
        tool = tool_io_of(span)
        tool_io += artifact_excerpts(EvidenceKind.TOOL_IO, span, [tool] if tool else [])
        if len(chunks) < SHOWN:
            chunks += artifact_excerpts(EvidenceKind.RETRIEVAL_CHUNK, span, chunks_of(span)[:SHOWN])
        if span.summary.kind == "LLM" and len(messages) < SHOWN:
            messages += artifact_excerpts(EvidenceKind.MESSAGE, span, messages_of(span)[:SHOWN])
        if span.attributes and len(attributes) < SHOWN:
            attributes.append(content_excerpt(span))
    gaps: list[str] = []
    if left := len(summaries) - len(chosen):
        gaps.append(f"{left} of {len(summaries)} spans were not opened by the rules")
    if cut:
        named = ", ".join(cut[:SHOWN]) + (" and others" if len(cut) > SHOWN else "")
        gaps.append(
            f"of {len(cut)} spans only the first {READ_CHARS} characters of each text were read by the rules: {named}"
        )
    return Seen(
        store=store,
        real=tuple(real),
        error_count=sum(summary.status == "ERROR" for summary in summaries),
        errors=tuple(span_excerpt(s) for s in chosen if s.status == "ERROR"),
        tool_io=tuple(tool_io),
        chunks=tuple(chunks),
        messages=tuple(messages),
        attributes=tuple(attributes),
        unopened=len(summaries) - len(chosen),
        unkept=next(filter(_UNKEPT.search, (*store.gaps(trace_id), *store.skipped())), ""),
        gaps=tuple(gaps),
    )


def rule(control: Control, seen: Seen) -> Ruled:
    """What the rules say about one control."""
    hits: list[tuple[str, list[str]]] = []
    cut: list[int] = []  # characters that were not read, by span
    lost: list[tuple[str, int]] = []  # where something was lost: the span and which of its gaps says so
    keys = tuple(key for place in control.look_in for key in (*_KEYS[place], *_INPUT, *_OUTPUT))
    for span_id, span in seen.real if control.violation_patterns else ():
        text = _text(span, control.look_in)
        if found := _violations(control, text):
            hits.append((span_id, found))
        left = sum(max(1, int(whole) - READ_CHARS) for whole in set(_CUT.findall(text))) + max(0, len(text) - MAX_CHARS)
        cut += [left] if left else []
        for position, gap in enumerate(span.gaps):
            named = _NAMED.match(gap)
            if _LOST.search(gap) and (not keys or named is None or (named[1] or named[2]).startswith(keys)):
                lost.append((span_id, position))
                break
    if hits:
        first, found = hits[0]
        if isinstance(seen.store, MaskedStore):
            found = control.violations(_text(_short(seen.store.span(first)), control.look_in)[:MAX_CHARS])
        why = f"matched {f'{found[0]!r:.80}' if found else 'a value that the mask hides'} in span {first}"
        excerpts = tuple(e for span_id, _ in hits[:SHOWN] for e in seen.pointers(span_id))
        return Ruled(control=control, pass_fail="fail", confidence=0.78, excerpts=excerpts, why=why)
    limit = control.max_error_spans
    if limit is not None and seen.error_count > limit:
        why = f"{seen.error_count} spans are in error, at most {limit} may be"
        return Ruled(control=control, pass_fail="fail", confidence=0.78, excerpts=seen.errors[:SHOWN], why=why)
    missing = tuple(need for need in control.required_evidence if not seen.of(need))
    if missing:
        why = f"the trace has no {', '.join(missing)}"
        return Ruled(control=control, pass_fail="insufficient_evidence", confidence=0.5, missing=missing, why=why)
    if control.judgement == "model":
        why = "no pattern matched, but only a judgement can say that it holds"
        return Ruled(control=control, pass_fail="insufficient_evidence", confidence=0.5, missing=(JUDGEMENT,), why=why)
    unread = [f"{seen.unopened:,} of the spans"] if seen.unopened and control.violation_patterns else []
    unread += [f"{sum(cut):,} characters in {len(cut):,} of the spans"] if cut else []
    if lost:
        first, position = lost[0]
        unread.append(f"what {len(lost):,} of the spans lost ({first}: {seen.store.span(first).gaps[position]:.200})")
    unread += [f"spans that were not kept ({seen.unkept:.200})"] if seen.unkept else []
    if unread:
        left = UNREAD + " and ".join(unread)
        why = f"no pattern matched in what was read; {left}"
        return Ruled(control=control, pass_fail="insufficient_evidence", confidence=0.5, missing=(left,), why=why)
    shown = tuple(seen.of(need)[0] for need in control.required_evidence)
    confidence = 0.72 if shown else 0.62
    return Ruled(control=control, pass_fail="pass", confidence=confidence, excerpts=shown, why="no pattern matched")


def _short(span: Span) -> Span:
    """The span with long texts cut, also those of its events."""
    events = (
        replace(event, attributes={key: clipped(value, READ_CHARS) for key, value in event.attributes.items()})
        for event in span.events
    )
    return replace(shortened(span), events=tuple(events))


def _violations(control: Control, text: str) -> list[str]:
    """What matches in the text as it is, or as JSON means it: behind the n of an escaped line end no word begins."""
    meant = read = text[:MAX_CHARS]
    found = control.violations(read)
    if found or "\\" not in read:
        return found
    for escape, sign in _ESCAPES:  # twice the backslash itself: JSON is often inside JSON
        meant = meant.replace(escape, sign)
    return control.violations(_CODE.sub(lambda code: chr(int(code[1], 16)), meant))


def _text(span: Span, places: tuple[str, ...]) -> str:
    """What patterns are matched against: the whole span, or the named places. Each text is short already."""
    tool, summary = tool_io_of(span), span.summary
    if not places:
        parts = [summary.name, summary.status_message, error_text(span)]
        parts += [f"{key}: {value}" for table in (span.attributes, span.resource) for key, value in table.items()]
        for event in span.events:
            parts += [event.name, *(f"{event.name} {key}: {value}" for key, value in event.attributes.items())]
        parts += [tool.text] if tool else []
        return "\n".join(parts)
    found: dict[str, list[str]] = {place: [] for place in _KEYS}
    keys = dict(_KEYS)
    stated = [f"{key}: {span.attributes[key]}" for key in STATUS_KEYS if key in span.attributes]
    raised = [event for event in span.events if event.is_exception]
    stated += [str(said) for event in raised for said in (event.name, *event.attributes.values())]
    found["status"] = [summary.status_message, error_text(span), *stated]
    if summary.status == "ERROR" or summary.exception:
        keys["failed_output"] = (*_OUTPUT, "gen_ai.tool.call.result")
    if summary.kind in ("RETRIEVER", "RERANKER"):
        keys["retrieved"] += _OUTPUT
    found["retrieved"] = [str(chunk.row["content"]) for chunk in chunks_of(span)]
    if tool is not None:
        found["tool_input"] = [summary.name, tool.row["tool_name"], str(tool.row["input"])]
        found["tool_output"] = [str(tool.row["output"])]
        keys["tool_input"] += _INPUT
        keys["tool_output"] += _OUTPUT
    if summary.kind == "LLM":
        keys["model_output"] += _OUTPUT
        for row in (message.row for message in messages_of(span)):
            about = row["metadata"]
            found[f"model_{about['direction']}"] += [row["content"], str(about.get("tool_calls") or "")]
    # The views show the first of several inputs and the usual fields of a message; a pattern is matched against all of them.
    for place in set(places) - {"status"}:
        shown, begins = set(found[place]), keys[place]
        for key, value in span.attributes.items():
            if key.startswith(begins) and str(value) not in shown:
                found[place].append(f"{key}: {value}")
        for event in span.events:
            side = "model_output" if event.name == "gen_ai.choice" else "model_input"
            whole = place == side and event.name in EVENT_ROLES
            said = event.attributes.items()
            found[place] += [f"{key}: {value}" for key, value in said if whole or key.startswith(begins)]
    return "\n".join(text for place in places for text in found[place])
