"""A trace as somebody would read it aloud: its steps in order, what was new to each and what came out. Pure functions, no I/O.

A step is a span that did something: a model call, a tool call, a look-up, any leaf with content or an error. Wrappers are not steps; their
agent's name and their error go to the steps inside. A step leaves out messages that an earlier step already had. Long texts keep head and
tail with the cut marked, so that even a trace of thousands of spans makes a text of bounded size.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise, takewhile

from sonde.contexts.traces.span import Span
from sonde.contexts.traces.views import Artifact, chunks_of, messages_of, tool_io_of
from sonde.core.canonical import canonical_json, sha256_text

PART_CHARS = 60_000
MOST_CHARS = 800_000
EASY_CHARS = 60_000
LEAST_CHARS = 160
RUN_TASK_CHARS = 800
GIVEN_ROOMS = 8
TAIL_SHARE = 0.55  # instructions and errors stand at the end of a text more often than at its beginning
WORKING = frozenset({"LLM", "TOOL", "RETRIEVER", "RERANKER", "EMBEDDING", "EVALUATOR", "GUARDRAIL"})
NOTHING = "(no documents came back)"
SLOW_S = 30
CUT_OFF = frozenset({"length", "max_tokens", "content_filter"})
QUOTED_STEPS = 12
QUOTED_CHARS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing that happened. `number` counts from 0 in the order of time, or is the position that the source gave. `around` is the error
    in which it ended. `reports` is the step of the same agent whose error reaches this one. `begins` is the task of a run of agents that
    begins here, if the trace holds several runs. `marks` says what is out of the ordinary.
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
        lines: list[str] = []
        if self.begins is not None:
            task = f" Its task: {shortened(self.begins, RUN_TASK_CHARS)}" if self.begins else ""
            lines.append(f"## A new run begins.{task}\n")
        head = f"### step {self.number} | span {self.span_id} | {self.kind} {self.name} | agent {self.agent}"
        lines.append(" | ".join([head, *self.marks]))
        if self.reports is not None:
            lines.append(f"[its new input reports the error of step {self.reports}]")
        if self.given:
            given = [shortened(each, room // 2) for each in self.given]
            lines.append("[new input]\n" + "\n".join(_ends_of(given, most or GIVEN_ROOMS * room)))
        if self.came:
            lines.append(f"[output]\n{shortened(self.came, room)}")
        if self.around:
            lines.append(f"[it ended in an error] {shortened(self.around, room)}")
        return "\n".join(lines)

    def line(self, room: int = 110) -> str:
        """The step in one line, with up to `room` characters of what it said."""
        said = " ".join((self.came or " ".join(self.given)).split())
        mark = " ERROR" if self.around or self.status == "ERROR" else ""
        mark += "" if self.reports is None else f" is told the error of {self.reports}"
        mark += "" if self.begins is None else " (a new run begins)"
        return f"{self.number} {self.span_id} {self.kind} {self.name} ({self.agent}){mark}: {said[:room]}".rstrip(": ")


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptPart:
    """Steps that are read together; `task` is that of their run, if the trace holds several."""

    text: str
    span_ids: tuple[str, ...]
    first: int
    last: int
    task: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """The steps of a trace. `room` is the length to which their texts are cut so that the whole stays readable."""

    task: str
    steps: tuple[Step, ...]
    room: int
    conversation: bool = False

    def text(self) -> str:
        """All of it."""
        return "\n\n".join(step.text(self.room) for step in self.steps)

    def outline(self, most: int | None = None) -> str:
        """One line per step. Beyond `most` characters the lines get shorter; if that is not enough, the middle is left out."""
        whole = "\n".join(step.line() for step in self.steps)
        if most is None or len(whole) <= most:
            return whole
        return shortened("\n".join(step.line(24) for step in self.steps), most)

    def parts(self, size: int = PART_CHARS) -> list[TranscriptPart]:
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
        return [
            TranscriptPart(
                task=task,
                text="\n\n".join(text for _, text in steps),
                span_ids=tuple(step.span_id for step, _ in steps),
                first=steps[0][0].number,
                last=steps[-1][0].number,
            )
            for task, steps in packed
        ]


def transcript_of(spans: Iterable[Span], most: int = MOST_CHARS) -> Transcript:
    """The transcript of a trace whose spans come in order of time."""
    listed = list(spans)
    steps = tuple(steps_of(listed))
    conversation = any("conversation.step" in span.attributes for span in listed)
    tasks = (  # what was asked for: the first input of a root or an agent
        _plain(span.attributes["input.value"])
        for span in listed
        if span.attributes.get("input.value") is not None
        and (span.summary.parent_id is None or span.summary.kind in {"AGENT", "CHAIN"})
    )

    def length(room: int) -> int:
        return sum(len(step.text(room)) for step in steps)

    # The longest cut at which all steps together fit; a short trace is cut little.
    easy = min(EASY_CHARS, most)
    room = next((room for room in (16_000, 8_000) if length(room) <= easy), 4000)
    while LEAST_CHARS < room <= 4000 and length(room) > most:
        room = max(LEAST_CHARS, room * 3 // 4)
    return Transcript(task=next(tasks, ""), steps=steps, room=room, conversation=conversation)


def steps_of(spans: Sequence[Span]) -> list[Step]:
    """The steps of a trace whose spans come in order of time."""
    known = {span.summary.span_id: span for span in spans}
    parents = {span.summary.parent_id for span in spans}
    nestings = _nestings(spans, known)
    outermost = {nesting.run for nesting in nestings.values() if nesting.run}
    waiting = {run: _plain(known[run].attributes.get("input.value")) for run in outermost} if len(outermost) > 1 else {}
    told = [
        span
        for span in spans
        if span.summary.kind in WORKING
        or (
            span.summary.span_id not in parents and (span.summary.status == "ERROR" or span.events or messages_of(span))
        )
    ]
    # Pages go on by these numbers, so positions of the source count only if every step has one and they ascend.
    given = [span.attributes.get("conversation.step") for span in told]
    positions = [position for position in given if isinstance(position, int)]
    ascend = len(positions) == len(told) and all(one < other for one, other in pairwise(positions))
    heard = _Heard()
    failed: dict[tuple[str, str], int] = {}
    steps: list[Step] = []
    for number, span in zip(positions if ascend else range(len(told)), told, strict=True):
        step = _step(span, number, heard)
        nesting = nestings[span.summary.span_id]
        parent = known.get(span.summary.parent_id or "")
        is_call = step.kind == "LLM"
        around = ""
        if span.summary.status == "ERROR" or any(event.is_exception for event in span.events):
            around = _error(span)
        elif is_call and parent is not None and parent.summary.kind == "CHAIN" and parent.summary.status == "ERROR":
            around = _error(parent)  # the wrapper around a model call says what became of its output
        reports = failed.pop((nesting.run, nesting.agent), None) if is_call else None
        begins = waiting.pop(nesting.run, None)
        steps.append(replace(step, agent=nesting.agent, around=around, reports=reports, begins=begins))
        if is_call and around:
            failed[nesting.run, nesting.agent] = step.number
    _add_errors_of_wrappers(steps, spans, known)
    return steps


def _add_errors_of_wrappers(steps: list[Step], spans: Sequence[Span], known: Mapping[str, Span]) -> None:
    """Put each wrapper's error that no step tells at the last step inside it, unless that one ended in an error of its own."""
    own = {step.span_id for step in steps}
    told = {(known[step.span_id].summary.parent_id, step.around) for step in steps}
    last_inside: dict[str, int] = {}
    for at in range(len(steps) - 1, -1, -1):
        each = known.get(known[steps[at].span_id].summary.parent_id or "")
        while (
            each is not None and each.summary.span_id not in last_inside
        ):  # whatever is above a known one is known too
            last_inside[each.summary.span_id] = at
            each = known.get(each.summary.parent_id or "")
    for span in reversed(spans):
        span_id, at = span.summary.span_id, last_inside.get(span.summary.span_id)
        if at is None or span_id in own or span.summary.status != "ERROR" or steps[at].around:
            continue
        if (span_id, _error(span)) not in told:
            steps[at] = replace(steps[at], around=_error(span))


