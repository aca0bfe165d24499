"""Conversations of several agents: `rca` names the decisive step, and with it the agent who spoke there.

A conversation is shown whole, its long texts cut so that it fits, and one reply decides. If that would leave too little of each step,
fresh readers take it in parts. Two steps that are close go to a second reader, who sees the rules, how it ended and the texts of these
steps, but neither the reasons nor the preference of the first. A conversation that an orchestrator leads has rules of its own. The words
are files in `prompts`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from sonde.contexts.traces.context import TracesContext
from sonde.contexts.traces.transcript import (
    Transcript,
    TranscriptPart,
    addressed,
    compact,
    shortened,
    told_once,
    transcript_of,
)
from sonde.engines import rca
from sonde.engines.sceptic import listed
from sonde.engines.submission import fields_of, items_of, number
from sonde.engines.whole_trace import FINDINGS, READING, covered, with_steps
from sonde.runtime.engine import Conclusion, Engine, Gathered, Prefilter, Problem, Review
from sonde.runtime.prompts import fill, prompt_file

WHOLE_CHARS = 64_000
MOST_STEP_CHARS, LEAST_STEP_CHARS = 8_000, 600  # if the steps would have to be cut below the least, parts are read
PART_STEP_CHARS = 2_000
EARLY_STEPS, EARLY_ROOMS = 16, 3
OUTLINE_CHARS = 12_000
LEAST_LINE_CHARS, MOST_LINE_CHARS, HEAD_CHARS = 60, 240, 30  # of a step in the outline
TASK_CHARS = 3_000
ENDING_CHARS = 1_500
INSTRUCTION_CHARS = 1_200
NEXT_CHARS = 600
JUDGED_CHARS = 4_000
ONE_LINE = 100
BEFORE = 3  # steps before a part that its reader sees too, for the instruction that its first step follows
GUIDE_PLACE = "{{guide}}"


def engine_for(params: Mapping[str, Any], context: TracesContext) -> Engine:
    """The engine that fits: with a taxonomy the one that lists findings, else the one for conversations or the plain one."""
    if params.get("taxonomy"):
        return FINDINGS
    # The importer of a history of agents' messages marks its root.
    root = next((row for row in context.store.summaries(str(params["trace_id"])) if row.parent_id is None), None)
    if root is None or "conversation.steps" not in context.store.span(root.span_id).attributes:
        return rca.RCA
    talk = Talk.of(context, str(params["trace_id"]))
    engine = DECISIVE if talk.fits else DECISIVE_IN_PARTS
    return replace(engine, system=_system(talk.guide)) if talk.led else engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """A conversation as it is shown: its steps, and the length to which each is cut."""

    transcript: Transcript
    led: bool
    room: int
    fits: bool

    @classmethod
    def of(cls, context: TracesContext, trace_id: str) -> Talk:
        """At the longest cut at which all of it fits."""
        found = transcript_of(context.store.spans(trace_id))
        transcript = replace(found, steps=tuple(replace(step, came=compact(step.came)) for step in found.steps))
        led = transcript.led
        if led:
            transcript = told_once(transcript)
        lengths = [len(step.came) for step in transcript.steps]
        free = WHOLE_CHARS - ONE_LINE * len(lengths)  # less the head of each step
        least = LEAST_STEP_CHARS // 2 if led else LEAST_STEP_CHARS
        for room in range(MOST_STEP_CHARS, least - 1, -100):
            talk = cls(transcript=transcript, led=led, room=room, fits=True)
            if sum(min(talk.room_of(at), length) for at, length in enumerate(lengths)) <= free:
                return talk
        return cls(transcript=transcript, led=led, room=PART_STEP_CHARS, fits=False)

    def room_of(self, at: int) -> int:
        """The length to which a step is cut: the rounds with which an orchestrator begins are shown at greater length."""
        return EARLY_ROOMS * self.room if self.led and at < EARLY_STEPS else self.room

    @property
    def guide(self) -> str:
        """By which rules the decisive step is found."""
        return prompt_file("engines/decisive_led" if self.led else "engines/decisive_guide")

    @property
    def asked_and_replies(self) -> str:
        """What was asked and, if somebody leads, at which steps the others replied."""
        steps = self.transcript.steps
        leaders = {step.agent for step in steps if addressed(step)}
        begun = next((at for at, step in enumerate(steps) if step.agent in leaders), len(steps))
        replies = [str(step.number) for step in steps[begun:] if step.agent not in leaders]
        told = f"\n\nReplies of workers: {len(replies)}, at steps {', '.join(replies)}." if leaders and replies else ""
        return shortened(self.transcript.task, TASK_CHARS) + told

    def text(self, at: int, room: int | None = None) -> str:
        """A step in words."""
        step = self.transcript.steps[at]
        said = shortened(step.came.strip(), room or self.room_of(at))
        between = " " if len(said) <= ONE_LINE and "\n" not in said else "\n"
        ended = f"\n[it ended in an error] {shortened(step.around, self.room)}" if step.around else ""
        return f"### step {step.number} | {step.name}:{between}{said}{ended}"

    def asked(self, at: int) -> int | None:
        """Where the instruction stands that this step follows: a message to its agent, else the last word of another agent."""
        steps = self.transcript.steps
        agent = steps[at].agent
        earlier = range(at - 1, -1, -1)
        to_it = (each for each in earlier if steps[each].name.endswith(f"-> {agent})"))
        others = (each for each in earlier if steps[each].agent != agent)
        return next(to_it, next(others, None))

    def beside(self, at: int, room: int | None = None) -> str:
        """A step with the instruction before it; before a leader's own step stands what it heard last."""
        asked = self.asked(at)
        if asked is None:
            return self.text(at, room)
        leads = any(addressed(step) for step in self.transcript.steps if step.agent == self.transcript.steps[at].agent)
        heading = "What it heard last" if leads else "Instruction"
        return f"{heading}: {self.text(asked, INSTRUCTION_CHARS)}\n\n{self.text(at, room)}"

    def parts(self) -> list[TranscriptPart]:
        """The parts that fresh readers get, in order; none if all of it fits into one prompt."""
        return [] if self.fits else replace(self.transcript, room=self.room).parts()

    def outline(self) -> str:
        """One line per step, head and tail of what it says, in as many characters as are left for each."""
        steps = self.transcript.steps
        room = max(LEAST_LINE_CHARS, min(MOST_LINE_CHARS, OUTLINE_CHARS // max(1, len(steps)) - HEAD_CHARS))
        lines: list[str] = []
        for step in steps:
            said = " ".join(step.came.split())
            said = said if len(said) <= room else f"{said[: room * 2 // 3]} … {said[len(said) - room // 3 :]}"
            lines.append(f"{step.number} {step.name}: {said}")
        return "\n".join(lines)

    def words(self) -> dict[str, str]:
        """What the other prompts say of the whole."""
        return {
            "guide": self.guide,
            "task": self.asked_and_replies,
            "outline": self.outline(),
            "ending": self.text(len(self.transcript.steps) - 1, ENDING_CHARS),
        }

    def label_prompts(self) -> list[str]:
        """One for each part."""
        places = {step.span_id: at for at, step in enumerate(self.transcript.steps)}
        parts, words, template = self.parts(), self.words(), prompt_file("engines/decisive_label")
        prompts: list[str] = []
        for at, part in enumerate(parts, 1):
            first, last = places[part.span_ids[0]], places[part.span_ids[-1]]
            begin = max(0, first - BEFORE)
            before = (
                f" (the first {first - begin} below come before it and belong to another reader)"
                if begin < first
                else ""
            )
            text = "\n\n".join(self.text(each) for each in range(begin, last + 1))
            count = {"number": str(at), "count": str(len(parts)), "first": str(part.first), "last": str(part.last)}
            prompts.append(fill(template, **words, **count, before=before, part=text))
        return prompts

    def second_view(self) -> Review:
        """A blind judgement of steps that are close."""

        def questions(claims: Sequence[Mapping[str, Any]]) -> list[str]:
            numbers = {step.number: at for at, step in enumerate(self.transcript.steps)}
            places = sorted({numbers[step] for claim in claims if (step := _step(claim)) in numbers})
            if len(places) < 2:
                return []
            shown = [self.beside(at, JUDGED_CHARS) for at in places]
            for index, at in enumerate(places):
                if at + 1 < len(self.transcript.steps):
                    shown[index] += f"\n\nNext: {self.text(at + 1, NEXT_CHARS)}"
            steps = "\n\n---\n\n".join(shown)
            return [fill(prompt_file("engines/decisive_verify"), **self.words(), steps=steps)]

        return Review(questions=questions, judged=_judged)


def _step(claim: Mapping[str, Any]) -> int:
    """The number of a step that a model wrote; -1 if it is none."""
    try:
        return int(cast("Any", claim.get("step")))
    except (TypeError, ValueError, OverflowError):
        return -1


def _judged(claims: Sequence[Mapping[str, Any]], answers: Sequence[str]) -> list[dict[str, Any]]:
    """The candidates with both judgements multiplied, so that the surer reader decides."""
    odds = {_step(each): number(each.get("odds")) for answer in answers for each in listed(answer) if "odds" in each}
    weights = [number(each.get("confidence"), 0.5) * odds.get(_step(each), 1.0 if not odds else 0.0) for each in claims]
    total = sum(weights) or 1.0
    return [
        {**claim, "confidence": round(weight / total, 4), "verified": _step(claim) in odds}
        for claim, weight in zip(claims, weights, strict=True)
    ]


def prefilter(gathered: Gathered) -> Prefilter:
    """The conversation, or its outline and the prompts for the readers of its parts; and the second reader."""
    context = cast("TracesContext", gathered.context)
    talk = Talk.of(context, str(gathered.params["trace_id"]))
    steps = talk.transcript.steps
    spans_of = {step.number: step.span_id for step in steps}
    variables: dict[str, Any] = {"span_of": spans_of}
    asked = f"What was asked:\n{talk.asked_and_replies}"
    if talk.fits:
        text = "\n\n".join(talk.text(at) for at in range(len(steps)))
        text = f"{asked}\n\nThe whole conversation, {len(steps)} steps:\n\n{text}"
    else:
        variables["label_prompts"] = talk.label_prompts()
        variables["step_text"] = {step.number: talk.beside(at) for at, step in enumerate(steps)}
        count = f"{len(steps)} steps ({len(talk.parts())} parts are in label_prompts)"
        text = f"{asked}\n\nThe conversation in outline, {count}:\n{talk.outline()}"
    first = with_steps(gathered, context.store.spans(str(gathered.params["trace_id"])), list(spans_of.values()))
    return replace(first, variables={**first.variables, **variables}, text=text, review=talk.second_view())


def conclude(value: Any, gathered: Gathered) -> Conclusion:
    """The report as `rca` makes it: the step decides who the agent is and what the evidence is; the likeliest of several is decisive."""
    fields = fields_of(value)
    given = fields.get("decisive")
    found = [fields_of(each) for each in (items_of(given) if isinstance(given, list) else [given])]
    found.sort(key=lambda each: -number(each.get("confidence")))
    spans = cast("Mapping[int, str]", gathered.prefilter.variables.get("span_of", {}))
    context = cast("TracesContext", gathered.context)
    known = [(_step(each), each) for each in found if _step(each) in spans]
    if known:
        step, decisive = known[0]
        span_id = spans[step]
        agent = str(context.store.span(span_id).attributes.get("agent.name") or decisive.get("agent") or "")
        named = {"step": step, "agent": agent, "span_id": span_id, "why": str(decisive.get("why") or "")}
        refs = fields.get("evidence_refs") or [span_id, f"{span_id}:attributes"]
        others = [
            {
                "hypothesis": f"step {step}: {each.get('why') or 'also possible'}",
                "why_rejected": f"less likely: {number(each.get('confidence')):.2f}",
                "evidence_refs": [spans[step]],
            }
            for step, each in known[1:]
        ]
        alternatives = [*items_of(fields.get("alternatives")), *others]
        fields = {**fields, "decisive": named, "evidence_refs": refs, "alternatives": alternatives}
    else:
        fields = {**fields, "decisive": found[0] if found and found[0] else None}
    concluded = rca.conclude(fields, gathered)
    if not known:
        steps = sorted(spans)
        range_of = f"{steps[0]} to {steps[-1]}" if steps else "of which there are none"
        told = f'decisive is {{"step": number, "why": "..."}}, with a step {range_of}'
        wrong = Problem(gate="schema", reason="the model named no decisive step of the trace", told=told)
        concluded = replace(concluded, problems=(wrong, *concluded.problems))
    talk = Talk.of(context, str(gathered.params["trace_id"]))
    return covered(concluded, gathered, talk.transcript, talk.parts())


def _system(guide: str) -> str:
    return prompt_file("engines/decisive").replace(GUIDE_PLACE, guide)


DECISIVE = replace(
    READING,
    system=_system(prompt_file("engines/decisive_guide")),
    templates=(prompt_file("engines/decisive_label"), prompt_file("engines/decisive_verify")),
    prefilter=prefilter,
    conclude=conclude,
    reply_form="code",
    tools=(),
    functions=("check",),
    terse=True,
    final_example=(
        'SUBMIT(primary_label="instruction_failure", summary="…", confidence=0.7, decisive={"step": 3, "why": "…"}, '
        'remediation=["…"], gaps=[])'
    ),
)
DECISIVE_IN_PARTS = replace(DECISIVE, functions=("check", "llm_query", "llm_batch"))
