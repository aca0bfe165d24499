"""The variables of an earlier run, made again: its code runs over its own recording, and asks nobody for anything.

A follow-up question starts from the state that the earlier root session ended with. Each block that left a trace in that
state runs again with its recorded clock, and its host calls are answered from the journal. It does not promise to be faster
than the code was, nor a state when the code takes another path than recorded: then it stops and says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sonde.core.events import ROOT, AnyEvent, CodeRan, CodeStarted, HostReturned
from sonde.errors import RunError, ToolFault
from sonde.sandbox import Args, Box, CodeClock

CARRIED = "Its variables are in your session: "
"""How the story of an earlier run begins the line about what it left; true only where replies are code."""
UNDONE = frozenset({"timeout", "memory", "crash", "violation", "quota", "gate", "syntax"})
"""Faults after which the state was that of the turn before."""


class OffTheRecord(RunError):
    """The code asked for something that the earlier run did not ask for in this place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One block of an earlier run with what its host calls got, in order."""

    code: str
    clock: float
    returned: tuple[HostReturned, ...] = ()


def played_blocks(events: Sequence[AnyEvent]) -> list[Played]:
    """The blocks of a run's root session that left their mark on its state."""
    blocks: list[Played] = []
    started: CodeStarted | None = None
    returned: list[HostReturned] = []
    for event in events:
        if event.session != ROOT:
            continue
        match event:
            case CodeStarted():
                started, returned = event, []
            case HostReturned():
                returned.append(event)
            case CodeRan() if started is not None and kept(event):
                blocks.append(Played(code=started.code, clock=started.clock, returned=tuple(returned)))
            case _:
                continue
    return blocks


def kept(ran: CodeRan) -> bool:
    """Whether the session went on from the state that this block left."""
    return ran.fault is None or ran.fault.get("kind") not in UNDONE


def variables_line(events: Iterable[AnyEvent]) -> str:
    """The variables that a run's root session left, with type and size."""
    left = {
        each["name"]: f"{each['name']}: {each['type']} ({each['size']})"
        for event in events
        if isinstance(event, CodeRan) and event.session == ROOT and kept(event)
        for each in event.variables
    }
    return "; ".join(list(left.values())[:60])


class Playback:
    """A host that answers from the recording."""

    def __init__(self, block: Played) -> None:
        self._left = iter(block.returned)

    def __call__(self, name: str, args: Args) -> Any:
        """The next recorded answer, if it was given to this function."""
        del args  # the same code over the same answers asks with the same arguments
        recorded = next(self._left, None)
        if recorded is None or recorded.name != name:
            was = "nothing" if recorded is None else recorded.name
            raise OffTheRecord(f"the earlier code called {name} where {was} is recorded")
        if not recorded.ok:
            raise ToolFault(recorded.error or "failed")
        return recorded.result


def play(box: Box, block: Played, wall_s: float) -> None:
    """Run one block again; raises OffTheRecord."""
    box.clock = CodeClock(start=block.clock)
    result = box.execute(block.code, wall_s=wall_s)
    if result.fault is not None and result.fault.kind in UNDONE:
        raise OffTheRecord(f"the earlier code did not run again: {result.fault.message}")
