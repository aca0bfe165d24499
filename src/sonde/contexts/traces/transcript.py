"""A trace as somebody would read it aloud: its steps in order, and the length to which their texts are cut.

Long texts keep head and tail, and what was cut is marked, so that even a trace of thousands of spans makes a text of bounded size. Pure
functions, no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sonde.contexts.traces.span import Span
from sonde.contexts.traces.step import Step, shortened
from sonde.contexts.traces.steps import plain, steps_of

PART_CHARS = 60_000
MOST_CHARS = 800_000
EASY_CHARS = 60_000
LEAST_CHARS = 160


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
    steps = tuple(steps_of(listed))
    conversation = any("conversation.step" in span.attributes for span in listed)
    return Transcript(task=_task(listed), steps=steps, room=_room(steps, most), conversation=conversation)


def _task(spans: Sequence[Span]) -> str:
    """What was asked for: the first input of a root or an agent."""
    for span in spans:
        value = span.attributes.get("input.value")
        if value is not None and (span.summary.parent_id is None or span.summary.kind in {"AGENT", "CHAIN"}):
            return plain(value)
    return ""


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