@dataclass(frozen=True, slots=True)
class _Nesting:
    """The nearest agent around a span, by its own name for itself, and the run: the outermost agent around the span that is not the root
    of the trace. A span is not around itself: what an agent says in a conversation is a step, not a run. `inside` is the run of the spans
    below.
    """

    agent: str = "-"
    run: str = ""
    inside: str = ""


def _nestings(spans: Sequence[Span], known: Mapping[str, Span]) -> dict[str, _Nesting]:
    """By span id, each from that of its parent, so that a deep trace costs no more than a wide one. A cycle is cut where it closes."""
    found: dict[str, _Nesting] = {}
    for span in spans:
        way: dict[str, Span] = {}
        each: Span | None = span
        while each is not None and each.summary.span_id not in found and each.summary.span_id not in way:
            way[each.summary.span_id] = each
            each = known.get(each.summary.parent_id or "")
        above = found.get(each.summary.span_id, _Nesting()) if each is not None else _Nesting()
        for span_id, inner in reversed(way.items()):
            is_agent = inner.summary.kind == "AGENT"
            named = inner.attributes.get("agent.name") or (inner.summary.name if is_agent else above.agent)
            begun = span_id if is_agent and inner.summary.parent_id else ""
            above = found[span_id] = _Nesting(str(named), run=above.inside, inside=above.inside or begun)
    return found


