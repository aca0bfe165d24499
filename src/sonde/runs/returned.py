"""Where the results of citable calls stand in a run's record, so that a citation can be read again from there.

Of a run with a folder only the place in the journal is kept, and the line is read from the file each time; what a resume has taken over
is in memory anyway. A run in memory keeps the events themselves, the oldest dropped once their texts pass 64 million characters. A
recorded result that no longer has its recorded hash is not found.
"""

from __future__ import annotations

from collections import OrderedDict

from sonde.core.calls import CallRef, shown_text
from sonde.core.canonical import hash_value
from sonde.core.events import HostReturned
from sonde.runs.journal import Journal, Place

MOST_CHARS = 64_000_000


class ReturnedCalls:
    """The citable calls of one run by ref. The recorder's lock guards it."""

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
            elif fresh:
                self._hold(ref, event)
            else:
                self._events[ref] = event

    def find(self, ref: str) -> HostReturned | None:
        """The call as the record has it now; None when there is none, or when its result is not what was recorded."""
        place = self._places.get(ref)
        event = self._events.get(ref) if place is None or self._journal is None else self._journal.at(place)
        sound = isinstance(event, HostReturned) and hash_value(event.result) == event.response_hash
        return event if sound and isinstance(event, HostReturned) else None

    def _hold(self, ref: str, event: HostReturned) -> None:
        self._left += self._held.pop(ref, 0)
        self._held[ref] = len(shown_text(event.result))
        self._left -= self._held[ref]
        self._events[ref] = event
        while self._left < 0:
            dropped, size = self._held.popitem(last=False)
            self._left += size
            del self._events[dropped]
