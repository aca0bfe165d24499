"""The variables of earlier runs, rebuilt: their code runs again over their own recordings, and nobody is asked for anything.

A follow-up starts from the state that the root session of the earlier run ended with. Each block that left its mark on that
state runs again with its recorded clock and counters; its host calls are answered from the journal. Nothing is charged. Where the
code takes another path than recorded, the rebuilding stops; where it comes out otherwise, that is said.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sonde.core.canonical import sha256_text
from sonde.core.events import ROOT, AnyEvent, CodeRan, CodeStarted, HostReturned
from sonde.core.record import RecordFold
from sonde.errors import RunError
from sonde.sandbox import ExecFault, ExecResult

CARRIED = "Its variables are in your session: "
"""How the story of an earlier run begins the line about what it left; true only where replies are code."""
NOT_RUN = frozenset({"syntax", "gate"})
TRACED_CALLS = 200
MOST_NAMES = 60
EMPTY = frozenset({"variables", "evidence_refs", "hypothesis_candidates"})
"""What every session starts with: not worth a word while nothing is in it."""


class OffTheRecord(RunError):
    """The code asked for something that the earlier run did not ask for in this place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One block of an earlier run: its code, what it saw (clock, counters, results of host calls in order), and what came of it."""

    run: str
    started: CodeStarted
    ran: CodeRan
    counters: dict[str, Any]
    returned: tuple[HostReturned, ...] = ()
    last: bool = False
    """Whether its run ran no code after it: the final value of any other block was held back."""

    @property
    def place(self) -> str:
        """Where it stands, for a reader."""
        return f"turn {self.started.turn} of {self.run}"

    def differs(self, result: ExecResult) -> str:
        """What came out otherwise than recorded, in words; empty when nothing did."""
        then = {each["name"]: (each["type"], each["size"]) for each in self.ran.variables}
        now = {each.name: (each.type, each.size) for each in result.variables}
        names = sorted(name for name in then.keys() | now.keys() if then.get(name) != now.get(name))
        if names:
            return f"{', '.join(names[:MOST_NAMES])} ({self.place})"
        same = sha256_text(f"{result.stdout}\0{result.stderr}") == self.ran.output_hash and result.ok == self.ran.ok
        return "" if same else f"what {self.place} printed"


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierCode:
    """The code that leads to a run's state: that of the runs it continues, then its own. `missing` names runs that are gone."""

    blocks: tuple[Played, ...] = ()
    missing: tuple[str, ...] = ()
    seed: int | None = None
    """Of the first of these runs: random numbers go on where they were."""


def played_blocks(run: str, events: Sequence[AnyEvent]) -> list[Played]:
    """The blocks of a run's root session that left their mark on its state."""
    blocks: list[Played] = []
    fold = RecordFold()
    trace: deque[dict[str, Any]] = deque(maxlen=TRACED_CALLS)
    started: CodeStarted | None = None
    counters: dict[str, Any] = {}
    returned: list[HostReturned] = []
    ends = [event for event in events if isinstance(event, CodeRan) and event.session == ROOT]
    for event in events:
        fold.add(event)
        match event:
            case CodeStarted(session="root"):
                used = fold.usage.model_dump()
                counters = {
                    "tool_trace": list(trace),
                    "budget_counters": {**used, "cost_usd": round(used["cost_usd"], 6)},
                }
                started, returned = event, []
            case HostReturned(session="root"):
                returned.append(event)
                trace.append({"tool_name": event.name, "args_hash": event.args_hash, "ok": event.ok})
            case CodeRan(session="root") if started is not None and kept(event):
                blocks.append(
                    Played(
                        run=run,
                        started=started,
                        ran=event,
                        counters=counters,
                        returned=tuple(returned),
                        last=event is ends[-1],
                    )
                )
            case _:
                continue
    return blocks


def kept(ran: CodeRan) -> bool:
    """Whether the session went on from a state that this block has changed."""
    return ran.fault is None or (ran.fault.get("kind") not in NOT_RUN and ExecFault(**ran.fault).keeps_state)


def variables_line(blocks: Iterable[Played]) -> str:
    """The variables that these blocks left, with type and size."""
    left = {
        each["name"]: f"{each['name']}: {each['type']}" + (f" ({each['size']})" if each["size"] is not None else "")
        for block in blocks
        for each in block.ran.variables
        if not each["name"].startswith("_") and (each["size"] or each["name"] not in EMPTY)
    }
    return "; ".join(list(left.values())[:MOST_NAMES])
