"""A trace as somebody would read it aloud: its steps in order, what was new to each and what came out. Pure functions, no I/O.

A step is a span that did something: a model call, a tool call, a look-up, any leaf with content or an error. Wrappers are not steps; their
agent's name and their error go to the steps inside. What a step was given leaves out whatever its agent had before, word for word or only
quoted in another way: rules, tool lists, the task, earlier outputs. Long texts keep head and tail with the cut marked, so that even a trace
of thousands of spans makes a text of bounded size. Pages, prompts and results of tools are cut first; what a model said and how a step
failed are cut last.

    transcript.text()      # all steps
    transcript.parts()     # the run of each agent for a reader of its own; that of a team member is a task and a result to the others
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby, pairwise, takewhile, zip_longest
from typing import Any, cast

from sonde.contexts.traces.genai import maybe_json
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
SAID_ROOMS = 4  # what a model said or how a step failed has so many times the room of a page
WIDE_ROOM = 1_000  # where there is less for a page, a trace is so long that everything is cut alike
RESULT_CHARS = 6_000
SMALL_CHARS = 8_000  # runs of team members that are shorter are read together
MOST_PARTS = 40
MOST_NESTED = 50
HEARD_LINE_CHARS = 30  # shorter lines are in every text
HEARD_SHARE = 0.9
CALL_SHARE = 0.5  # a call that is told again has another form around the same words
LEAST_TRIPLES = 6
MOST_HEARD = 500_000
PAGE_CHARS = 1_000
PLAN_CHARS = 600  # the last words of a prompt say what is wanted
BEGINNING_CHARS = 400
HEADS_OF_PAGES = frozenset({"meta_tags", "jsonld", "microdata"})
MOST_TRIES = 20  # to read an object in one text: a hostile one would make it slow
TASK_KEYS = ("task", "question", "query", "input", "request")
_WORD = re.compile(r"\w+")
_ADDRESSED = re.compile(r"\(-> [^()]+\)$")
_ESCAPED = re.compile(r"\\{1,8}[nrt]")
_PAGE = re.compile(r"<(?:!doctype|html|head|script|body)\b", re.IGNORECASE)
# Each ends at its closing tag or at the end of the text, so that a page of opening tags costs no more than another.
_MARKUP = re.compile(
    r"<(head|script|style|svg)\b.*?(?:</\1\s*>|\Z)|<!--.*?(?:-->|\Z)|<[^<>]{1,2000}>", re.IGNORECASE | re.DOTALL
)
_EXAMPLES = re.compile(r"^Here are a few examples\b.*?(?=^Above examples?\b|\Z)", re.DOTALL | re.MULTILINE)
_INPUTS = re.compile(r"^([ \t]*Takes inputs: )(\{.*\})", re.MULTILINE)
_INPUT_NAME = re.compile(r"'(\w+)': \{")
_PLANNED = re.compile(r"\b(?:write|build|develop|update|make)\b[^.\n]{0,60}\b(?:plan|survey|facts)\b", re.IGNORECASE)


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
    run: str = ""
    """The span of the agent in whose run this happened; "" for none, or if there is only one."""
    plans: bool = False
    """Whether a phase begins here: the agent takes stock and makes a plan."""

    def text(self, room: int, most: int | None = None) -> str:
        """The step in words, with pages and inputs of at most `room` characters each and at most about `most` characters of new input."""
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
        said = room if most is not None or room < WIDE_ROOM else SAID_ROOMS * room
        if self.came:
            lines.append(f"[output]\n{shortened(self.came, said if self.kind == 'LLM' else room)}")
        if self.around:
            lines.append(f"[it ended in an error] {shortened(self.around, said)}")
        return "\n".join(lines)

    def line(self, room: int = 110) -> str:
        """The step in one line, with up to `room` characters of what it said."""
        said = " ".join((self.came or " ".join(self.given)).split())
        mark = " ERROR" if self.around or self.status == "ERROR" else ""
        mark += "" if self.reports is None else f" is told the error of {self.reports}"
        mark += "" if self.begins is None else " (a new run begins)"
        return f"{self.number} {self.span_id} {self.kind} {self.name} ({self.agent}){mark}: {said[:room]}".rstrip(": ")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRun:
    """A run of one agent inside a trace: what it was asked, what it handed back, and in whose run it happened."""

    agent: str
    task: str
    result: str
    inside: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptPart:
    """Steps that are read together; `task` is that of their run, if the trace holds several. `title` says whose steps they are."""

    text: str
    span_ids: tuple[str, ...]
    first: int
    last: int
    task: str | None = None
    title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """The steps of a trace. `room` is the length to which their texts are cut so that the whole stays readable. `runs` are the runs of
    several agents by their span, the outermost first.
    """

    task: str
    steps: tuple[Step, ...]
    room: int
    conversation: bool = False
    runs: Mapping[str, AgentRun] = field(default_factory=dict[str, AgentRun])

    @property
    def led(self) -> bool:
        """Whether somebody in this conversation gives the others instructions."""
        return self.conversation and any(addressed(step) for step in self.steps)

    @property
    def team(self) -> bool:
        """Whether an agent gives tasks to others whose runs are inside its own; runs side by side, as in a session, are no team."""
        return bool(self.runs) and all(step.begins is None for step in self.steps)

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
        """Each agent's run in texts of about this size, in the order in which they begin. A step is never split. A run that is too long
        is split where its agent makes a new plan, if it does. Where a team member worked, its task and its result stand in the text.
        """
        texts = [step.text(self.room) for step in self.steps]
        size = max(size, sum(map(len, texts)) // MOST_PARTS)
        places: dict[str, list[int]] = {}
        for at, step in enumerate(self.steps):
            places.setdefault(step.run, []).append(at)
        errands = self._errands()
        parts: list[TranscriptPart] = []
        for run, own in places.items():
            told = deque(errands.get(run, ()))
            packed: list[list[tuple[Step, str]]] = []
            filled = size
            while told and told[0][0] < own[0]:
                told.popleft()
            task = self.runs[run].task if run in self.runs else None
            for at in own:
                step = self.steps[at]
                before: list[tuple[int, str]] = []
                while told and told[0][0] < at:
                    before.append(told.popleft())
                text = "\n\n".join([*self._told(before), texts[at]])
                at_plan = step.plans and filled > size // 2
                if filled + len(text) > size or at_plan or step.begins is not None:
                    packed.append([])
                    filled = 0
                packed[-1].append((step, text))
                filled += len(text)
            if len(packed) > 1 and packed[-1][0][0].begins is None:
                last, earlier = (sum(len(text) for _, text in packed[at]) for at in (-1, -2))
                if last < SMALL_CHARS and earlier + last <= size:
                    packed[-2:] = [packed[-2] + packed[-1]]
            for number, steps in enumerate(packed, 1):
                phase = f", part {number} of {len(packed)}" if len(packed) > 1 else ""
                begins = next((step.begins for step, _ in steps if step.begins is not None), None)
                task = task if begins is None else begins
                parts.append(
                    TranscriptPart(
                        task=task,
                        title=f"the run of {self.runs[run].agent if run in self.runs else steps[0][0].agent}{phase}",
                        text="\n\n".join(text for _, text in steps),
                        span_ids=tuple(step.span_id for step, _ in steps),
                        first=steps[0][0].number,
                        last=steps[-1][0].number,
                    )
                )
        return _small_together(sorted(parts, key=lambda part: part.first)) if self.runs else parts

    def _errands(self) -> dict[str, list[tuple[int, str]]]:
        """For each run the places of the steps that happened in runs inside it, each with the run directly inside it to which the step
        belongs. A run hears of those at most MOST_NESTED levels below it, so that a deep trace costs no more than a wide one.
        """
        found: dict[str, list[tuple[int, str]]] = {}
        for at, step in enumerate(self.steps):
            run = step.run
            for _ in range(MOST_NESTED):
                if run not in self.runs:
                    break
                found.setdefault(self.runs[run].inside, []).append((at, run))
                run = self.runs[run].inside
        return found

    def _told(self, between: Sequence[tuple[int, str]]) -> list[str]:
        """What team members did between two steps of a run, each as its task and its result."""
        told: list[str] = []
        # Steps of one member that follow one another have the same distance to their position here.
        for (member, _), group in groupby(enumerate(between), lambda each: (each[1][1], each[1][0] - each[0])):
            worked = [self.steps[at] for _, (at, _) in group]
            known = self.runs[member]
            told.append(
                f"### steps {worked[0].number} to {worked[-1].number}: here {known.agent} worked; somebody else reads that.\n"
                f"[its task]\n{shortened(known.task, RUN_TASK_CHARS)}\n[its result]\n{shortened(known.result, RESULT_CHARS)}"
            )
        return told


def _small_together(parts: list[TranscriptPart]) -> list[TranscriptPart]:
    """Neighbours that are short are read by one reader; the first part, the manager's, stays alone."""
    joined = parts[:1]
    for part in parts[1:]:
        last = joined[-1]
        if len(joined) == 1 or len(last.text) + len(part.text) > SMALL_CHARS:
            joined.append(part)
            continue
        joined[-1] = replace(
            last,
            text=f"{last.text}\n\n## {part.title}. Its task: {shortened(part.task or '', RUN_TASK_CHARS)}\n\n{part.text}",
            span_ids=(*last.span_ids, *part.span_ids),
            first=min(last.first, part.first),
            last=max(last.last, part.last),
            title=f"{last.title}; {part.title}",
        )
    return joined


