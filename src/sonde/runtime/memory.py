"""What a session remembers from turn to turn: its conversation, and how things stand.

The conversation is append-only between compactions, so that a provider's prompt cache keeps hitting. A compaction turns old turns into
one line each; nothing is dropped silently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from sonde.core.canonical import clip
from sonde.models.base import Message, estimate_tokens
from sonde.runtime.actions import Finalize

KEPT_TURNS = 6


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
    held_back: bool = False
    repairs: Counter[str] = field(default_factory=Counter[str])
    """How often the model was asked to mend its value, by gate."""
    refused: str = ""
    """The value that was last refused, as canonical JSON."""
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


class Conversation:
    """System prompt, examples, task, and turns; `messages()` is what the next request carries."""

    def __init__(self, system: str, task: str, examples: Sequence[Message] = ()) -> None:
        self._head = [Message("system", system), *examples, Message("user", task)]
        self._summary: list[str] = []
        self._turns: list[Exchange] = []
        self._sent = 0

    def add(self, turn: Exchange) -> None:
        """One more turn at the end."""
        self._turns.append(turn)

    def retell(self, task: str) -> None:
        """Reword the task, before the model has read it."""
        self._head[-1] = Message("user", task)

    def messages(self) -> list[Message]:
        """Everything, oldest first."""
        listed = list(self._head)
        if self._summary:  # in one message with the task: some servers refuse two of the same role in a row
            listed[-1] = _with(listed[-1], "Earlier turns, one line each:\n" + "\n".join(self._summary))
        for turn in self._turns:
            listed.append(Message("assistant", turn.reply))
            listed.append(Message("user", turn.observation))
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
        if self.tokens() <= limit or len(self._turns) <= 1:
            return 0
        keep = min(KEPT_TURNS, len(self._turns) - 1)
        size = [estimate_tokens(turn.reply) + estimate_tokens(turn.observation) for turn in self._turns]
        while keep > 1 and sum(size[-keep:]) > limit // 2:
            keep -= 1
        old, self._turns = self._turns[:-keep], self._turns[-keep:]
        self._summary.extend(turn.line for turn in old)
        self._sent = len(self._head) - 1
        return len(old)


def _with(message: Message, more: str) -> Message:
    return Message(message.role, f"{message.content}\n\n{more}")


def _short(text: str, chars: int) -> str:
    return clip(" ".join(text.split()), chars)
