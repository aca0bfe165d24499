"""The recorder: the one door through which events enter a run.

`emit` stamps an event, writes it to the journal, folds it into the record and tells the listeners, in this order and one event at a time.
It returns the event as recorded: use that one, not your own. After a resume, a step that is already recorded is not written again.
A listener that raises is dropped with a note; it cannot harm the run.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from sonde.core.calls import CallRef, shown_text
from sonde.core.canonical import hash_value
from sonde.core.deadline import Clock
from sonde.core.events import Event, HostReturned, ModelReplied, Noted, as_dict, stamp
from sonde.core.record import RecordFold
from sonde.core.redaction import clean_value, encodable, rewrite_text, rewrite_value, secret_forms
from sonde.errors import SondeError
from sonde.runs.journal import Journal, Place
from sonde.runs.recording import Recording

if TYPE_CHECKING:
    from sonde.core.mask import Mask

Listener = Callable[[Event], None]
E = TypeVar("E", bound=Event)
MOST_CHARS = 64_000_000


class Recorder:
    """Events in; journal, record and listeners out. Safe to use from threads."""

    def __init__(
        self,
        clock: Clock,
        journal: Journal | None = None,
        listeners: Iterable[Listener] = (),
        recording: Recording | None = None,
        mask: Mask | None = None,
    ) -> None:
        """`recording`: the steps that are in the journal already. `mask` hides people's data in what is recorded and sent."""
        self._mask = mask
        self._clock = clock
        self._journal = journal
        self._listeners = list(listeners)
        self._lock = threading.RLock()
        self.fold = RecordFold()
        self._returned = ReturnedCalls(journal)
        self._recording = recording or Recording()
        self._next = journal.next_seq if journal is not None else 0
        for event in self._recording.events:
            self.fold.add(event)
            self._next = max(self._next, event.seq + 1)

    def check_room(self) -> None:
        """RecursionLimitReached if the journal is full."""
        if self._journal is not None:
            self._journal.check_room()

    def emit(self, event: E) -> E:
        """Record one event, unless this step is recorded already; returns the recorded event in either case."""
        with self._lock:
            known = self._recording.same_step(event)
            recorded = known
            if recorded is None:
                if self._mask is not None:
                    event = _guarded(event, self._mask)
                stamped = stamp(event, self._next, self._clock.utc().timestamp())
                stamped = self._journal.write(stamped) if self._journal is not None else encodable(stamped)[0]
                self._next += 1
                self.fold.add(stamped)
                recorded = cast("E", stamped)
            if isinstance(recorded, HostReturned):
                self._returned.note(recorded, fresh=known is None)
            for listener in tuple(self._listeners):
                if listener not in self._listeners:
                    continue  # dropped meanwhile: it failed on the note about another one
                try:
                    listener(recorded)
                except Exception as error:  # noqa: BLE001  # foreign code: whatever it raises must not end the run
                    self._listeners.remove(listener)
                    why = error.message if isinstance(error, SondeError) else repr(error)
                    self.emit(Noted(text=f"a listener failed and gets no more events: {why}", level="warning"))
        if known is None and self._journal is not None and isinstance(event, ModelReplied):
            self._journal.sync()  # outside the lock: parallel replies then share one wait for the disk
        return recorded

    def returned(self, ref: str) -> HostReturned | None:
        """The recorded call behind a ref of `core.calls`, read from the record again; None when this run made no such call."""
        with self._lock:
            return self._returned.find(ref)

    def cleaned(self, value: Any) -> Any:
        """Plain data as an event that carries it will be recorded."""
        if self._mask is not None:
            value = self._mask.guarded_value(value)
        return self._journal.cleaned(value) if self._journal is not None else clean_value(value, secret_forms(()))

    def listen(self, listener: Listener) -> None:
        """Tell this one too, from now on."""
        with self._lock:
            self._listeners.append(listener)


def _guarded(event: E, mask: Mask) -> E:
    """The event without people's data; the same object if it holds none."""
    texts: list[str] = []

    def note(text: str) -> str:
        texts.append(text)
        return text

    rewrite_value(as_dict(event), note)  # not the line of the journal, where n4111… may be a line end and a card
    passes = mask.lets_pass("\n".join(texts))  # quick: few events hold any
    return event if passes else cast("E", rewrite_text(event, mask.guarded))


class ReturnedCalls:
    """Where the results of citable calls are in a run's record, so that a citation can be read again from there.

    A run with a folder keeps only the place in the journal and reads the line from the file each time; what a resume took over is in
    memory anyway. A run in memory keeps the events themselves and drops the oldest once their texts pass 64 million characters. A
    recorded result that no longer has its recorded hash is not found. The recorder's lock guards it.
    """

    def __init__(self, journal: Journal | None) -> None:
        self._journal = journal
        self._places: dict[str, Place] = {}
        self._events: dict[str, HostReturned] = {}
        self._held: OrderedDict[str, int] = OrderedDict()
        self._left = MOST_CHARS

    def note(self, event: HostReturned, *, fresh: bool) -> None:
        """Remember a call that has just been recorded (`fresh`), or that was recorded before a resume."""
        for ref in (str(each.get("ref")) for each in event.excerpts):
            if CallRef.read(ref) is None:
                continue
            if fresh and self._journal is not None:
                self._places[ref] = self._journal.last
                continue
            self._events[ref] = event
            if fresh:
                self._left += self._held.pop(ref, 0)
                self._held[ref] = len(shown_text(event.result))
                self._left -= self._held[ref]
                while self._left < 0:
                    dropped, size = self._held.popitem(last=False)
                    self._left += size
                    del self._events[dropped]

    def find(self, ref: str) -> HostReturned | None:
        """The call as the record has it now; None when there is none, or when its result is not what was recorded."""
        place = self._places.get(ref)
        event = self._events.get(ref) if place is None or self._journal is None else self._journal.at(place)
        sound = isinstance(event, HostReturned) and hash_value(event.result) == event.response_hash
        return event if sound and isinstance(event, HostReturned) else None