def transcript_of(spans: Iterable[Span], most: int = MOST_CHARS) -> Transcript:
    """The transcript of a trace whose spans come in order of time."""
    listed = list(spans)
    found = steps_of(listed)
    steps = tuple(found)
    conversation = any("conversation.step" in span.attributes for span in listed)
    tasks = (  # what was asked for: the first input of a root or an agent
        _task(span)
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
    return Transcript(
        task=next(tasks, ""), steps=steps, room=room, conversation=conversation, runs=_runs(listed, steps)
    )


def _runs(spans: Sequence[Span], steps: Sequence[Step]) -> dict[str, AgentRun]:
    """The runs that steps belong to, and those around them."""
    known = {span.summary.span_id: span for span in spans}
    nestings = _nestings(spans, known)
    wanted = dict.fromkeys(step.run for step in steps if step.run)
    runs: dict[str, AgentRun] = {}
    for run in wanted:
        span = known[run]
        name = str(span.attributes.get("agent.name") or span.summary.name)
        inside = nestings[run].owner
        runs[run] = AgentRun(
            agent=name,
            task=_task(span),
            result=_plain(span.attributes.get("output.value")),
            inside=inside if inside in wanted else "",
        )
    return runs


def steps_of(spans: Sequence[Span]) -> list[Step]:
    """The steps of a trace whose spans come in order of time."""
    known = {span.summary.span_id: span for span in spans}
    parents = {span.summary.parent_id for span in spans}
    nestings = _nestings(spans, known)
    outermost = {nesting.run for nesting in nestings.values() if nesting.run}
    waiting = {run: _task(known[run]) for run in outermost} if len(outermost) > 1 else {}
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
    # A run is told apart if another agent's run is around it, or if there are several side by side. Whoever reads it has it from its
    # beginning, so it leaves out only what it said before itself. The runs around it hear what it says.
    apart = {
        nesting.owner
        for nesting in nestings.values()
        if nesting.owner and (nesting.owner != nesting.run or len(outermost) > 1)
    }
    heards: dict[str, _Heard] = {}
    failed: dict[tuple[str, str], int] = {}
    steps: list[Step] = []
    for number, span in zip(positions if ascend else range(len(told)), told, strict=True):
        nesting = nestings[span.summary.span_id]
        run = nesting.owner if nesting.owner in apart else ""
        around_it = (nestings[run].owner if nestings[run].owner in apart else "") if run else None
        step = _step(span, number, heards.setdefault(run, _Heard()))
        if around_it is not None:
            heards.setdefault(around_it, _Heard()).learn("\n".join((*step.given, step.came)))
        parent = known.get(span.summary.parent_id or "")
        is_call = step.kind == "LLM"
        around = ""
        if span.summary.status == "ERROR" or any(event.is_exception for event in span.events):
            around = _error(span)
        elif is_call and parent is not None and parent.summary.kind == "CHAIN" and parent.summary.status == "ERROR":
            around = _error(parent)  # the wrapper around a model call says what became of its output
        heards[run].learn(around)
        reports = failed.pop((nesting.run, nesting.agent), None) if is_call else None
        begins = waiting.pop(nesting.run, None)
        steps.append(replace(step, agent=nesting.agent, around=around, reports=reports, begins=begins, run=run))
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
    below. `owner` is the span of the nearest agent around, `owned` that of the spans below.
    """

    agent: str = "-"
    run: str = ""
    inside: str = ""
    owner: str = ""
    owned: str = ""


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
            above = found[span_id] = _Nesting(
                str(named),
                run=above.inside,
                inside=above.inside or begun,
                owner=above.owned,
                owned=begun or above.owned,
            )
    return found


@dataclass(slots=True)
class _Heard:
    """What earlier steps have shown: whole messages by key, and the latest long outputs, which agents like to quote in full."""

    messages: set[str] = field(default_factory=set[str])
    outputs: deque[tuple[int, str]] = field(default_factory=lambda: deque[tuple[int, str]](maxlen=QUOTED_STEPS))
    lines: set[str] = field(default_factory=set[str])
    triples: set[int] = field(default_factory=set[int])

    def learn(self, text: str) -> None:
        """Remember a text by its lines and its word triples."""
        if len(self.triples) < MOST_HEARD:
            self.lines.update(line.strip() for line in text.split("\n"))
            self.triples.update(_triples(text))

    def fresh(self, text: str) -> str:
        """The text with each longer passage that was heard before named instead of repeated, also if it is quoted in another way."""
        lines = text.split("\n")
        known = [self._knows(line) for line in lines]
        kept: list[str] = []
        at = 0
        while at < len(lines):
            end = at
            if known[at]:
                reach = next((look for look in range(at, len(lines)) if known[look] is False), len(lines))
                end = max(look for look in range(at, reach) if known[look]) + 1
            passage = "\n".join(lines[at:end])
            if len(passage) >= QUOTED_CHARS:
                kept.append(
                    f"[{len(passage)} characters that were shown before: {' '.join(passage[:90].split())[:60]} ...]"
                )
            else:
                end = max(end, at + 1)
                kept += lines[at:end]
            at = end
        return "\n".join(kept)

    def share(self, text: str) -> float:
        """How much of a text was heard before, by its word triples."""
        triples = _triples(text)
        return sum(each in self.triples for each in triples) / len(triples) if len(triples) >= LEAST_TRIPLES else 0.0

    def _knows(self, line: str) -> bool | None:
        """Whether a line was heard; None for one that is too short to tell."""
        bare = line.strip()
        if len(bare) < HEARD_LINE_CHARS:
            return True if bare and bare in self.lines else None
        return bare in self.lines or self.share(bare) >= HEARD_SHARE


def _triples(text: str) -> set[int]:
    words = _WORD.findall(_ESCAPED.sub(" ", text))
    return {hash(triple) for triple in zip(words, words[1:], words[2:], strict=False)}


def without_markup(text: str) -> str:
    """A web page as its words: head, scripts with their data, styles and tags are left out. Other texts stay as they are."""
    if len(text) < PAGE_CHARS or not _PAGE.search(text):
        return text
    lines = filter(None, (line.strip() for line in _MARKUP.sub(" ", text).split("\n")))
    return "\n".join([*lines, "[markup left out]"])


def _prompt(text: str) -> str:
    """A prompt without the worked examples of its framework, and with the names of the tools' inputs instead of their schemas."""
    text = _EXAMPLES.sub("[worked examples left out]\n", text)
    return _INPUTS.sub(lambda found: found.group(1) + (", ".join(_INPUT_NAME.findall(found.group(2))) or "none"), text)


def _step(span: Span, number: int, heard: _Heard) -> Step:
    """What a span did, without what earlier steps have shown; remembers what it shows itself."""
    given: list[str] = []
    plans = False
    if (call := tool_io_of(span)) is not None:
        given = list(filter(None, [_plain(call.row["input"])]))
        came = without_markup(_plain(call.row["output"]))
        heard.learn(came)
        same = next((earlier for earlier, output in heard.outputs if output == came.strip()), None)
        came = came if same is None else f"[the same output as that of step {same}]"
    else:
        messages = messages_of(span)
        keys = [sha256_text(str(each.row["content"]).strip() or _message(each).strip()) for each in messages]
        for each, key in zip(messages, keys, strict=True):
            if each.row["metadata"]["direction"] == "input" and key not in heard.messages:
                text = _prompt(without_markup(_message(each)))
                for earlier, output in heard.outputs:
                    text = text.replace(output, f"[here the output of step {earlier} is repeated]")
                told_again = text.startswith("Calling tools:") and heard.share(text) >= CALL_SHARE
                fresh = "[the call that was made before]" if told_again else heard.fresh(text)
                given.append(f"({each.row['role']}) {fresh}")
                plans = bool(_PLANNED.search(text[-PLAN_CHARS:]))
                heard.learn(text)
        heard.messages.update(keys)
        outputs = [_message(each) for each in messages if each.row["metadata"]["direction"] == "output"]
        heard.learn("\n".join(outputs))
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
        plans=plans,
    )


