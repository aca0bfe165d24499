"""The recording of a run: what was recorded where, with one way to ask for it when the run is done again.

`at` returns what is recorded at a place: a class of event and its key (session, turn, ordinal, ...). `expect` also compares it with what
happens now. Resume plays what is there and then continues live. A replay is strict: where nothing is recorded, or something else was asked
then, `Diverged` shows both sides. With `words_only`, recorded replies are fed by position although our prompts have changed since; tools
and code run live, and differences are collected. A follow-up runs the recorded blocks again.

The recording also keeps the time (`RecordedClock`), so that what was in time then is in time again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import zip_longest
from typing import Any, TypeVar

from sonde.core.canonical import clip
from sonde.core.deadline import Clock
from sonde.core.events import (
    ROOT,
    AnyEvent,
    CodeRan,
    CodeStarted,
    Event,
    HostReturned,
    ModelAsked,
    ModelFailed,
    ModelReplied,
    Noted,
    RunEnded,
    RunResumed,
    RunStarted,
    StatusChanged,
    SubcallEnded,
    SubcallStarted,
    TurnStarted,
    WroteBack,
)
from sonde.core.trajectory import parent_of
from sonde.core.usage import Usage, used_by
from sonde.errors import RunError

E = TypeVar("E", bound=Event)
SHOWN = 300
"""Characters of a line in which two requests differ."""
NOTHING = "nothing"
"""What a strict recording reports where it has ended."""
TRACED_CALLS = 200
"""How many calls, the latest, the variable `tool_trace` lists."""
NOT_RUN = frozenset({"syntax", "gate"})
UNDONE = frozenset({"timeout", "crash", "violation", "quota"})
COMPARED = {
    "name": "the function called",
    "args_hash": "the arguments of {name}",
    "request_hash": "the request",
    "output_hash": "the output of the code",
}


class Diverged(RunError):
    """The run took another path than the recorded one. `recorded` and `now` are the two sides, `place` is session and turn."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block of the root session that changed its state, with the variables that the runtime set for it."""

    started: CodeStarted
    ran: CodeRan
    counters: dict[str, Any]
    calls: int
    """Host calls of its turn before it."""
    last: bool
    """Whether no block came after it. If one did, a final value was held back and is available as `held_final`."""


class Recording:
    """Recorded events by their place. Reading does not change it, so threads may share one; a run without a past has an empty one.

    `resumed`: the run continues in the journal that holds these events. `live`: the machine's clock; given one, recorded time is shown.
    """

    def __init__(
        self,
        events: Sequence[AnyEvent] = (),
        *,
        strict: bool = False,
        words_only: bool = False,
        resumed: bool = False,
        live: Clock | None = None,
    ) -> None:
        self.events = events
        self.strict = strict
        self.words_only = words_only
        self.resumed = resumed
        self.clock = None if live is None else RecordedClock(live, events)
        self.differences: list[Difference] = []
        # The last event of a key counts: a resumed run may have recorded a step again.
        self._by_key = {event.key: event for event in events if event.key is not None}
        self._failures: dict[tuple[str, int, int], list[ModelFailed]] = {}
        for event in events:
            if isinstance(event, ModelFailed):
                self._failures.setdefault((event.session, event.turn, event.ordinal), []).append(event)

    def __len__(self) -> int:
        return len(self._by_key)

    def same_step(self, event: E) -> E | None:
        """The recorded event of the same step as this one."""
        found = None if event.key is None else self._by_key.get(event.key)
        return found if isinstance(found, type(event)) else None

    def at(self, kind: type[E], *place: Any) -> E | None:
        """What is recorded here. With `words_only`, tools and code run live, so nothing is returned for them."""
        if self.words_only and kind in (HostReturned, CodeStarted, CodeRan):
            return None
        found = self._by_key.get((kind, *place))
        return found if isinstance(found, kind) else None

    def expect(self, kind: type[E], *place: Any, texts: Sequence[str] = (), **now: str | None) -> E | None:
        """What is recorded here, if its fields have the values of `now` (None: any value). A strict recording must have something.

        If the request differs, the difference shows the first line of `texts`, its new messages, that is not the same.
        """
        found = self.at(kind, *place)
        if found is None and self.strict and not (self.words_only and kind in (HostReturned, CodeStarted, CodeRan)):
            where = " ".join(map(str, (kind.__struct_config__.tag, *place)))
            raise Diverged(where, NOTHING, "asked for it")
        for field, value in now.items():
            recorded = None if found is None else getattr(found, field)
            if value is None or recorded is None or recorded == value:
                continue
            session, turn, number = place
            what = COMPARED[field].format(name=getattr(found, "name", ""))
            where = f"{what} in session {session}, turn {turn}, number {number}"
            asked = self.at(ModelAsked, *place) if texts else None
            then, here = "", ""
            if asked is not None:  # the first line that is not the same
                lines = ("\n".join(each).splitlines() for each in ([m["content"] for m in asked.messages], texts))
                then, here = next((pair for pair in zip_longest(*lines, fillvalue="") if pair[0] != pair[1]), ("", ""))
            sides = f"{recorded} {clip(then, SHOWN)}".strip(), f"{value} {clip(here, SHOWN)}".strip()
            if not self.words_only:
                raise Diverged(where, *sides, (session, turn))
            self.differences.append(Difference(where, *sides))
        return found

    def query(self, input_ref_hash: str) -> ModelReplied | None:
        """The reply to a plain prompt, wherever in the run it was asked."""
        return self._queries.get(input_ref_hash)

    @cached_property
    def _queries(self) -> dict[str, ModelReplied]:
        asked = [event for event in self.events if isinstance(event, SubcallStarted) and event.mode == "query"]
        replies = ((event.input_ref_hash, self.at(ModelReplied, event.session, 0, 0)) for event in asked)
        return {name: reply for name, reply in replies if reply is not None}

    def failures(self, session: str, turn: int, ordinal: int) -> Sequence[ModelFailed]:
        """The attempts to ask a model here that got no reply."""
        return self._failures.get((session, turn, ordinal), [])

    def given_up(self, session: str, turn: int, ordinal: int) -> ModelFailed | None:
        """The attempt after which the run gave up on the model here; None when it replied in the end."""
        if self.at(ModelReplied, session, turn, ordinal) is not None:
            return None
        return next((each for each in reversed(self.failures(session, turn, ordinal)) if each.wait_s is None), None)

    def end_of(self, session: str) -> RunEnded | SubcallEnded | None:
        """How a session ended; None when it was cut off."""
        return self.at(RunEnded) if session == ROOT else self.at(SubcallEnded, session)

    def error_of(self, session: str) -> dict[str, Any] | None:
        """The error with which a session ended; None when there was none or it was cut off."""
        end = self.end_of(session)
        return None if end is None else end.error

    @cached_property
    def blocks(self) -> list[Block]:
        """What made the state that the root session ended with: its blocks in order, without those that were undone."""
        blocks: list[Block] = []
        usage = Usage()
        trace: deque[dict[str, Any]] = deque(maxlen=TRACED_CALLS)
        started: CodeStarted | None = None
        counters: dict[str, Any] = {}
        calls = before = 0
        runs = [event for event in self.events if isinstance(event, CodeRan) and event.session == ROOT]
        for event in self.events:
            usage += used_by(event)
            if event.session != ROOT:
                continue
            match event:
                case TurnStarted():
                    calls = 0
                case CodeStarted():
                    started, counters = event, {"tool_trace": list(trace), "budget_counters": usage.for_code()}
                    before = calls
                case HostReturned():
                    calls = event.ordinal
                    trace.append({"tool_name": event.name, "args_hash": event.args_hash, "ok": event.ok})
                case CodeRan() if started is not None:
                    # The session continued from the state that this block left, unless it was not run or its fork was thrown away.
                    fault = event.fault or {}
                    # Running out of memory in Python leaves a traceback, and the state.
                    lost = fault.get("kind") == "memory" and not fault.get("traceback")
                    if lost or fault.get("kind") in NOT_RUN | UNDONE:
                        continue
                    last = event is runs[-1]
                    blocks.append(Block(started=started, ran=event, counters=counters, calls=before, last=last))
                case _:
                    continue
        return blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierRuns:
    """The runs that a follow-up continues, oldest first. `missing` names those that are gone."""

    recordings: tuple[Recording, ...] = ()
    missing: tuple[str, ...] = ()


