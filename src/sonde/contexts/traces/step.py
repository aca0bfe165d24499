"""One step of a trace as somebody would read it aloud: what was new to it, what came out, in words of bounded length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile

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
