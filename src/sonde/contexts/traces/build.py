"""From what an importer found to a canonical span. ValueError says what the source lacks; importers count it and go on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from sonde.contexts.traces.attributes import KIND_KEY, canonical_attributes, event_attributes, scrubbed
from sonde.contexts.traces.span import KINDS, STATUSES, Event, Span, SpanSummary, us_of

MAX_EVENTS = 10_000
MAX_NAME_CHARS = 1000
MAX_MESSAGE_CHARS = 64_000
_STATUS_NUMBERS = {0: "UNSET", 1: "OK", 2: "ERROR"}
_TRACELOOP_KINDS = {"workflow": "CHAIN", "task": "CHAIN", "agent": "AGENT", "tool": "TOOL"}
RawEvent = tuple[str, Any, Mapping[str, Any]]


def build_span(
    *,
    trace_id: Any,
    span_id: Any,
    start: Any,
    parent_id: Any = None,
    name: Any = "",
    end: Any = None,
    status: Any = None,
    status_message: Any = "",
    attributes: Mapping[str, Any] | None = None,
    events: Iterable[RawEvent] = (),
    kind: str | None = None,
    project: str = "default",
    gaps: Iterable[str] = (),
) -> Span:
    """The canonical span of these parts; times in any spelling that `us_of` reads."""
    table, found = canonical_attributes(attributes or {})
    raw_kind = table.pop(KIND_KEY, kind)
    start_us, end_us = _start(start), us_of(end)
    shown, event_gaps = _events(events, start_us)
    summary = SpanSummary(
        trace_id=_identifier(trace_id, "trace_id"),
        span_id=_identifier(span_id, "span_id"),
        parent_id=_parent(parent_id),
        name=_text(name, MAX_NAME_CHARS),
        kind=_kind(raw_kind, table),
        status=status_of(status),
        status_message=_text(status_message, MAX_MESSAGE_CHARS),
        start_us=start_us,
        end_us=end_us,
        exception=any(event.is_exception for event in shown),
    )
    skew = () if end_us is None or end_us >= start_us else ("the span ends before it starts: clock skew",)
    return Span(
        summary=summary,
        attributes=table,
        events=shown,
        project=project,
        gaps=(*gaps, *found, *event_gaps, *skew),
    )


def status_of(value: Any) -> str:
    """OK, ERROR or UNSET from numbers, words, `STATUS_CODE_…` or an OTLP status object."""
    if isinstance(value, Mapping):
        table = cast("Mapping[str, Any]", value)
        value = table.get("code", table.get("status_code"))
    if isinstance(value, int):
        return _STATUS_NUMBERS.get(value, "UNSET")
    word = str(value or "UNSET").upper().removeprefix("STATUS_CODE_")
    if word.isdigit():
        return _STATUS_NUMBERS.get(int(word), "UNSET")
    return word if word in STATUSES else "UNSET"


def _start(value: Any) -> int:
    moment = us_of(value)
    if moment is None:
        raise ValueError("the span has no start time")
    return moment


def _identifier(value: Any, field: str) -> str:
    if value is None or value == "":
        raise ValueError(f"the span has no {field}")
    text = _text(value, MAX_NAME_CHARS)
    return text.lower() if len(text) in {16, 32} else text


def _parent(value: Any) -> str | None:
    if not value or (isinstance(value, str) and not value.strip("0")):
        return None
    return _identifier(value, "parent_id")


def _text(value: Any, limit: int) -> str:
    return str(scrubbed("" if value is None else str(value)))[:limit]


def _kind(raw: Any, table: Mapping[str, Any]) -> str:
    word = str(raw or "").upper()
    if word in KINDS - {"UNKNOWN"}:
        return word
    return _TRACELOOP_KINDS.get(str(table.get("traceloop.span.kind", "")).lower(), "UNKNOWN")


def _events(raw: Iterable[RawEvent], start_us: int) -> tuple[tuple[Event, ...], tuple[str, ...]]:
    events: list[Event] = []
    for name, moment, attributes in raw:
        if len(events) == MAX_EVENTS:
            return tuple(events), (f"events were left out beyond the first {MAX_EVENTS}",)
        time_us = us_of(moment)
        events.append(
            Event(
                name=_text(name, MAX_NAME_CHARS),
                time_us=start_us if time_us is None else time_us,
                attributes=event_attributes(str(name), attributes),
            )
        )
    return tuple(events), ()