def before_turn(events: Sequence[AnyEvent], turn: int, session: str = ROOT) -> list[AnyEvent]:
    """The events of a run before a turn of a session: what a branch from there takes along."""
    kept: list[AnyEvent] = []
    for event in events:
        path, at = event.session, int(getattr(event, "turn", -1))
        while path != session and (above := parent_of(path)) is not None:
            path, at = above  # the turn of that session in which this child was made
        match event:
            case RunEnded() | WroteBack():
                later = True
            case StatusChanged():
                later = event.status not in ("initialized", "running")
            case _:
                later = path == session and at >= turn
        if not later:
            kept.append(event)
    return kept


class RecordedClock:
    """The time of a run that is done again; it must hear every event of the run.

    While the recording plays, the clock shows the recorded time, however long playing takes. After the recorded events, time continues
    from what the run has used. Parallel sessions play in any order; the clock shows the latest of their times.
    """

    def __init__(self, live: Clock, events: Sequence[AnyEvent]) -> None:
        self._live = live
        # The first event, a turn of the root and a resume carry the time used themselves.
        times: list[float] = []
        marked = since = waited = 0.0
        for event in events:
            if isinstance(event, Noted):
                times.append(
                    marked
                )  # a note may also come before the first turn, about what took none of the run's time
                continue
            if isinstance(event, RunStarted | RunResumed) or (isinstance(event, TurnStarted) and event.session == ROOT):
                marked, since, waited = getattr(event, "elapsed_s", 0.0), event.at, 0.0
            elif isinstance(event, ModelReplied | ModelFailed):
                waited += event.waited_s
            times.append(marked + max(0.0, event.at - since - waited))
        self.used = max(times, default=0.0)
        """The wall time that the run has used, without pauses between processes and waits for people."""
        self._times = {event.key: used for event, used in zip(events, times, strict=True)}
        self._to_come = {event.key for event in events if event.key is not None and not isinstance(event, Noted)}
        self._last = max((event.seq for event in events), default=-1)
        self._shown = 0.0
        self._live_since: float | None = None
        self._lock = threading.Lock()

    def now(self) -> float:
        """Seconds that only go forward, from zero when the run began."""
        with self._lock:
            if self._live_since is None:
                return self._shown
            return self.used + self._live.now() - self._live_since

    def utc(self) -> datetime:
        """The current time of day in UTC."""
        return self._live.utc()

    def hear(self, event: Event) -> None:
        """Move to the time of a recorded event; run live after the last of them, or from the first new one."""
        if isinstance(event, RunResumed | Noted):
            return  # emitted by whoever does the run again
        with self._lock:
            self._shown = max(self._shown, self._times.get(event.key, 0.0))
            if event.key is not None:
                self._to_come.discard(event.key)
            if self._live_since is None and (event.seq > self._last or not self._to_come):
                self._live_since = self._live.now()
