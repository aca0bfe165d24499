"""A trace as somebody would read it aloud: its steps in order, each with what was new to it and what came out.

A step is a span that did something: a model call, a tool call, a look-up, any leaf with content or an error. Wrappers are not steps; their
agent's name and their error go to the steps inside. Messages that an earlier step already had are left out, long texts keep head and tail,
and what was cut is marked, so that even a trace of thousands of spans makes a text of bounded size. Pure functions, no I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise, takewhile

from sonde.contexts.traces.span import Span
from sonde.contexts.traces.views import Artifact, chunks_of, messages_of, tool_io_of
from sonde.core.canonical import canonical_json, sha256_text

WORKING = frozenset({"LLM", "TOOL", "RETRIEVER", "RERANKER", "EMBEDDING", "EVALUATOR", "GUARDRAIL"})
PART_CHARS = 60_000
MOST_CHARS = 800_000
EASY_CHARS = 60_000
LEAST_CHARS = 160
NOTHING = "(no documents came back)"
SLOW_S = 30
CUT_OFF = frozenset({"length", "max_tokens", "content_filter"})
QUOTED_STEPS = 12
QUOTED_CHARS = 200
RUN_TASK_CHARS = 800
GIVEN_ROOMS = 8
TAIL_SHARE = 0.55  # instructions and errors stand at the end of a text more often than at its beginning


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing that happened. `number` counts from 0 in the order of time, or is the position that the source gave. `around` is the error
    in which it ended; `reports` the step of the same agent whose error this one is told; `begins` the task of a run of agents that begins
    with it, where the trace holds several; `marks` what is out of the ordinary about it.
    """

    number: int
    span_id: str
    kind: str
    name: str
    agent: str
    status: str
    given: tuple[str, ...]
    came: str
    around: str = ""
    reports: int | None = None
    begins: str | None = None
    marks: tuple[str, ...] = ()

    def text(self, room: int, most: int | None = None) -> str:
        """The step in words, with texts of at most `room` characters each and at most about `most` characters of new input."""
        head = f"### step {self.number} | span {self.span_id} | {self.kind} {self.name} | agent {self.agent}"
        lines = [] if self.begins is None else [f"## A new run begins.{_told(self.begins)}\n"]
        lines.append(" | ".join([head, *self.marks]))
        if self.reports is not None:
            lines.append(f"[its new input reports the error of step {self.reports}]")
        if self.given:
            given = [shortened(each, room // 2) for each in self.given]
            lines.append("[new input]\n" + "\n".join(_fewer(given, most or GIVEN_ROOMS * room)))
        if self.came:
            lines.append(f"[output]\n{shortened(self.came, room)}")
        if self.around:
            lines.append(f"[it ended in an error] {shortened(self.around, room)}")
        return "\n".join(lines)

    def line(self, room: int = 110) -> str:
        """The step in one line, with so much of what it said."""
        said = " ".join((self.came or " ".join(self.given)).split())
        mark = " ERROR" if self.around or self.status == "ERROR" else ""
        mark += "" if self.reports is None else f" is told the error of {self.reports}"
        mark += "" if self.begins is None else " (a new run begins)"
        return f"{self.number} {self.span_id} {self.kind} {self.name} ({self.agent}){mark}: {said[:room]}".rstrip(": ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Steps that are read together; `task` is that of the run they belong to, if the trace holds several."""

    text: str
    span_ids: tuple[str, ...]
    first: int
    last: int
    task: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """The steps of a trace, and the length to which their texts are cut so that all of it stays readable."""

    task: str
    steps: tuple[Step, ...]
    room: int
    conversation: bool = False

    def text(self) -> str:
        """All of it."""
        return "\n\n".join(step.text(self.room) for step in self.steps)

    def outline(self, most: int | None = None) -> str:
        """One line a step, each shorter where all would be longer than `most`; only then are lines left out of the middle."""
        whole = "\n".join(step.line() for step in self.steps)
        if most is None or len(whole) <= most:
            return whole
        return shortened("\n".join(step.line(24) for step in self.steps), most)

    def parts(self, size: int = PART_CHARS) -> list[Part]:
        """The steps packed in order into texts of about this size; a step is never split, and a new run begins a new part."""
        packed: list[tuple[str | None, list[tuple[Step, str]]]] = []
        filled = size
        task: str | None = None
        for step in self.steps:
            text = step.text(self.room)
            task = task if step.begins is None else step.begins
            if filled + len(text) > size or step.begins is not None:
                packed.append((task, []))
                filled = 0
            packed[-1][1].append((step, text))
            filled += len(text)
        return [_part(task, steps) for task, steps in packed]


def transcript_of(spans: Iterable[Span], most: int = MOST_CHARS) -> Transcript:
    """The transcript of a trace whose spans come in order of time."""
    listed = list(spans)
    steps = tuple(_steps(listed))
    conversation = any("conversation.step" in span.attributes for span in listed)
    return Transcript(task=_task(listed), steps=steps, room=_room(steps, most), conversation=conversation)


def _told(task: str) -> str:
    return f" Its task: {shortened(task, RUN_TASK_CHARS)}" if task else ""


def shortened(text: str, room: int) -> str:
    """Head and tail of a text that is too long, with the cut marked."""
    if len(text) <= room:
        return text
    tail = int(room * TAIL_SHARE)
    return f"{text[: room - tail]}\n[... {len(text) - room} characters cut ...]\n{text[len(text) - tail :]}"


def _fewer(texts: list[str], most: int) -> list[str]:
    """The first and the last texts that fit, with the number of those between."""
    head = _fitting(texts, most - int(most * TAIL_SHARE))
    tail = _fitting(texts[: head - 1 : -1], int(most * TAIL_SHARE))
    left = len(texts) - head - tail
    return [*texts[:head], f"[... {left} messages left out ...]", *texts[len(texts) - tail :]] if left > 0 else texts


def _fitting(texts: Sequence[str], room: int) -> int:
    """How many texts fit, at least one."""
    sizes = accumulate(len(text) for text in texts)
    return max(1, sum(1 for _ in takewhile(lambda size: size <= room, sizes)))


def _steps(spans: Sequence[Span]) -> list[Step]:
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
        return tuple(filter(None, [_plain(call.row["input"])])), _plain(call.row["output"])
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


def _plain(value: object) -> str:
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


def _task(spans: Sequence[Span]) -> str:
    """What was asked for: the first input of a root or an agent."""
    for span in spans:
        value = span.attributes.get("input.value")
        if value is not None and (span.summary.parent_id is None or span.summary.kind in {"AGENT", "CHAIN"}):
            return _plain(value)
    return ""


def _input(span: Span) -> str:
    return _plain(span.attributes.get("input.value"))


def _room(steps: Sequence[Step], most: int) -> int:
    """The longest cut at which all steps together fit; a short trace is cut little."""
    for room in (16_000, 8_000):
        if _length(steps, room) <= min(EASY_CHARS, most):
            return room
    room = 4000
    while room > LEAST_CHARS and _length(steps, room) > most:
        room = max(LEAST_CHARS, room * 3 // 4)
    return room


def _length(steps: Sequence[Step], room: int) -> int:
    return sum(len(step.text(room)) for step in steps)


def _part(task: str | None, steps: Sequence[tuple[Step, str]]) -> Part:
    return Part(
        task=task,
        text="\n\n".join(text for _, text in steps),
        span_ids=tuple(step.span_id for step, _ in steps),
        first=steps[0][0].number,
        last=steps[-1][0].number,
    )
