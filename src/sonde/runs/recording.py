"""The tape: what a recorded run said, found by session, turn and ordinal.

Resume plays what is there and goes on live after it (a missing answer is None). Replay is strict: a missing answer, or one that was given
to another request, is a `Diverged` that shows both sides. With `words_only` recorded replies are fed by position although our
prompts have changed since; the differences are collected instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, TypeVar

from sonde.core.canonical import clip
from sonde.core.events import (
    ROOT,
    AnyEvent,
    CodeRan,
    CodeStarted,
    Event,
    GateChecked,
    HostReturned,
    ModelAsked,
    ModelFailed,
    ModelReplied,
    RunEnded,
    RunStarted,
    StatusChanged,
    SubcallEnded,
    SubcallStarted,
    TurnStarted,
    WroteBack,
)
from sonde.core.trajectory import parent_of
from sonde.errors import RunError

E = TypeVar("E", bound=Event)
Key = tuple[Any, ...]
SHOWN = 300
"""Characters of a line in which two requests differ."""


class Diverged(RunError):
    """The run took another path than the recorded one; `recorded` and `now` are the two sides, `place` session and turn."""

    stage = "runtime_validation"

    def __init__(self, where: str, recorded: str, now: str, place: tuple[str, int] | None = None) -> None:
        super().__init__(f"{where}: recorded {recorded}, now {now}")
        self.where = where
        self.place = place
        self.recorded = recorded
        self.now = now


@dataclass(frozen=True, slots=True)
class Difference:
    """One place where a replay does not match; both sides as text."""

    where: str
    recorded: str
    now: str


class Tape:
    """Recorded answers by their place. Reading does not change it, so threads may share one."""

    def __init__(self, events: Iterable[AnyEvent] = (), *, strict: bool = False, words_only: bool = False) -> None:
        self._by_identity: dict[Key, Event] = {}
        self.strict = strict
        self.words_only = words_only
        self.differences: list[Difference] = []
        self._failures: dict[Key, list[ModelFailed]] = {}
        for event in events:
            if isinstance(event, ModelFailed):
                self._failures.setdefault((event.session, event.turn, event.ordinal), []).append(event)
            if event.identity is not None:
                self._by_identity[event.identity] = event  # the last one counts: a run may have gone on live from here

    def __len__(self) -> int:
        return len(self._by_identity)

    def started(self) -> RunStarted | None:
        """How the recorded run began."""
        return self._find(RunStarted, ("run_started",))

    def ended(self) -> RunEnded | None:
        """How the recorded run ended; None when it was cut off."""
        return self._find(RunEnded, ("run_ended",))

    def turn(self, session: str, turn: int) -> TurnStarted | None:
        """The start of a turn, with the time that its prompt showed."""
        return self._need(TurnStarted, ("turn_started", session, turn))

    def asked(self, session: str, turn: int, ordinal: int) -> ModelAsked | None:
        """The request in this place, as it was recorded."""
        return self._find(ModelAsked, ("model_asked", session, turn, ordinal))

    def reply(
        self, session: str, turn: int, ordinal: int, request_hash: str | None = None, texts: Sequence[str] = ()
    ) -> ModelReplied | None:
        """The model's reply in this place, if it was given to this very request. A difference shows the first line of `texts`, the
        request's new messages, that is another one.
        """
        found = self._need(ModelReplied, ("model_replied", session, turn, ordinal))
        if found is not None and request_hash not in (None, found.request_hash):
            asked = self.asked(session, turn, ordinal) if texts else None
            then, now = first_lines([each["content"] for each in asked.messages], texts) if asked else ("", "")
            then, now = f"{found.request_hash} {then}".strip(), f"{request_hash} {now}".strip()
            self._same(_place(session, turn, ordinal, "the request"), then, now, (session, turn))
        return found

    def failures(self, session: str, turn: int, ordinal: int) -> Sequence[ModelFailed]:
        """The attempts before that reply that gave nothing but cost something."""
        return self._failures.get((session, turn, ordinal), [])

    def failure(self, session: str, turn: int, ordinal: int) -> ModelFailed | None:
        """For a replay: the attempt that was the last one, when no reply followed it."""
        if not self.strict or self._find(ModelReplied, ("model_replied", session, turn, ordinal)) is not None:
            return None
        return next((each for each in reversed(self.failures(session, turn, ordinal)) if each.wait_s is None), None)

    def host(self, session: str, turn: int, ordinal: int, args_hash: str | None = None) -> HostReturned | None:
        """The result of a host call in this place, if it was made with these arguments."""
        found = self._need(HostReturned, ("host_returned", session, turn, ordinal))
        if found is not None and args_hash is not None:
            where = _place(session, turn, ordinal, f"the arguments of {found.name}")
            self._same(where, found.args_hash, args_hash, (session, turn))
        return found

    def code_started(self, session: str, turn: int, block: int) -> CodeStarted | None:
        """The block as it was about to run, with the clock that it saw."""
        return self._need(CodeStarted, ("code_started", session, turn, block))

    def code_ran(self, session: str, turn: int, block: int, output_hash: str | None = None) -> CodeRan | None:
        """What came of a block, if its output was this."""
        found = self._need(CodeRan, ("code_ran", session, turn, block))
        if found is not None and output_hash is not None:
            where = _place(session, turn, block, "the output of the code")
            self._same(where, found.output_hash, output_hash, (session, turn))
        return found

    def subcall_started(self, session: str) -> SubcallStarted | None:
        """How a child began, with the budget that its prompt showed."""
        return self._need(SubcallStarted, ("subcall_started", session))

    def subcall(self, session: str) -> SubcallEnded | None:
        """How a child ended."""
        return self._need(SubcallEnded, ("subcall_ended", session))

    def replied(self, session: str, turn: int, ordinal: int) -> bool:
        """Whether the model has replied in this place."""
        return self._find(ModelReplied, ("model_replied", session, turn, ordinal)) is not None

    def end_of(self, session: str) -> RunEnded | SubcallEnded | None:
        """How a session ended; None when it was cut off."""
        return self.ended() if session == ROOT else self._find(SubcallEnded, ("subcall_ended", session))

    def error_of(self, session: str) -> dict[str, Any] | None:
        """The error with which a session ended; None when there was none or it was cut off."""
        end = self.end_of(session)
        return None if end is None else end.error

    def gate(self, session: str, turn: int, gate: str) -> GateChecked | None:
        """How a gate judged."""
        return self._find(GateChecked, ("gate_checked", session, turn, gate))

    def same(self, where: str, recorded: str, now: str) -> None:
        """Check one more thing of the caller's: the final value's hash, say."""
        self._same(where, recorded, now)

    def _find(self, kind: type[E], key: Key) -> E | None:
        found = self._by_identity.get(key)
        return found if isinstance(found, kind) else None

    def _need(self, kind: type[E], key: Key) -> E | None:
        found = self._find(kind, key)
        if found is None and self.strict:
            raise Diverged(" ".join(str(part) for part in key), "nothing", "asked for it")
        return found

    def _same(self, where: str, recorded: str, now: str, place: tuple[str, int] | None = None) -> None:
        if recorded == now:
            return
        if not self.words_only:
            raise Diverged(where, recorded, now, place)
        self.differences.append(Difference(where, recorded, now))


def _place(session: str, turn: int, ordinal: int, what: str) -> str:
    return f"{what} in session {session}, turn {turn}, number {ordinal}"


def first_lines(recorded: Sequence[str], now: Sequence[str]) -> tuple[str, str]:
    """The first line that is not the same in two lists of texts, as both have it; empty where there is none."""
    lines = ("\n".join(texts).splitlines() for texts in (recorded, now))
    pairs = (pair for pair in zip_longest(*lines, fillvalue="") if pair[0] != pair[1])
    left, right = next(pairs, ("", ""))
    return clip(left, SHOWN), clip(right, SHOWN)


def belongs_to(event: Event, session: str, turn: int) -> bool:
    """Whether the event is of this session's turn or later, or of a child made there, or ends the run."""
    if isinstance(event, RunEnded | WroteBack):
        return True
    if isinstance(event, StatusChanged):
        return event.status not in ("initialized", "running")
    path: str = event.session
    at: int = getattr(event, "turn", -1)
    while path != session:
        above = parent_of(path)
        if above is None:
            return False
        path, at = above
    return at >= turn


def before_turn(events: Sequence[AnyEvent], turn: int, session: str = ROOT) -> list[AnyEvent]:
    """The events of a run up to (not including) a turn of a session: what a branch from there takes along."""
    return [event for event in events if not belongs_to(event, session, turn)]
