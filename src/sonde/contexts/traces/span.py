"""One canonical span, whatever the source: the same span from Phoenix and from a file has the same text and the same hash.

Times are whole microseconds (what Phoenix keeps), attributes are one flat table (see `attributes`), the kind is one of ten words. `gaps`
say what a source lost or broke; they are not part of the hash, because two sources may know different things about the same span.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Self, cast

from sonde.contexts.traces.attributes import KIND_KEY, MAX_GAPS, MAX_NAMES_CHARS, canonical_attributes
from sonde.contexts.traces.genai import scrubbed
from sonde.core.canonical import canonical_json, sha256_text

KINDS = frozenset(
    {"LLM", "TOOL", "RETRIEVER", "CHAIN", "AGENT", "RERANKER", "EMBEDDING", "EVALUATOR", "GUARDRAIL", "UNKNOWN"}
)
STATUSES = frozenset({"OK", "ERROR", "UNSET"})
MAX_EVENTS = 10_000
MAX_RESOURCE = 32
MAX_RESOURCE_CHARS = 200
MAX_NAME_CHARS = 1000
MAX_MESSAGE_CHARS = 64_000
_STATUS_NUMBERS = {0: "UNSET", 1: "OK", 2: "ERROR"}
_EXCEPTION_KEYS = ("exception.type", "exception.message", "exception.escaped", "exception.stacktrace")
_TRACELOOP_KINDS = {"workflow": "CHAIN", "task": "CHAIN", "agent": "AGENT", "tool": "TOOL"}
LATEST_US = 2**62  # what the index holds, with room for a duration
_MACHINE = ("telemetry.", "process.", "host.", "os.", "container.", "openinference.")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Row = dict[str, Any]
RawEvent = tuple[str, Any, Mapping[str, Any]]


class Broken(str):
    """Why a span could not be made of what a source holds, and its trace, as far as that is known."""

    __slots__ = ("trace_id",)
    trace_id: str

    def __new__(cls, reason: str, trace_id: Any) -> Self:
        """`trace_id` as `build_span` takes it."""
        broken = super().__new__(cls, reason)
        broken.trace_id = (
            _identifier(trace_id, "trace_id") if isinstance(trace_id, str | int) and trace_id != "" else ""
        )
        return broken


class Micros(int):
    """Microseconds since 1970 from a source whose unit is known, so that nobody guesses it from the size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanSummary:
    """A span without its content: what lists and the pre-filter work on."""

    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    kind: str
    status: str
    status_message: str
    start_us: int
    end_us: int | None
    exception: bool = False

    @property
    def latency_ms(self) -> float:
        """Never below zero: a span that ends before it starts has a skewed clock, not a negative duration."""
        return max(0, (self.end_us or self.start_us) - self.start_us) / 1000

    @property
    def order(self) -> tuple[int, str]:
        """The stable order of spans."""
        return (self.start_us, self.span_id)

    def row(self) -> Row:
        """The fields of the inspection contract."""
        return {
            "trace_id": self.trace_id,
            "span_id": self.span_id,
            "parent_id": self.parent_id,
            "name": self.name,
            "span_kind": self.kind,
            "status_code": self.status,
            "status_message": self.status_message,
            "start_time": time_text(self.start_us),
            "end_time": None if self.end_us is None else time_text(self.end_us),
            "latency_ms": self.latency_ms,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanEvent:
    """Something that happened inside a span, with its time and flat attributes."""

    name: str
    time_us: int
    attributes: Mapping[str, Any]

    def row(self) -> Row:
        """The fields of the inspection contract."""
        return {"name": self.name, "timestamp": time_text(self.time_us), "attributes": dict(self.attributes)}

    @property
    def is_exception(self) -> bool:
        """The pre-filter's test: the name contains exception or error."""
        lowered = self.name.lower()
        return "exception" in lowered or "error" in lowered


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The canonical span."""

    summary: SpanSummary
    attributes: Mapping[str, Any]
    events: tuple[SpanEvent, ...] = ()
    project: str = "default"
    gaps: tuple[str, ...] = field(default=(), compare=False)
    resource: Mapping[str, str] = field(default_factory=dict[str, str], compare=False)
    """What sent the span (service, version), where a source says so; a Phoenix server does not, so it is not part of the hash."""

    def content(self) -> Row:
        """Attributes and events as one value."""
        return {"attributes": dict(self.attributes), "events": [event.row() for event in self.events]}

    def text(self) -> str:
        """The canonical text of the whole span."""
        return canonical_json({"summary": self.summary.row(), **self.content()})

    def hash(self) -> str:
        """Sha256 of the canonical text: equal for equal spans from every source."""
        return sha256_text(self.text())


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
    resource: Mapping[str, Any] | None = None,
) -> Span:
    """The canonical span of what an importer found; times in any spelling that `us_of` reads.

    ValueError says what the source lacks; importers count it and go on.
    """
    start_us, end_us = us_of(start), us_of(end)
    if start_us is None:
        raise ValueError("the span has no start time")
    no_parent = not parent_id or (isinstance(parent_id, str) and not parent_id.strip("0"))
    # Whatever can be wrong with a span is found before its attributes are flattened, which is most of the work.
    summary = SpanSummary(
        trace_id=_identifier(trace_id, "trace_id"),
        span_id=_identifier(span_id, "span_id"),
        parent_id=None if no_parent else _identifier(parent_id, "parent_id"),
        name=_text(name, MAX_NAME_CHARS),
        kind="UNKNOWN",
        status=_status_of(status),
        status_message=_text(status_message, MAX_MESSAGE_CHARS),
        start_us=start_us,
        end_us=end_us,
        exception=False,
    )
    timed = [(event_name, us_of(moment), raw) for event_name, moment, raw in islice(events, MAX_EVENTS + 1)]
    table, found = canonical_attributes(attributes or {})
    word = str(table.pop(KIND_KEY, kind) or "").upper()
    if word not in KINDS or word == "UNKNOWN":
        word = _TRACELOOP_KINDS.get(str(table.get("traceloop.span.kind", "")).lower(), "UNKNOWN")
    missing = list(gaps) + found
    for what, text, limit in (("name", name, MAX_NAME_CHARS), ("status message", status_message, MAX_MESSAGE_CHARS)):
        if text is not None and len(str(text)) > limit:
            missing.append(f"the {what} was cut to {limit} characters")
    lost: dict[str, None] = {}  # what events lost, each thing once
    shown: list[SpanEvent] = []
    names = 0
    for event_name, time_us, raw in timed:
        if len(shown) == MAX_EVENTS:
            missing.append(f"events were left out beyond the first {MAX_EVENTS}")
            break
        said, found = canonical_attributes(raw)
        names += sum(map(len, said))
        if names > MAX_NAMES_CHARS:
            missing.append(
                f"events were left out: their attributes have names of more than {MAX_NAMES_CHARS} characters"
            )
            break
        if len(str(event_name)) > MAX_NAME_CHARS:
            found.append(f"the name was cut to {MAX_NAME_CHARS} characters")
        if event_name == "exception":  # it keeps the four keys that its convention names, as in Phoenix
            if said.keys() - _EXCEPTION_KEYS:
                found.append("attributes were left out that the convention for exceptions does not name")
            said = {"exception.message": "", **{key: said[key] for key in _EXCEPTION_KEYS if key in said}}
        if len(lost) < MAX_GAPS:
            where = "exception:" if event_name == "exception" else "in an event,"
            lost |= dict.fromkeys(f"{where} {gap}" for gap in found)
        moment = start_us if time_us is None else time_us
        shown.append(SpanEvent(name=_text(event_name, MAX_NAME_CHARS), time_us=moment, attributes=said))
    missing += lost
    if len(lost) >= MAX_GAPS:
        missing.append("more may have been left out of events than is listed here")
    kept, left = _sender(resource or {})
    if left:
        missing.append(
            f"resource: {left} attributes were left out: too long, not plain, or beyond the first {MAX_RESOURCE}"
        )
    if end_us is not None and end_us < start_us:
        missing.append("the span ends before it starts: clock skew")
    return Span(
        summary=replace(summary, kind=word, exception=any(event.is_exception for event in shown)),
        attributes=table,
        events=tuple(shown),
        project=project,
        gaps=tuple(missing),
        resource=kept,
    )


def _sender(resource: Mapping[str, Any]) -> tuple[dict[str, str], int]:
    """What a resource says about the sender, without the machine it ran on: short values, not many; and how many were left out."""
    kept: dict[str, str] = {}
    left = 0
    for key, value in resource.items():
        if key.startswith(_MACHINE) or value is None:
            continue
        plain = isinstance(value, str | int | float) and len(str(value)) <= MAX_RESOURCE_CHARS
        if plain and len(key) <= MAX_RESOURCE_CHARS and len(kept) < MAX_RESOURCE:
            kept[_text(key, MAX_RESOURCE_CHARS)] = _text(value, MAX_RESOURCE_CHARS)
        else:
            left += 1
    return kept, left


def _status_of(value: Any) -> str:
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


def _identifier(value: Any, field: str) -> str:
    if value is None or value == "":
        raise ValueError(f"the span has no {field}")
    text = _text(value, MAX_NAME_CHARS)
    return text.lower() if len(text) in {16, 32} else text


def _text(value: Any, limit: int) -> str:
    return str(scrubbed("" if value is None else str(value)))[:limit]


def time_text(microseconds: int) -> str:
    """RFC 3339 in UTC with microseconds. What a stranger's clock says of the years before 1 and after 9999 is the first or the last moment
    that can be written: others read the text back and sort by it.
    """
    try:
        moment = EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        moment = datetime.max.replace(tzinfo=UTC) if microseconds > 0 else datetime.min.replace(tzinfo=UTC)
    return moment.isoformat(timespec="microseconds")[:-6] + "Z"


def us_of_nanos(nanoseconds: int) -> int:
    """Whole microseconds, rounded by the same arithmetic as a Phoenix server, so that both agree to the last digit."""
    fraction, whole = math.modf(nanoseconds / 1e9)
    return int(whole) * 1_000_000 + round(fraction * 1e6)


def us_of_text(text: str) -> int:
    """Microseconds of an ISO 8601 time; without a zone it is UTC. ValueError when it is no time."""
    text = text.strip()
    head, dot, tail = text.partition(".")
    if dot and (digits := len(tail) - len(tail.lstrip("0123456789"))):
        text = f"{head}.{tail[: min(digits, 6)].ljust(6, '0')}{tail[digits:]}"  # Python reads six digits of a second
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - EPOCH) // timedelta(microseconds=1)


def us_of(value: Any) -> int | None:
    """Microseconds of whatever sources write: ISO text, seconds, milliseconds, microseconds or nanoseconds since 1970."""
    match value:
        case None | "" | bool():
            return None
        case Micros():
            moment = int(value)
        case str() if value.isdigit():
            moment = _us_of_number(int(value))
        case str():
            moment = us_of_text(value)
        case int() | float() if math.isfinite(value):
            moment = _us_of_number(value)
        case datetime():
            moment = us_of_text(value.isoformat())
        case _:
            raise ValueError(f"{value!r} is not a time; write 2026-11-01T12:00:00Z or nanoseconds since 1970")
    if abs(moment) > LATEST_US:
        raise ValueError(f"{moment} microseconds since 1970 is no time")
    return moment


def _us_of_number(value: float) -> int:
    """The unit follows from the size: every time between 1973 and 2286 is told apart."""
    size = abs(value)
    if size >= 1e17:
        return us_of_nanos(int(value))
    if size >= 1e14:
        return round(value)
    if size >= 1e11:
        return round(value * 1e3)
    return round(value * 1e6)
