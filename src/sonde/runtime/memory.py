"""What a session remembers from turn to turn: its conversation, and how things stand.

The conversation is append-only between rare steps, so that a provider's prompt cache keeps hitting. Such a step shortens old turns to
what later ones referred to, or, near the limit, to one line each; nothing is dropped silently.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from sonde.core.canonical import clip
from sonde.models.base import Message, estimate_tokens
from sonde.runtime.actions import Finalize

KEPT_TURNS = 6
CACHED_TOKENS = 1_024
"""Providers cache no shorter beginning of a request."""
WORTH = 3
"""Shrinking must save so many times what is then read again at the full price; even with cached tokens at a tenth of it, this pays in
three turns.
"""
SHORT_CHARS, CODE_CHARS = 200, 80
"""Outputs and code of this size stay as they are."""
HEAD_LINES, KEPT_LINES, LINE_CHARS = 2, 12, 200
LINES = "Earlier turns, one line each:\n"
SHORTENED = "Earlier turns, shortened; the variables are as they were, print again what you need:\n"
_WORD = re.compile(r"\w[\w./:-]{2,}\w")
_LETTERS = re.compile(r"[^\W\d_]{2,}")
_CODE = re.compile(r"```\w*\n(.*?)\n?```", re.DOTALL)
_CHANGED = re.compile(r"^Changed variables: .*$", re.MULTILINE)
_SET = re.compile(r"^(?:def (\w+)|(\w+)(?:, \w+)* = )", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What came of an action: words for the model, and the final value when there is one."""

    text: str
    final: Finalize | None = None
    unseen: str = ""


