"""Which spans of a trace are steps, and what was new to each of them. Pure functions, no I/O.

A step is a span that did something: a model call, a tool call, a look-up, any leaf with content or an error. Wrappers are not steps; their
agent's name and their error go to the steps inside. Messages that an earlier step already had are left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from sonde.contexts.traces.span import Span
from sonde.contexts.traces.step import Step
from sonde.contexts.traces.views import Artifact, chunks_of, messages_of, tool_io_of
from sonde.core.canonical import canonical_json, sha256_text

WORKING = frozenset({"LLM", "TOOL", "RETRIEVER", "RERANKER", "EMBEDDING", "EVALUATOR", "GUARDRAIL"})
NOTHING = "(no documents came back)"
SLOW_S = 30
CUT_OFF = frozenset({"length", "max_tokens", "content_filter"})
QUOTED_STEPS = 12
QUOTED_CHARS = 200


def steps_of(spans: Sequence[Span]) -> list[Step]:
    """The steps of a trace whose spans come in order of time."""
    known = {span.summary.span_id: span for span in spans}
    parents = {span.summary.parent_id for span in spans}
    above = _Above(known)
    runs = _runs(spans, known, above)
    heard = _Heard()
    failed: dict[tuple[str, str], int] = {}
    steps: list[Step] = []
    told = [span for span in spans if _did_something(span, is_leaf=span.summary.span_id not in parents)]
    for number, span in zip(_numbers(told), told, strict=True):
        step = _step(span, number, heard)
        heard.add(step)
        place, around = above.place(span), _around(span, known)
        is_call = step.kind == "LLM"
        reports = failed.pop((place.run, place.agent), None) if is_call else None
        begins = runs.pop(place.run, None)
        steps.append(replace(step, agent=place.agent, around=around, reports=reports, begins=begins))
        if is_call and around:
            failed[place.run, place.agent] = step.number
    return _with_wrappers_errors(steps, spans, known)


def _numbers(told: Sequence[Span]) -> Sequence[int]:
    """The positions that the source gave, if every step has one and they ascend: pages go on by these numbers."""
    given = [span.attributes.get("conversation.step") for span in told]
    positions = [position for position in given if isinstance(position, int)]
    ascend = len(positions) == len(told) and all(one < other for one, other in pairwise(positions))
    return positions if ascend else range(len(told))


def _with_wrappers_errors(steps: list[Step], spans: Sequence[Span], known: Mapping[str, Span]) -> list[Step]:
    """The steps with the errors of wrappers that no step tells, each at the last step inside, unless that ended in an error of its own."""
    own = {step.span_id for step in steps}
    last = _last_inside(steps, known)
    told = {(known[step.span_id].summary.parent_id, step.around) for step in steps}
    for span in reversed(spans):
        span_id, at = span.summary.span_id, last.get(span.summary.span_id)
        if at is None or span_id in own or span.summary.status != "ERROR" or steps[at].around:
            continue
        if (span_id, _error(span)) not in told:
            steps[at] = replace(steps[at], around=_error(span))
    return steps


def _last_inside(steps: Sequence[Step], known: Mapping[str, Span]) -> dict[str, int]:
    """The position of the last step inside each span that has some. What lies above a span that was met was met with it."""
    last: dict[str, int] = {}
    for at in range(len(steps) - 1, -1, -1):
        each = known.get(known[steps[at].span_id].summary.parent_id or "")
        while each is not None and each.summary.span_id not in last:
            last[each.summary.span_id] = at
            each = known.get(each.summary.parent_id or "")
    return last


def _runs(spans: Sequence[Span], known: Mapping[str, Span], above: _Above) -> dict[str, str]:
    """The task of each run of agents by the id of its outermost agent; none where there is only one."""
    outermost = {run for span in spans if (run := above.place(span).run)}
    return {run: _input(known[run]) for run in outermost} if len(outermost) > 1 else {}


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a span stands: the nearest agent, by its own name for itself, and the run, which is the outermost agent around the span that
    is not the root of the trace. A span is not around itself: what an agent says in a conversation is a step, not a run. `inside` is the
    run of the spans below.
    """

    agent: str = "-"
    run: str = ""
    inside: str = ""


class _Above:
    """Places of spans, each found from that of its parent, so that a deep trace costs no more than a wide one."""

    def __init__(self, known: Mapping[str, Span]) -> None:
        self._known = known
        self._places: dict[str, _Place] = {}

    def place(self, span: Span) -> _Place:
        """Where this span stands; a cycle is cut where it closes."""
        way: dict[str, Span] = {}
        each: Span | None = span
        while each is not None and each.summary.span_id not in self._places and each.summary.span_id not in way:
            way[each.summary.span_id] = each
            each = self._known.get(each.summary.parent_id or "")
        place = self._places.get(each.summary.span_id, _Place()) if each is not None else _Place()
        for span_id in reversed(way):
            place = self._places[span_id] = _below(place, way[span_id])
        return self._places[span.summary.span_id]


