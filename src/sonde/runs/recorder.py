"""The recorder: the one door through which events enter a run.

`emit` stamps an event, writes it to the journal, folds it into the record and tells the listeners, in this order and one event at a time.
It gives back the event as recorded: use that one, not your own. After a resume, a step that is already recorded is not written again.
A listener that raises is dropped with a note; it cannot hurt the run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

from sonde.core.deadline import Clock
from sonde.core.events import AnyEvent, Event, HostReturned, ModelReplied, Noted, stamp
from sonde.core.record import RecordFold
from sonde.errors import SondeError
from sonde.runs.journal import Journal
from sonde.runs.recording import belongs_to
from sonde.runs.redaction import clean_value, encodable, secret_forms
from sonde.runs.returned import ReturnedCalls

Listener = Callable[[Event], None]
E = TypeVar("E", bound=Event)


class Recorder:
    """Events in; journal, record and listeners out. Safe to use from threads."""

    def __init__(
        self,
        clock: Clock,
        journal: Journal | None = None,
        listeners: Iterable[Listener] = (),
        recorded: Iterable[AnyEvent] = (),
    ) -> None:
        self._clock = clock
        self._journal = journal
        self._listeners = list(listeners)
        self._lock = threading.RLock()
        self.fold = RecordFold()
        self._returned = ReturnedCalls(journal)
        self._recorded: dict[tuple[Any, ...], Event] = {}
        self._next = journal.next_seq if journal is not None else 0
        for event in recorded:
            self._take_over(event)

    def _take_over(self, event: Event) -> None:
        self.fold.add(event)
        self._next = max(self._next, event.seq + 1)
        if event.identity is not None:
            self._recorded[event.identity] = event

    def emit(self, event: E) -> E:
        """Record one event, unless this step is recorded already; the recorded event in either case."""
        with self._lock:
            known = self._recorded.get(event.identity) if event.identity is not None else None
            recorded = cast("E", known) if known is not None else self._write(event)
            if isinstance(recorded, HostReturned):
                self._returned.note(recorded, fresh=known is None)
            self._tell(recorded)
        if known is None and self._journal is not None and isinstance(event, ModelReplied):
            self._journal.sync()  # outside the lock: parallel replies then share one wait for the disk
        return recorded

    def _write(self, event: E) -> E:
        stamped = stamp(event, self._next, self._clock.utc().timestamp())
        stamped = self._journal.write(stamped) if self._journal is not None else encodable(stamped)[0]
        self._next += 1
        self.fold.add(stamped)
        return cast("E", stamped)

    def _tell(self, event: Event) -> None:
        for listener in tuple(self._listeners):
            if listener not in self._listeners:
                continue  # dropped meanwhile: the note about another one was too much for it
            try:
                listener(event)
            except Exception as error:  # noqa: BLE001  # foreign code: whatever it raises must not end the run
                self._listeners.remove(listener)
                why = error.message if isinstance(error, SondeError) else repr(error)
                self.emit(Noted(text=f"a listener failed and gets no more events: {why}", level="warning"))

    def returned(self, ref: str) -> HostReturned | None:
        """The recorded call behind a ref of `core.calls`, read from the record again; None when this run made no such call."""
        with self._lock:
            return self._returned.find(ref)

    def cleaned(self, value: Any) -> Any:
        """Plain data as an event that carries it will be recorded."""
        return self._journal.cleaned(value) if self._journal is not None else clean_value(value, secret_forms(()))

    def listen(self, listener: Listener) -> None:
        """Tell this one too, from now on."""
        with self._lock:
            self._listeners.append(listener)

    def forget(self, session: str, turn: int) -> None:
        """Go on live from this turn of this session: what was recorded of it and of its children does not count as done."""
        with self._lock:
            kept = {key: e for key, e in self._recorded.items() if not belongs_to(e, session, turn)}
            self._recorded = kept

    def replayed(self) -> int:
        """How many recorded steps this recorder knows."""
        return len(self._recorded)