def _message(message: Artifact) -> str:
    calls = message.row["metadata"].get("tool_calls")
    said = str(message.row["content"])
    return f"{said}\ncalls: {canonical_json(calls)}" if calls else said


def _task(span: Span) -> str:
    """What a span was asked: its input, or the field of it that holds the words."""
    text = _plain(span.attributes.get("input.value"))
    if not text.startswith("{"):
        return text
    fields = maybe_json(text)
    said = (cast("dict[str, Any]", fields).get(key) for key in TASK_KEYS) if isinstance(fields, dict) else ()
    return next((each for each in said if isinstance(each, str) and each.strip()), text)


def _plain(value: object) -> str:
    return "" if value is None else value if isinstance(value, str) else canonical_json(value)


def _error(span: Span) -> str:
    told = [str(event.attributes.get("exception.message", "")) for event in span.events if event.is_exception]
    return span.summary.status_message or next(filter(None, told), "no message")


def addressed(step: Step) -> bool:
    """Whether a step is an instruction to another agent, as its name says: "manager (-> worker)"."""
    return _ADDRESSED.search(step.name) is not None


def told_once(conversation: Transcript) -> Transcript:
    """A conversation whose steps name what was said before instead of repeating it, such as a page that is shown again. How a step begins
    stays, because that says what was done. Instructions stay whole, so that the reply can be held against them; the notes in which
    they are prepared name them.
    """
    heard = _Heard()
    steps: list[Step] = []
    for step, following in zip_longest(conversation.steps, conversation.steps[1:]):
        said = compact(step.came)
        if not addressed(step):
            if following is not None and addressed(following) and len(following.came) >= HEARD_LINE_CHARS:
                said = said.replace(following.came.strip(), "[the instruction that follows]")
            begins = said.rfind("\n", 0, BEGINNING_CHARS) + 1
            said = said[:begins] + heard.fresh(said[begins:])
        steps.append(replace(step, came=said))
        heard.learn(compact(step.came))
    return replace(conversation, steps=tuple(steps))


def compact(text: str) -> str:
    """Without the indentation of JSON objects, in which orchestrators keep their notes, and without what browsers report of the heads of
    pages.
    """
    kept, at, failed = "", 0, 0
    decoder = json.JSONDecoder()
    while failed < MOST_TRIES and (opening := text.find("{\n", at)) >= 0:
        try:
            value, end = decoder.raw_decode(text, opening)
            heads = bool(value) and HEADS_OF_PAGES.issuperset(cast("dict[str, Any]", value))
            shown = "[the head of the page left out]" if heads else json.dumps(value, ensure_ascii=False)
        except (ValueError, RecursionError):
            shown, end, failed = "{", opening + 1, failed + 1
        kept, at = kept + text[at:opening] + shown, end
    return kept + text[at:]


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