@dataclass(slots=True, kw_only=True)
class Memory:
    """What a session remembers between turns besides its history."""

    turn: int = 0
    prose: int = 0
    coded: bool = False
    """Whether its last reply was code."""
    shown: int = 0
    """How many outputs the model had seen when it wrote its reply."""
    held_back: bool = False
    repairs: Counter[str] = field(default_factory=Counter[str])
    """How often the model was asked to mend its value, by gate."""
    refused: str = ""
    """The value that was last refused, as canonical JSON."""
    refuted: dict[str, int] = field(default_factory=dict[str, int])
    """Places that a check found not to bear the answer out, and how many outputs there were then."""
    checks: dict[str, str] = field(default_factory=dict[str, str])
    """The questions of such checks, and what was replied."""
    forced: str | None = None
    elapsed_s: float = 0.0
    call_s: float = 0.0
    """How long a call takes, as expected when this turn began."""
    calls: list[float] = field(default_factory=list[float])
    """How long the model took for each reply, in seconds, without waits for a person."""
    untold: str | None = None
    """What came of the last turn: the model hears it at the beginning of the next one, with the time of that moment."""
    draft: Any = None
    last_words: str = ""
    cut: bool = False
    asked: bool = True
    states: int = 0

    def expected_s(self) -> float:
        """How long the next reply will probably take: as long as most did, or as the last one did if that was longer."""
        return max(median(self.calls), self.calls[-1]) if self.calls else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A reply, what came of it, and what the model read about it: the same plus what is left of the budget."""

    number: int
    reply: str
    outcome: str
    observation: str

    @property
    def line(self) -> str:
        """What was tried and what came of it."""
        return f"turn {self.number}: {_short(self.reply, 160)} -> {_short(self.outcome, 200)}"

    @property
    def tokens(self) -> int:
        """Its size in a request, estimated."""
        return estimate_tokens(self.reply) + estimate_tokens(self.observation)

    @property
    def messages(self) -> list[Message]:
        """As the model reads it again."""
        return [Message("assistant", self.reply), Message("user", self.observation)]

    def shortened(self, later: str) -> str:
        """The thought, the first line of long code with what it set, and of a long output the lines that `later` replies referred to."""
        blocks = _CODE.findall(self.reply)
        code = "\n".join(blocks)
        if len(code) > CODE_CHARS:
            named = ", ".join(dict.fromkeys(found or name for found, name in _SET.findall(code)))
            head, _, rest = code.partition("\n")
            what = f" … ({rest.count(chr(10)) + 2} lines{f', set {named}' if named else ''})" if rest else ""
            code = clip(head, LINE_CHARS) + what
        thought = _short(_CODE.sub("", self.reply) if blocks else self.reply, SHORT_CHARS)
        output = _CHANGED.sub("", self.outcome.removeprefix("ok\n").removeprefix("stdout:\n")).strip()
        if len(output) > SHORT_CHARS:
            output = _telling_lines(output, later)
        return "\n".join(filter(None, (f"[turn {self.number}] {thought}".strip(), code, f"-> {output}")))


class Conversation:
    """System prompt, examples, task, and turns; `messages()` is what the next request carries."""

    def __init__(self, system: str, task: str, examples: Sequence[Message] = ()) -> None:
        self._head = [Message("system", system), *examples, Message("user", task)]
        self._summary: list[str] = []
        self._first: list[Exchange] = []
        """Turns before the shortened ones that stay as they are, so that a provider still has the beginning in its cache."""
        self._short: list[tuple[Exchange, str]] = []
        """Shortened turns, as they were and as they are sent."""
        self._turns: list[Exchange] = []
        self._sent = 0

    def add(self, turn: Exchange) -> None:
        """One more turn at the end."""
        self._turns.append(turn)

    def retell(self, task: str) -> None:
        """Reword the task, before the model has read it."""
        self._head[-1] = Message("user", task)

    def shorten(self, shown: str, later: str) -> None:
        """Put something shorter in the place of what the task has shown once."""
        task = self._head[-1]
        self._head[-1] = Message(task.role, task.content.replace(shown, later, 1))
        self._sent = min(self._sent, len(self._head) - 1)

    def messages(self) -> list[Message]:
        """Everything, oldest first."""
        listed = list(self._head)
        if self._summary:  # in one message with the task: some servers refuse two of the same role in a row
            listed[-1] = _with(listed[-1], LINES + "\n".join(self._summary))
        for turn in self._first:
            listed += turn.messages
        if self._short:
            listed[-1] = _with(listed[-1], SHORTENED + "\n".join(text for _, text in self._short))
        for turn in self._turns:
            listed += turn.messages
        return listed

    def take(self, urgent: str = "") -> tuple[list[Message], int]:
        """The messages of the next request, and how many of them the last one already carried; `urgent` comes last."""
        listed = self.messages()
        kept, self._sent = min(self._sent, len(listed)), len(listed)
        if urgent:
            listed[-1] = _with(listed[-1], urgent)
            kept = min(kept, len(listed) - 1)
        return listed, kept

    def tokens(self) -> int:
        """The size of the next request, estimated."""
        return sum(estimate_tokens(message.content) for message in self.messages())

    def compact(self, limit: int) -> int:
        """Fold old turns into lines if the request is over `limit` tokens; returns how many."""
        turns = [*self._first, *(turn for turn, _ in self._short), *self._turns]
        if self.tokens() <= limit or len(turns) <= 1:
            return 0
        keep = min(KEPT_TURNS, max(1, len(self._turns) - 1))
        while keep > 1 and sum(turn.tokens for turn in turns[-keep:]) > limit // 2:
            keep -= 1
        self._first, self._short, self._turns = [], [], turns[-keep:]
        self._summary.extend(turn.line for turn in turns[:-keep])
        self._sent = len(self._head) - 1
        return len(turns) - keep

    def shrink(self) -> int:
        """Shorten all turns but the latest if that pays; returns how many.

        The latest was not sent yet, so a provider has nothing of it in its cache.
        """
        old, replies = self._turns[:-1], [turn.reply for turn in self._turns]
        size, first = self.tokens() - sum(turn.tokens for turn in self._turns), 0
        while not self._short and first < len(old) and size < CACHED_TOKENS:
            size += old[first].tokens
            first += 1
        short = [turn.shortened("\n".join(replies[at + 1 :])) for at, turn in enumerate(old) if at >= first]
        new = sum(map(estimate_tokens, short))
        saved = sum(turn.tokens for turn in old[first:]) - new
        if saved < max(CACHED_TOKENS, WORTH * new):
            return 0
        self._first += old[:first]
        self._short += zip(old[first:], short, strict=True)
        self._turns = self._turns[-1:]
        self._sent = len(self._head) + 2 * len(self._first) - 1
        return len(short)


def _with(message: Message, more: str) -> Message:
    return Message(message.role, f"{message.content}\n\n{more}")


def _telling_lines(text: str, later: str) -> str:
    """Of a long text its first lines, those that share a rare word with `later`, and those that are unlike all others."""
    lines = text.splitlines()
    spoken = set(_WORD.findall(later))
    words = [set(_WORD.findall(line)) & spoken for line in lines]
    often = Counter(word for each in words for word in each)
    rare = {word for word, count in often.items() if count <= max(1, len(lines) // 10)}
    shapes = [" ".join(_LETTERS.findall(line)) for line in lines]
    alike = Counter(shapes)
    odd = [at for at, shape in enumerate(shapes) if alike[shape] == 1]
    telling = frozenset(odd if len(odd) <= len(lines) // 5 else ())
    kept = [at for at, each in enumerate(words) if each & rare or at in telling][:KEPT_LINES]
    shown: list[str] = []
    before = -1
    for at in sorted({*range(min(HEAD_LINES, len(lines))), *kept}):
        shown += [f"… ({at - before - 1} lines)"] if at > before + 1 else []
        shown.append(clip(lines[at], LINE_CHARS))
        before = at
    return "\n".join([*shown, *([f"… ({len(lines) - before - 1} lines)"] if before < len(lines) - 1 else [])])


def _short(text: str, chars: int) -> str:
    return clip(" ".join(text.split()), chars)