def _below(above: _Place, span: Span) -> _Place:
    is_agent = span.summary.kind == "AGENT"
    named = span.attributes.get("agent.name") or (span.summary.name if is_agent else above.agent)
    inner = span.summary.span_id if is_agent and span.summary.parent_id else ""
    return _Place(agent=str(named), run=above.inside, inside=above.inside or inner)


def _did_something(span: Span, *, is_leaf: bool) -> bool:
    if span.summary.kind in WORKING:
        return True
    return is_leaf and (span.summary.status == "ERROR" or bool(span.events) or bool(messages_of(span)))


@dataclass(slots=True)
class _Heard:
    """What earlier steps have shown: whole messages, and the latest outputs, which agents like to quote in full."""

    messages: set[str] = field(default_factory=set[str])
    outputs: deque[tuple[int, str]] = field(default_factory=lambda: deque[tuple[int, str]](maxlen=QUOTED_STEPS))

    def add(self, step: Step) -> None:
        """Remember what came out of a step."""
        if len(step.came) >= QUOTED_CHARS:
            self.outputs.append((step.number, step.came.strip()))

    def without_quotes(self, text: str) -> str:
        """The text with the outputs of earlier steps named instead of repeated."""
        for number, output in self.outputs:
            text = text.replace(output, f"[here the output of step {number} is repeated]")
        return text


def _step(span: Span, number: int, heard: _Heard) -> Step:
    given, came = _said(span, heard)
    return Step(
        number=number,
        span_id=span.summary.span_id,
        kind=span.summary.kind,
        name=span.summary.name,
        agent="",
        status=span.summary.status,
        given=given,
        came=came or (NOTHING if span.summary.kind == "RETRIEVER" else ""),
        marks=tuple(_marks(span)),
    )


def _marks(span: Span) -> Iterable[str]:
    if span.summary.status not in {"OK", "UNSET"}:
        yield span.summary.status
    if (seconds := span.summary.latency_ms / 1000) >= SLOW_S:
        yield f"took {seconds:.0f} s"
    if (reason := str(span.attributes.get("llm.finish_reason", ""))) in CUT_OFF:
        yield f"cut off: {reason}"


def _said(span: Span, heard: _Heard) -> tuple[tuple[str, ...], str]:
    call = tool_io_of(span)
    if call is not None:
        return tuple(filter(None, [plain(call.row["input"])])), plain(call.row["output"])
    messages = messages_of(span)
    given = [_fresh(each, heard) for each in messages if each.row["metadata"]["direction"] == "input"]
    came = [_message(each) for each in messages if each.row["metadata"]["direction"] == "output"]
    came += [_chunk(each) for each in chunks_of(span)]
    heard.messages.update(map(_key, messages))
    return tuple(filter(None, given)), "\n".join(came)


def _chunk(chunk: Artifact) -> str:
    score = chunk.row["score"]
    return f"document {chunk.row['document_id']}{'' if score is None else f' (score {score})'}: {chunk.row['content']}"


def _fresh(message: Artifact, heard: _Heard) -> str:
    if _key(message) in heard.messages:
        return ""
    return f"<{message.row['role']}> {heard.without_quotes(_message(message))}"


def _key(message: Artifact) -> str:
    said = str(message.row["content"]).strip()
    return sha256_text(said or _message(message).strip())


def _message(message: Artifact) -> str:
    calls = message.row["metadata"].get("tool_calls")
    said = str(message.row["content"])
    return f"{said}\ncalls: {canonical_json(calls)}" if calls else said


def plain(value: object) -> str:
    """A value as text, whatever the source kept it as."""
    return "" if value is None else value if isinstance(value, str) else canonical_json(value)


def _around(span: Span, known: Mapping[str, Span]) -> str:
    """The span's own error, or that of the wrapper directly around a model call: what became of its output."""
    own = span.summary
    if own.status == "ERROR" or any(event.is_exception for event in span.events):
        return _error(span)
    parent = known.get(own.parent_id or "")
    failed = parent is not None and parent.summary.kind == "CHAIN" and parent.summary.status == "ERROR"
    return _error(parent) if parent is not None and failed and own.kind == "LLM" else ""


def _error(span: Span) -> str:
    told = [str(event.attributes.get("exception.message", "")) for event in span.events if event.is_exception]
    return span.summary.status_message or next(filter(None, told), "no message")


def _input(span: Span) -> str:
    return plain(span.attributes.get("input.value"))