@dataclass(slots=True)
class _Heard:
    """What earlier steps have shown: whole messages by key, and the latest long outputs, which agents like to quote in full."""

    messages: set[str] = field(default_factory=set[str])
    outputs: deque[tuple[int, str]] = field(default_factory=lambda: deque[tuple[int, str]](maxlen=QUOTED_STEPS))


def _step(span: Span, number: int, heard: _Heard) -> Step:
    """What a span did, without what earlier steps have shown; remembers what it shows itself."""
    given: list[str] = []
    if (call := tool_io_of(span)) is not None:
        given = list(filter(None, [_plain(call.row["input"])]))
        came = _plain(call.row["output"])
    else:
        messages = messages_of(span)
        keys = [sha256_text(str(each.row["content"]).strip() or _message(each).strip()) for each in messages]
        for each, key in zip(messages, keys, strict=True):
            if each.row["metadata"]["direction"] == "input" and key not in heard.messages:
                text = _message(each)
                for earlier, output in heard.outputs:
                    text = text.replace(output, f"[here the output of step {earlier} is repeated]")
                given.append(f"<{each.row['role']}> {text}")
        heard.messages.update(keys)
        outputs = [_message(each) for each in messages if each.row["metadata"]["direction"] == "output"]
        for chunk in chunks_of(span):
            score = "" if chunk.row["score"] is None else f" (score {chunk.row['score']})"
            outputs.append(f"document {chunk.row['document_id']}{score}: {chunk.row['content']}")
        came = "\n".join(outputs)
    came = came or (NOTHING if span.summary.kind == "RETRIEVER" else "")
    if len(came) >= QUOTED_CHARS:
        heard.outputs.append((number, came.strip()))
    marks: list[str] = []
    if span.summary.status not in {"OK", "UNSET"}:
        marks.append(span.summary.status)
    if (seconds := span.summary.latency_ms / 1000) >= SLOW_S:
        marks.append(f"took {seconds:.0f} s")
    if (reason := str(span.attributes.get("llm.finish_reason", ""))) in CUT_OFF:
        marks.append(f"cut off: {reason}")
    return Step(
        number=number,
        span_id=span.summary.span_id,
        kind=span.summary.kind,
        name=span.summary.name,
        agent="",
        status=span.summary.status,
        given=tuple(given),
        came=came,
        marks=tuple(marks),
    )


def _message(message: Artifact) -> str:
    calls = message.row["metadata"].get("tool_calls")
    said = str(message.row["content"])
    return f"{said}\ncalls: {canonical_json(calls)}" if calls else said


def _plain(value: object) -> str:
    return "" if value is None else value if isinstance(value, str) else canonical_json(value)


def _error(span: Span) -> str:
    told = [str(event.attributes.get("exception.message", "")) for event in span.events if event.is_exception]
    return span.summary.status_message or next(filter(None, told), "no message")


def shortened(text: str, room: int) -> str:
    """Head and tail of a text that is too long, with the cut marked."""
    if len(text) <= room:
        return text
    tail = int(room * TAIL_SHARE)
    return f"{text[: room - tail]}\n[... {len(text) - room} characters cut ...]\n{text[len(text) - tail :]}"


def _ends_of(texts: list[str], most: int) -> list[str]:
    """The first and the last texts that fit, with the number of those between."""

    def fitting(some: Sequence[str], room: int) -> int:
        sizes = accumulate(len(text) for text in some)
        return max(1, sum(1 for _ in takewhile(lambda size: size <= room, sizes)))

    tail_room = int(most * TAIL_SHARE)
    head = fitting(texts, most - tail_room)
    tail = fitting(texts[: head - 1 : -1], tail_room)
    left = len(texts) - head - tail
    return [*texts[:head], f"[... {left} messages left out ...]", *texts[len(texts) - tail :]] if left > 0 else texts
